// The device's side of the sessions protocol (docs/sessions.md): bytes and
// requests in, lines and news out. It has no socket and no clock, and keeps
// nothing over the end of a stream: opening again is synchronising.
//
// What a caller will get wrong: a request that was lost ("lost") may have been
// done; replies carry a key for that.

import { idOk, isObject, list, MAX_SESSIONS, readRefusal, readSession, Refused, text, type Session, type Stage } from "./model.js";

export const VERSION = 1;
/** Of one line in either direction, its end not counted. */
export const MAX_LINE = 1 << 20;
/** Requests that are open at once; the machine refuses more. */
export const MAX_OPEN = 16;
/** Requests that wait for their turn: a page that asks for more is broken. */
const MAX_WAITING = 256;

export interface Hello {
  machine: string;
  features: string[];
  /** What is added to the machine's times to get this device's, in ms. */
  skew: number;
}

export interface Listener {
  hello(h: Hello): void;
  /** All sessions are here. */
  complete(all: Session[]): void;
  change(s: Session): void;
  gone(id: string): void;
  /** The end: the machine's code, or "" where the stream broke. Calls were rejected before. */
  ended(code: string, message: string): void;
}

export interface Follower {
  /** The request went out under this id, which unfollow names. */
  started?(id: number): void;
  receipt?(stage: Stage): void;
  /** What a followed conversation gained. */
  items?(result: unknown): void;
  /** The follow ended at the machine. */
  over?(why: Refused): void;
}

export interface Client {
  /** Bytes that came, cut anywhere. */
  feed(bytes: Uint8Array): void;
  /** The stream is over. */
  end(): void;
  call(op: string, params?: Record<string, unknown>, on?: Follower): Promise<unknown>;
  readonly sessions: ReadonlyMap<string, Session>;
  readonly complete: boolean;
}

interface Open {
  resolve(v: unknown): void;
  reject(e: Refused): void;
  on: Follower | undefined;
  follow: boolean;
}

const newline = 10;

