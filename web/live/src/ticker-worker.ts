// The Worker of workerTimers: one timer for each that the page has set.

const scope = globalThis as unknown as {
  onmessage: (e: { data: { id: number; ms: number | undefined } }) => void;
  postMessage(id: number): void;
};
const timers = new Map<number, any>();

scope.onmessage = ({ data: { id, ms } }) => {
  clearTimeout(timers.get(id));
  timers.delete(id);
  if (ms !== undefined)
    timers.set(
      id,
      setTimeout(() => {
        timers.delete(id);
        scope.postMessage(id);
      }, ms),
    );
};
