// The sessions of every machine, for the screens: what the machine says while
// there is a connection, and what it said last while there is none, marked as
// such. Connections are held while somebody looks at a visible page, and no
// longer.

import { connectionOf, onLose, restarts } from "../machines.js";
import { createStore, type Store } from "../store/state.js";
import type { SessionsTell } from "../worker/messages.js";
import { keepList, keptList } from "./kept.js";
import { newKey } from "./key.js";
import { Refused, type Session, type Stage } from "./model.js";

export interface Known {
  sessions: ReadonlyMap<string, Session>;
  /** The machine tells every change now. Otherwise this is what it said last. */
  live: boolean;
  /** When it said so last, ms; undefined where it never did. */
  asOf: number | undefined;
  features: readonly string[];
  /** Added to the machine's times. */
  skew: number;
  /** Why the machine tells nothing though it can be reached. */
  fault: { code: string; text: string } | undefined;
}

export interface CallEvents {
  receipt?(stage: Stage): void;
  items?(result: unknown): void;
  over?(why: Refused): void;
}

interface Remote {
  known: Store<Known>;
  watch(): () => void;
  lookAt(sessions: readonly string[]): () => void;
  call(request: string, params: Record<string, unknown>, on?: CallEvents): Promise<unknown> & { number: number };
  /** Knows nothing any more, and writes nothing of what it knew. */
  lose(): void;
}

const nothing: Known = { sessions: new Map(), live: false, asOf: undefined, features: [], skew: 0, fault: undefined };
const remotes = new Map<string, Remote>();
/** Between one view and the next nobody looks: longer than a view takes to load. */
const LEAVE = 3000;
/** Changes within this time are written once. */
const WRITE = 800;

/** Numbers of calls are this page's, whatever the connection. */
let lastCall = 0;

/** What happened to sessions, for who wants to say it: at most one a change. */
const listeners = new Set<(machine: string, before: Session | undefined, now: Session | undefined) => void>();
export const onSession = (f: (machine: string, before: Session | undefined, now: Session | undefined) => void): (() => void) => {
  listeners.add(f);
  return () => listeners.delete(f);
};

/** A look lasts 30 s at the machine, and is told anew so often, in ms. */
const LOOK = 20_000;
/** This page among those of the device: what a hidden one shows no more another may still show. */
const VIEW = newKey();
/** Between one view and the next, ms: what both show was looked at all the time. */
const TURN = 150;
/** So many sessions can be looked at: docs/sessions.md. */
const MAX_LOOK = 256;

/** Who wants to know what the person looks at. */
const lookListeners = new Set<(machine: string, sessions: readonly string[]) => void>();
export const onLook = (f: (machine: string, sessions: readonly string[]) => void): (() => void) => {
  lookListeners.add(f);
  return () => lookListeners.delete(f);
};