export const createClient = (write: (line: string) => void, on: Listener, o: { program: string; now?: () => number }): Client => {
  const now = o.now ?? Date.now;
  const sessions = new Map<string, Session>();
  const open = new Map<number, Open>();
  /** Follows that were answered and go on. */
  const follows = new Map<number, Follower>();
  let waiting: (() => void)[] = [];
  let last = 0;
  let hello: Hello | undefined;
  let complete = false;
  let over = false;
  /** The beginning of a line, in one buffer however small the pieces are that it comes in. */
  let kept = new Uint8Array(0);
  let held = 0;
  const decoder = new TextDecoder();

  const finish = (code: string, message: string) => {
    if (over) return;
    over = true;
    kept = new Uint8Array(0);
    const lost = new Refused("lost", message);
    for (const c of open.values()) c.reject(lost);
    open.clear();
    for (const f of follows.values()) f.over?.(lost);
    follows.clear();
    for (const w of waiting.splice(0)) w();
    on.ended(code, message);
  };

  const next = () => {
    while (waiting.length && open.size < MAX_OPEN) waiting.shift()!();
  };

  const settle = (id: unknown, act: (c: Open, id: number) => void) => {
    const c = typeof id == "number" ? open.get(id) : undefined;
    if (!c) return false;
    open.delete(id as number);
    act(c, id as number);
    next();
    return true;
  };

  const keep = (v: unknown): Session | undefined => {
    const s = readSession(v, hello!.skew);
    if (!s || (!sessions.has(s.id) && sessions.size >= MAX_SESSIONS)) return undefined;
    sessions.set(s.id, s);
    return s;
  };

  const welcome = (m: Record<string, unknown>): void => {
    const version = m["version"];
    if (m["op"] != "hello" || typeof version != "number") return finish("syntax", "the machine's first line is no hello");
    if (version < VERSION) return finish("version", `the machine speaks version ${version}: update holdfast there`);
    const at = typeof m["now"] == "string" ? Date.parse(m["now"]) : NaN;
    hello = { machine: text(m["machine"], 64), features: list(m["features"], 256).filter((f): f is string => typeof f == "string" && f.length <= 64), skew: at > 0 ? now() - at : 0 };
    on.hello(hello);
  };

  const heard = (line: Uint8Array): void => {
    let m: unknown;
    try {
      m = JSON.parse(decoder.decode(line));
    } catch {
      if (!hello) finish("syntax", "the machine's first line is no hello");
      return;
    }
    if (!isObject(m)) return;
    if (!hello) return welcome(m);
    switch (m["op"]) {
      case "snapshot": {
        for (const v of list(m["sessions"], MAX_SESSIONS)) {
          const s = keep(v);
          if (s && complete) on.change(s);
        }
        if (m["more"] !== true && !complete) {
          complete = true;
          on.complete([...sessions.values()]);
        }
        return;
      }
      case "change": {
        const s = keep(m["session"]);
        if (s && complete) on.change(s);
        return;
      }
      case "gone":
        if (idOk(m["session"]) && sessions.delete(m["session"]) && complete) on.gone(m["session"]);
        return;
      case "answer":
        settle(m["id"], (c, id) => {
          if (c.follow && c.on) follows.set(id, c.on);
          c.resolve(m["result"]);
        });
        return;
      case "error": {
        const why = readRefusal(m);
        if (settle(m["id"], (c) => c.reject(why))) return;
        const id = m["id"] as number;
        follows.get(id)?.over?.(why);
        follows.delete(id);
        return;
      }
      case "receipt": {
        const stage = m["state"] as Stage;
        if (stage == "sent" || stage == "typed") open.get(m["id"] as number)?.on?.receipt?.(stage);
        return;
      }
      case "items":
        follows.get(m["id"] as number)?.items?.(m["result"]);
        return;
      case "bye":
        return finish(text(m["code"], 64) || "ending", text(m["message"], 1024));
    }
  };

  write(JSON.stringify({ op: "hello", version: VERSION, program: o.program, watch: true }));

  return {
    feed(bytes) {
      let from = 0;
      while (!over) {
        const at = bytes.indexOf(newline, from);
        const piece = bytes.subarray(from, at < 0 ? bytes.length : at);
        const length = held + piece.length;
        // Before it is kept, so that a line without end takes no more memory.
        if (length > MAX_LINE) return finish("syntax", "a line is longer than allowed");
        let line = piece;
        if (held || at < 0) {
          if (length > kept.length) {
            const grown = new Uint8Array(Math.min(2 * length, MAX_LINE));
            grown.set(kept.subarray(0, held));
            kept = grown;
          }
          kept.set(piece, held);
          line = kept.subarray(0, length);
        }
        held = at < 0 ? length : 0;
        if (at < 0) return;
        from = at + 1;
        heard(line);
      }
    },
    end: () => finish("", "the connection ended"),
    call(op, params = {}, follower) {
      return new Promise((resolve, reject) => {
        if (over) return reject(new Refused("lost", "the connection ended"));
        const go = () => {
          if (over) return reject(new Refused("lost", "the connection ended"));
          const id = ++last;
          const line = JSON.stringify({ op, id, ...params });
          // UTF-8 has at most three bytes for a UTF-16 unit.
          if (line.length * 3 > MAX_LINE && new TextEncoder().encode(line).length > MAX_LINE) return reject(new Refused("limit", "the request is too long"));
          open.set(id, { resolve, reject, on: follower, follow: op == "follow" });
          follower?.started?.(id);
          write(line);
        };
        if (open.size < MAX_OPEN && !waiting.length) go();
        else if (waiting.length < MAX_WAITING) waiting.push(go);
        else reject(new Refused("busy", "too many requests wait"));
      });
    },
    sessions,
    get complete() {
      return complete;
    },
  };
};
