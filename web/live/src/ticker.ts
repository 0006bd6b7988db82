// Timers that run in a Worker. A browser runs the timers of a page that has been
// hidden for a while once a minute; those of its Workers it leaves alone. The
// client judges hidden pages without it, because it arms its deadlines where
// messages arrive; a channel on which nothing ever arrives while it is hidden
// and whose lease is short is what this is for.

import type { Timers } from "./live.js";

/** What is needed of a Worker that runs ticker-worker.js. */
export interface TickerWorker {
  postMessage(m: { id: number; ms: number | undefined }): void;
  onmessage: ((e: any) => void) | null;
}

/** Timers for LiveOptions.timers: workerTimers(new Worker(new URL("@holdfast/live/ticker-worker", import.meta.url), { type: "module" })). */
export const workerTimers = (worker: TickerWorker): Timers => {
  const waiting = new Map<number, () => void>();
  let last = 0;
  worker.onmessage = ({ data }: { data: number }) => {
    const f = waiting.get(data);
    waiting.delete(data);
    f?.();
  };
  return {
    setTimeout(f, ms = 0) {
      waiting.set(++last, f);
      worker.postMessage({ id: last, ms });
      return last;
    },
    clearTimeout(id) {
      if (waiting.delete(id)) worker.postMessage({ id, ms: undefined });
    },
  };
};