const create = (id: string): Remote => {
  const known = createStore<Known>(nothing);
  const calls = new Map<number, { resolve(v: unknown): void; reject(e: Refused): void; on: CallEvents | undefined; answered: boolean }>();
  let stop: (() => void) | undefined;
  let lookers = 0;
  let writing: ReturnType<typeof setTimeout> | undefined;
  let leaving: ReturnType<typeof setTimeout> | undefined;

  let lost = false;
  void keptList(id).then((k) => {
    // What the machine has said meanwhile is newer.
    if (k && !lost && known.value.asOf === undefined) known.set((s) => ({ ...s, sessions: new Map(k.sessions.map((x) => [x.id, x])), asOf: k.at }));
  });

  const keep = () => {
    clearTimeout(writing);
    writing = undefined;
    const { sessions, asOf } = known.value;
    if (asOf !== undefined) void keepList(id, { at: asOf, sessions: [...sessions.values()] });
  };
  const write = () => {
    writing ??= setTimeout(keep, WRITE);
  };

  const change = (session: string, now: Session | undefined, at: number) => {
    const sessions = new Map(known.value.sessions);
    const before = sessions.get(session);
    if (now) sessions.set(session, now);
    else sessions.delete(session);
    known.set((s) => ({ ...s, sessions, asOf: at }));
    for (const f of [...listeners]) f(id, before, now);
    write();
  };

  // What is on the screen, of every view that shows sessions.
  const views = new Map<object, readonly string[]>();
  let told = "";
  let turning: ReturnType<typeof setTimeout> | undefined;
  let renewing: ReturnType<typeof setTimeout> | undefined;
  /** Tells the machine what is looked at now. */
  const look = (visible = document.visibilityState == "visible") => {
    clearTimeout(turning);
    clearTimeout(renewing);
    const ids = visible ? [...new Set([...views.values()].flat())].slice(0, MAX_LOOK) : [];
    if (ids.length) for (const f of [...lookListeners]) f(id, ids);
    if (!known.value.live || !known.value.features.includes("look")) return;
    if (!ids.length && !told) return;
    told = ids.join(" ");
    void request(id, "look", { sessions: ids, view: VIEW }).catch(() => undefined);
    if (ids.length) renewing = setTimeout(() => look(), LOOK);
  };
  const lookSoon = () => {
    clearTimeout(turning);
    turning = setTimeout(() => look(), TURN);
  };

  const hear = (m: SessionsTell) => {
    switch (m.op) {
      case "sessionsHello":
        return known.set((s) => ({ ...s, features: m.features, skew: m.skew, fault: undefined }));
      case "sessionsAll":
        known.set((s) => ({ ...s, sessions: new Map(m.sessions.map((x) => [x.id, x])), live: true, asOf: m.at, fault: undefined }));
        told = "";
        lookSoon();
        return write();
      // What follows after all was lost is not to be known, until a new connection tells all.
      case "sessionChanged":
        return known.value.live ? change(m.session.id, m.session, m.at) : undefined;
      case "sessionGone":
        return known.value.live ? change(m.session, undefined, m.at) : undefined;
      case "sessionsClosed": {
        // While it was live it was true until now.
        const asOf = known.value.live ? Date.now() : known.value.asOf;
        known.set((s) => ({ ...s, live: false, asOf, fault: m.code == "lost" ? s.fault : { code: m.code, text: m.text } }));
        // A Worker that was ended answers nothing.
        for (const [n, c] of [...calls]) {
          calls.delete(n);
          const why = new Refused("lost", m.text);
          if (c.answered) c.on?.over?.(why);
          else c.reject(why);
        }
        return;
      }
      case "answer": {
        const c = calls.get(m.call);
        if (!c) return;
        if (c.on?.items) c.answered = true;
        else calls.delete(m.call);
        return c.resolve(m.result);
      }
      case "refused": {
        const c = calls.get(m.call);
        calls.delete(m.call);
        const why = new Refused(m.code, m.message, m.dialog, m.text);
        if (c?.answered) c.on?.over?.(why);
        else c?.reject(why);
        return;
      }
      case "receipt":
        return calls.get(m.call)?.on?.receipt?.(m.stage);
      case "items":
        return calls.get(m.call)?.on?.items?.(m.result);
    }
  };

  const end = () => {
    stop?.();
    stop = undefined;
    // What is known is not live any more, and who waits for an answer gets none.
    hear({ op: "sessionsClosed", code: "lost", text: "" });
  };
  const settle = () => {
    clearTimeout(leaving);
    const visible = document.visibilityState == "visible";
    // Whoever had one look and put the phone back finds what was seen.
    if (!visible && writing !== undefined) keep();
    if (lookers > 0 && visible) {
      stop ??= connectionOf(id).watch(hear);
      return;
    }
    if (!stop) return;
    // By this page's word, not by a lease that ends: the person has seen it.
    if (!visible) look(false);
    if (visible) leaving = setTimeout(end, LEAVE);
    else end();
  };
  document.addEventListener("visibilitychange", settle);
  restarts.subscribe(() => {
    if (stop) end();
    settle();
  });

  return {
    known,
    lose() {
      lost = true;
      clearTimeout(writing);
      writing = undefined;
      known.set(nothing);
    },
    watch() {
      lookers++;
      settle();
      let looks = true;
      return () => {
        if (looks) lookers--;
        looks = false;
        settle();
      };
    },
    lookAt(sessions) {
      const view = {};
      views.set(view, sessions);
      lookSoon();
      return () => {
        views.delete(view);
        lookSoon();
      };
    },
    call(request, params, on) {
      const number = ++lastCall;
      const p = new Promise<unknown>((resolve, reject) => {
        if (!known.value.live) return reject(new Refused("offline", ""));
        calls.set(number, { resolve, reject, on, answered: false });
        connectionOf(id).sessions({ op: "call", call: number, request, params });
      });
      return Object.assign(p, { number });
    },
  };
};

const remoteOf = (id: string): Remote => {
  let r = remotes.get(id);
  if (!r) remotes.set(id, (r = create(id)));
  return r;
};

onLose((id) => remotes.get(id)?.lose());

export const knownOf = (id: string): Store<Known> => remoteOf(id).known;

/** Somebody looks at the sessions of this machine, until the returned function is called. */
export const watchSessions = (id: string): (() => void) => remoteOf(id).watch();

/** These sessions of a machine are on the screen, until the returned function is called. */
export const lookAt = (id: string, sessions: readonly string[]): (() => void) => remoteOf(id).lookAt(sessions);

/** A request; rejects with Refused, "lost" where it may have been done, "offline" where it was not sent. */
export const request = (id: string, op: string, params: Record<string, unknown> = {}, on?: CallEvents): Promise<unknown> & { number: number } => remoteOf(id).call(op, params, on);
