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

export interface Lost<T> {
  item: T;
  why: Loss;
}

/**
 * Hands out, after every reconnect: the reports of the present, each once and in
 * its newest form, then the queue in order; a new item goes behind what waits.
 * What was handed out is the caller's and is never repeated.
 */
export interface Outbox<T> {
  /** Queues an item. Returns what is lost by it: expired ones, and the item itself where there is no room. */
  push(now: Instant, bytes: number, item: T): Lost<T>[];
  /** What is true now under a key: replaces the one before. The keys are yours to bound. */
  report(key: string, item: T): void;
  withdraw(key: string): void;
  /** A new connection is ready: every report is due again. */
  connected(): void;
  /** What is to be sent next, if anything is, and what expired meanwhile. */
  next(now: Instant): { item?: T | undefined; lost: Lost<T>[] };
  /** What has waited too long. */
  expire(now: Instant): Lost<T>[];
  /** Another account, machine or channel: nothing survives it. */
  context(name: string): Lost<T>[];
  /** Empties the queue, as a change of context does, and keeps the reports. */
  clear(): Lost<T>[];
  /** How many wait in the queue, and their bytes. Reports do not count. */
  size(): [count: number, bytes: number];
}

export const createOutbox = <T>(limits: OutboxLimits, context = ""): Outbox<T> => {
  const present = new Map<string, { item: T; due: boolean }>();
  let queue: { item: T; bytes: number; at: Instant }[] = [];
  let total = 0;

  const take = () => {
    const q = queue.shift();
    total -= q?.bytes ?? 0;
    return q?.item;
  };

  const expire = (now: Instant) => {
    const lost: Lost<T>[] = [];
    for (let q; (q = queue[0]) && Math.max(now.mono - q.at.mono, now.wall - q.at.wall) > limits.age; take())
      lost.push({ item: q.item, why: "expired" });
    return lost;
  };

  const clear = () => {
    const lost = queue.map(({ item }): Lost<T> => ({ item, why: "contextEnded" }));
    queue = [];
    total = 0;
    return lost;
  };

  return {
    push(now, bytes, item) {
      const lost = expire(now);
      if (queue.length < limits.count && bytes + total <= limits.bytes) {
        queue.push({ item, bytes, at: now });
        total += bytes;
      } else lost.push({ item, why: "overflow" });
      return lost;
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
      const lost = expire(now);
      for (const r of present.values()) {
        if (r.due) {
          r.due = false;
          return { item: r.item, lost };
        }
      }
      return { item: take(), lost };
    },
    expire,
    context(name) {
      if (name == context) return [];
      context = name;
      present.clear();
      return clear();
    },
    clear,
    size: () => [queue.length, total],
  };
};
