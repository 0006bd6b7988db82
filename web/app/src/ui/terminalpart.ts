// The terminal's part of the page, which is half of its bytes.

let part: Promise<typeof import("./terminal.js")> | undefined;

/** Fetches it, once; a failure is tried again by the next who asks. */
export const terminalPart = (): Promise<typeof import("./terminal.js")> =>
  (part ??= import("./terminal.js").catch((e) => {
    part = undefined;
    throw e;
  }));

/** Fetches it when there is nothing else to do: a terminal is what comes next. Returns what takes that back. */
export const terminalPartSoon = (): (() => void) => {
  const get = () => void terminalPart().catch(() => undefined);
  // Safari knows no idle time.
  if (typeof requestIdleCallback == "undefined") {
    const timer = setTimeout(get, 300);
    return () => clearTimeout(timer);
  }
  const idle = requestIdleCallback(get, { timeout: 2000 });
  return () => cancelIdleCallback(idle);
};
