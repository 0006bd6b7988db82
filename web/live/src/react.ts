// The React hook. It holds a channel for as long as a component is there, and
// renders when the status or a receipt changes, not at every message.

import { useEffect, useMemo, useRef, useSyncExternalStore } from "react";
import { createLive, type Live, type LiveOptions, type Status } from "./index.js";

/**
 * A live channel for as long as the component is mounted. Another `context` (or,
 * without one, another `url`) is another channel: the old one is closed and what
 * waited in it is dropped. Of the callbacks the newest are called; of the other
 * options those of the first render with that context.
 */
export const useLive = (options: LiveOptions): { live: Live; status: Status } => {
  const newest = useRef(options);
  newest.current = options;
  const live = useMemo(
    () =>
      createLive({
        ...options,
        message: (m) => newest.current.message?.(m),
        ready: () => newest.current.ready?.(),
      }),
    [options.context ?? "" + options.url],
  );
  useEffect(() => {
    live.reopen();
    return live.close;
  }, [live]);
  return { live, status: useSyncExternalStore(live.subscribe, () => live.status, () => live.status) };
};
