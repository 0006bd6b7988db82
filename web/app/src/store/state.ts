// A value that changes, and the components that show it.

import { useEffect, useState } from "preact/hooks";

export interface Store<T> {
  readonly value: T;
  set(next: T | ((before: T) => T)): void;
  /** Calls f on every change; gives back how to stop that. */
  subscribe(f: () => void): () => void;
}

export const createStore = <T>(value: T): Store<T> => {
  const listeners = new Set<() => void>();
  return {
    get value() {
      return value;
    },
    set(next) {
      const v = typeof next == "function" ? (next as (before: T) => T)(value) : next;
      if (Object.is(v, value)) return;
      value = v;
      for (const f of [...listeners]) f();
    },
    subscribe(f) {
      listeners.add(f);
      return () => listeners.delete(f);
    },
  };
};

/** The store's value, or a part of it, in a component. */
export function useStore<T>(store: Store<T>): T;
export function useStore<T, U>(store: Store<T>, pick: (v: T) => U): U;
export function useStore<T, U>(store: Store<T>, pick: (v: T) => T | U = (v) => v): T | U {
  const [, again] = useState({});
  const now = pick(store.value);
  useEffect(() => {
    let shown = now;
    const look = () => {
      const v = pick(store.value);
      if (Object.is(v, shown)) return;
      shown = v;
      again({});
    };
    // What changed between rendering and here.
    look();
    return store.subscribe(look);
  }, [store]);
  return now;
}

/** The time, for ages on the screen; renews itself while shown. */
export const useNow = (everyMs: number): number => {
  const [, again] = useState({});
  useEffect(() => {
    const timer = setInterval(() => again({}), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return Date.now();
};
