// What waits to be sent on a channel, within bounds; nothing is lost in silence.

import type { Instant } from "./time.js";

export interface OutboxLimits {
  count: number;
  bytes: number;
  /** How long an item may wait, by whichever clock says that it was longer; ms. */
  age: number;
}

/** Why an item will never be sent. */
export type Loss = "overflow" | "expired" | "contextEnded";

/**
 * Hands out, after every reconnect: the reports of the present, each once and in
 * its newest form, then the queue in order; a new item goes behind what waits.
 * What was handed out is the caller's and is never repeated. Whatever else
 * becomes of an item, `lose` hears of it.
 */
export interface Outbox<T> {
  /** Queues an item, if there is room beside those that have not expired. */
  push(now: Instant, bytes: number, item: T): void;
  /** What is true now under a key: replaces the one before. The keys are yours to bound. */
  report(key: string, item: T): void;
  withdraw(key: string): void;
  /** A new connection is ready: every report is due again. */
  connected(): void;
  /** What is to be sent next, if anything is. */
  next(now: Instant): T | undefined;
  /** Loses what has waited too long. */
  expire(now: Instant): void;
  /** Another account, machine or channel: nothing survives it. Says whether it is another. */
  context(name: string): boolean;
  /** Loses the queue, as a change of context does, and keeps the reports. */
  clear(): void;
  /** How many wait in the queue, and their bytes. Reports do not count. */
  size(): [count: number, bytes: number];
}

export const createOutbox = <T>(limits: OutboxLimits, lose: (item: T, why: Loss) => void, context = ""): Outbox<T> => {
  const present = new Map<string, { item: T; due: boolean }>();
  let queue: { item: T; bytes: number; at: Instant }[] = [];

  const size = (): [number, number] => [queue.length, queue.reduce((sum, q) => sum + q.bytes, 0)];

  const expire = (now: Instant) => {
    for (let q; (q = queue[0]) && Math.max(now.mono - q.at.mono, now.wall - q.at.wall) > limits.age; queue.shift()) lose(q.item, "expired");
  };

  const clear = () => {
    const lost = queue;
    queue = [];
    for (const { item } of lost) lose(item, "contextEnded");
  };

  return {
    push(now, bytes, item) {
      expire(now);
      const [count, total] = size();
      if (count < limits.count && bytes + total <= limits.bytes) queue.push({ item, bytes, at: now });
      else lose(item, "overflow");
    },
    report(key, item) {
      present.set(key, { item, due: true });
    },
    withdraw(key) {
      present.delete(key);
    },
    connected() {
      for (const r of present.values()) r.due = true;
    },
    next(now) {
      expire(now);
      for (const r of present.values()) {
        if (r.due) {
          r.due = false;
          return r.item;
        }
      }
      return queue.shift()?.item;
    },
    expire,
    context(name) {
      if (name == context) return false;
      context = name;
      present.clear();
      clear();
      return true;
    },
    clear,
    size,
  };
};
