// Messages on their way to a session. Each is kept from before it is sent until
// the machine has taken it or the person has done with it: a page that is closed
// or killed in between finds it again, under the same key, so that sending it
// again types nothing twice. A password is kept nowhere.

import { createStore, type Store } from "../store/state.js";
import { newKey } from "./key.js";
import { readOutcome, Refused } from "./model.js";
import { oneLine } from "./plain.js";
import type { request } from "./remote.js";

/** What stays of a message when its page is gone. */
export interface KeptReply {
  key: string;
  text: string;
  /** When it was sent first, ms. */
  at: number;
  /** lost: not known whether it arrived, which is what a page that was closed meanwhile leaves. The last two: it was not typed. */
  state: "lost" | "unconfirmed" | "failed" | "composer";
  /** The machine's words: a reason, or what stands in its input box. */
  words: string;
  /** Of a refusal. */
  code: string;
  append: boolean;
}

export interface Reply extends Omit<KeptReply, "state"> {
  state: KeptReply["state"] | "sending" | "sent" | "typed" | "accepted";
  secret: boolean;
  /** Sent by a page that is gone. */
  found: boolean;
}

/** A machine knows a key for a day (docs/sessions.md); an hour of it is for clocks and paths. */
const KNOWN = 23 * 3600e3;
/** What was accepted is said for so long, ms. */
const SAID = 5000;
/** A message waits so long for the browser's storage, ms; one that is never kept is better than one that is never sent. */
const STORE = 1000;

/**
 * Codes that a machine gives after it has looked for a message's key and has not
 * found it. Any other refusal of one that was sent before says nothing about the
 * first time: the connection had gone again, or the machine was busy or ending.
 */
const NEW_THERE = new Set(["no-session", "dialog-open", "composer", "no-composer", "password"]);

/** Sending it again types nothing twice. */
export const safeAgain = (r: Reply, now = Date.now()): boolean => !!r.text && (r.state == "failed" || (r.state == "lost" && now - r.at < KNOWN));

/** The machine, this browser's storage, and the time. */
export interface Ways {
  request: typeof request;
  /** Whether it is kept. clear: the draft that it was written as goes in the same act. */
  keep(machine: string, session: string, r: KeptReply, clear: boolean): Promise<boolean>;
  /** The draft goes, where it still is this text or its beginning. */
  clear(machine: string, session: string, text: string): Promise<unknown>;
  drop(machine: string, session: string, key: string): Promise<unknown>;
  kept(machine: string, session: string): Promise<KeptReply[]>;
  now(): number;
}

export class Outbox {
  readonly shown: Store<readonly Reply[]> = createStore<readonly Reply[]>([]);

  constructor(
    private readonly machine: string,
    private readonly session: string,
    private readonly how: Ways,
  ) {
    void how.kept(machine, session).then((all) => {
      const there = new Set(this.shown.value.map((r) => r.key));
      const found = all.filter((r) => !there.has(r.key)).map((r): Reply => ({ ...r, secret: false, found: true }));
      if (found.length) this.shown.set((s) => [...found.sort((a, b) => a.at - b.at), ...s]);
    });
  }

  private change(r: Reply, change: Partial<Reply>): Reply {
    const next = { ...r, ...change };
    this.shown.set((all) => all.map((x) => (x.key == r.key ? next : x)));
    return next;
  }

  /** clear: the draft it was written as goes when it is kept. */
  private keep(r: Reply, clear = false): Promise<boolean> {
    if (r.secret) return Promise.resolve(true);
    const { key, text, at, words, code, append } = r;
    const state = r.state == "unconfirmed" || r.state == "failed" || r.state == "composer" ? r.state : "lost";
    return this.how.keep(this.machine, this.session, { key, text, at, state, words, code, append }, clear);
  }

  /** Sends what the person has written; secret: a password. */
  send(text: string, secret = false): Promise<void> {
    const r: Reply = { key: newKey(), text: secret ? "" : text, at: this.how.now(), state: "sending", words: "", code: "", append: false, secret, found: false };
    this.shown.set((all) => [...all.filter((x) => x.state != "accepted"), r]);
    return this.deliver(r, text, true, false);
  }

  /** The same message once more; append: behind what stands in the input box. */
  async again(key: string, append = false): Promise<void> {
    const r = this.shown.value.find((x) => x.key == key);
    if (r?.text) await this.deliver(this.change(r, { state: "sending", words: "", code: "", append: append || r.append, found: false }), r.text, false, r.state == "lost");
  }

  /** doubt: it was sent before, and may have arrived. */
  private async deliver(r: Reply, text: string, clear: boolean, doubt: boolean): Promise<void> {
    let late: ReturnType<typeof setTimeout> | undefined;
    const keeping = this.keep(r, clear);
    await Promise.race([keeping, new Promise((go) => (late = setTimeout(go, STORE)))]);
    clearTimeout(late);
    const params = { session: this.session, key: r.key, text, ...(r.append && { append: true }), ...(r.secret && { secret: true }) };
    try {
      const out = readOutcome(await this.how.request(this.machine, "reply", params, { receipt: (s) => this.change(r, { state: s == "typed" ? "typed" : "sent" }) }));
      const now = this.change(r, { state: out.state, words: oneLine(out.state == "accepted" ? out.evidence : out.reason) });
      if (out.state != "accepted") return void (await this.keep(now));
      void this.how.drop(this.machine, this.session, r.key);
      // Storage that is full has kept neither, and takes things away all the same.
      void keeping.then((kept) => kept || this.how.clear(this.machine, this.session, text));
      setTimeout(() => this.hide(r.key), SAID);
    } catch (e) {
      const why = e instanceof Refused ? e : new Refused("failed", String(e));
      if (why.code == "lost" || (doubt && !NEW_THERE.has(why.code))) this.change(r, { state: "lost" });
      else await this.keep(this.change(r, why.code == "composer" ? { state: "composer", words: oneLine(why.text) } : { state: "failed", words: oneLine(why.message), code: why.code }));
    }
  }

  private hide(key: string): void {
    this.shown.set((all) => all.filter((r) => r.key != key));
  }

  /** Another page has done with it: it was accepted there, or put away. One that this page is sending has an end of its own. */
  gone(key: string): void {
    const r = this.shown.value.find((x) => x.key == key);
    if (r?.found) this.hide(key);
  }

  /** The person has done with it. */
  drop(key: string): void {
    this.hide(key);
    void this.how.drop(this.machine, this.session, key);
  }
}
