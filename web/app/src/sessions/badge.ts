// How many sessions wait, in the title and on the app's icon.

import { known } from "../machines.js";
import { knownOf } from "./remote.js";

export const startBadge = (): void => {
  let shown = -1;
  const watched = new Set<string>();
  const count = () => {
    let n = 0;
    for (const m of known.value ?? []) for (const s of knownOf(m.id).value.sessions.values()) if (s.status.state == "waiting") n++;
    if (n == shown) return;
    shown = n;
    document.title = n ? `(${n}) Holdfast` : "Holdfast";
    if (n) void navigator.setAppBadge?.(n).catch(() => undefined);
    else void navigator.clearAppBadge?.().catch(() => undefined);
  };
  known.subscribe(() => {
    for (const m of known.value ?? [])
      if (!watched.has(m.id)) {
        watched.add(m.id);
        knownOf(m.id).subscribe(count);
      }
    count();
  });
};
