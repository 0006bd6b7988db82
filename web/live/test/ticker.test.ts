// The Worker's timers, both ends in one thread.

import assert from "node:assert/strict";
import { test } from "node:test";

import { workerTimers } from "@holdfast/live/ticker";

test("a Worker's timers fire once, in order, and not when cleared", async () => {
  // The worker's script talks to its global scope; this is that scope and the
  // page's end of it.
  const scope = globalThis as any;
  const worker: any = { onmessage: null, postMessage: (m: any) => scope.onmessage({ data: m }) };
  scope.postMessage = (id: number) => worker.onmessage({ data: id });
  await import("@holdfast/live/ticker-worker" as string);
  const { setTimeout: set, clearTimeout: clear } = workerTimers(worker);
  const fired: string[] = [];
  await new Promise<void>((done) => {
    set(() => fired.push("late"), 30);
    set(() => fired.push("early"), 1);
    clear(set(() => fired.push("never"), 10));
    set(done, 60);
  });
  assert.deepEqual(fired, ["early", "late"]);
  clear(1); // one that has fired
});
