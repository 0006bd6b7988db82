// One live channel: it owns the socket, the timers and the clock, and does what
// judge, funnel and outbox say. Nothing here reads readyState: what a browser
// believes about a socket is not evidence.

import { quiet, type Channel } from "./channels.js";
import { codeOfRefusal, holdfast, type Profile } from "./codes.js";
import { createFunnel, type Action, type Failure } from "./funnel.js";
import { createJudge, PING, PONG, TEXT, type Effects, type Judge } from "./judge.js";
import { createOutbox, type Loss, type OutboxLimits } from "./outbox.js";
import type { Instant } from "./time.js";

/** What is needed of a WebSocket. */
export interface SocketLike {
  onopen: ((e: any) => void) | null;
  onmessage: ((e: any) => void) | null;
  onerror: ((e: any) => void) | null;
  onclose: ((e: any) => void) | null;
  send(data: string): void;
  close(): void;
}

/** Timers of one's own: a Worker's (see workerTimers), or a test's. */
export interface Timers {
  setTimeout(f: () => void, ms?: number): any;
  clearTimeout(id: any): void;
}

/**
 * connecting: the first attempt. live: ready, and proven. suspect: a question
 * has been open for a second. reconnecting: lost, coming back by itself.
 * offline: as before, and the system says that there is no network. ended: the
 * proper end, or close(). refused: the server will not have us; `why` says why.
 */
export type LiveState = "connecting" | "live" | "suspect" | "reconnecting" | "offline" | "ended" | "refused";

/** What a person may be told. A new object when anything but the proof changes. */
export interface Status {
  readonly state: LiveState;
  /** When the last proof of life had arrived; see Live.proof. */
  readonly proof: number;
  /** How the newest connection that failed did. */
  readonly why: Failure | undefined;
  /** When the next attempt is due, as the wall clock says it; Infinity: none is pending. */
  readonly retryAt: number;
  /** Sockets given up whose end the browser has not reported yet. */
  readonly retired: number;
}

/**
 * What became of something that was sent. queued: it waits for a connection.
 * sent: handed to the socket, which proves nothing. confirmed: the server said
 * so. expired: it waited too long and was not sent. dropped: not sent, see `why`.
 */
export interface Receipt {
  readonly state: "queued" | "sent" | "confirmed" | "expired" | "dropped";
  readonly why: Loss | "failed" | undefined;
  /** For an acknowledgement that `confirm` of SendOptions cannot see. */
  confirm(): void;
}

export interface SendOptions {
  /** Whether a message of the server says that this arrived; asked for each one after it was sent. */
  confirm?(message: any): boolean;
}

export interface LiveOptions {
  /** A function is asked again at every attempt. */
  url: string | (() => string);
  /** How server and page talk below the channel; absent: holdfast. */
  profile?: Profile | undefined;
  /** The numbers of this kind of channel; absent: quiet. */
  channel?: Channel | undefined;
  /** Whose queue it is: account, machine and channel in one string. See Live.context. */
  context?: string | undefined;
  /** What may wait to be sent; absent: 64 messages, 64 KiB, two minutes. */
  limits?: OutboxLimits | undefined;
  /** A bearer token, sent as a subprotocol and to `access`; a function is asked again at every attempt. */
  token?: string | (() => string) | undefined;
  /** Where to ask why a socket never opened, which a browser does not tell: the server's /v1/access. */
  access?: string | undefined;
  /** Whether the server says or asks something once this channel is open. Where it does not, the page asks, and the pong makes the channel ready. Absent: true, for hydro false. */
  greets?: boolean | undefined;
  /** A message of the server, parsed. Error frames of a ready channel are messages too. What is no JSON counts as life and comes to nobody. */
  message?(message: any): void;
  /** Every time that the channel is ready; reports and queue have gone out. */
  ready?(): void;
  /** Makes the socket; absent: new WebSocket. */
  socket?(url: string, protocols?: string[]): SocketLike;
  /** Asks on the socket; absent: the profile's ping. */
  probe?(socket: SocketLike): void;
  now?(): Instant;
  timers?: Timers | undefined;
  random?: (() => number) | undefined;
  /** Where the page's events come from; absent: globalThis. */
  page?: any;
}

export interface Live {
  readonly status: Status;
  /** When anything arrived last, as the wall clock says it (Date.now()); 0: never. The status has it as it was when the state changed. */
  proof(): number;
  /** Calls f after every change of the status or of a receipt. Returns the way to stop it. */
  subscribe(f: () => void): () => void;
  /** Connects: the first time, after an end or a refusal, and at once where a wait runs. A live socket is left alone. */
  reopen(): void;
  /** Ends the channel until reopen(). No event of the page undoes that. */
  close(): void;
  /** Sends a value as JSON. */
  send(value: unknown, options?: SendOptions): Receipt;
  /**
   * What is true now under a key (what one looks at, is doing): sent now, and
   * first on every later connection, in its newest form. A function is asked
   * when it is sent.
   */
  report(key: string, value: unknown | (() => unknown), options?: SendOptions): Receipt;
  withdraw(key: string): void;
  /** Changes account, machine or channel: what waits is dropped, reports are forgotten, the connection is replaced. */
  context(name: string): void;
}

/** A question that is open for less is nothing that a person should see. */
const SHOW_SUSPECT = 1e3;
/** How often both clocks are looked at, and how coarse expiry is. Half doubles the wake-ups, double lets a link that sleep killed look alive for 10 s. */
const LOOK = 5e3;
/** Page events come in bursts (resume, pageshow, visible, focus, online); together they ask once. */
const DEBOUNCE = 100;
/** Chromium reports the end of a half-open socket 60 s after close(), and some browsers never: then it is forgotten. */
const RETIRED_AGE = 12e4;
/** Each of them holds one of the browser's connections to the host; at two a minute this many are never reached by a healthy path. */
const MAX_RETIRED = 8;
/** How long to wait for the answer to why a socket never opened: as long as for the upgrade. */
const ACCESS_LIMIT = 1e4;
/** An error is followed by the close that has the code; if not, this is the end. */
const CLOSE_AFTER_ERROR = 500;

const resolve = <T>(v: T | (() => T)): T => (typeof v == "function" ? (v as () => T)() : v);

interface Item {
  receipt: { -readonly [K in keyof Receipt]: Receipt[K] };
  text: () => string;
  confirm: SendOptions["confirm"];
}

export const createLive = (o: LiveOptions): Live => {
  const {
    profile = holdfast,
    channel = quiet,
    limits = { count: 64, bytes: 65536, age: 12e4 },
    greets = !profile.pongAfterOpen,
    now = () => ({ mono: performance.now(), wall: Date.now() }),
    page = globalThis,
    access,
    socket: open = (url, protocols) => new WebSocket(url, protocols),
    probe = (s) => s.send(profile.ping),
    timers: { setTimeout, clearTimeout } = globalThis,
  } = o;

  let socket: SocketLike | undefined;
  let current = 0; // the number of the socket
  let judge: Judge;
  let effects: Effects | undefined; // the judge's last; undefined: nothing to judge
  let running = false;
  let held = false; // put away by the browser, perhaps for good
  let proof = 0;
  let offline = false; // the system said so, and nothing has arrived since
  let answerDue = Infinity;
  let suspectAt = Infinity; // when an open question is worth showing
  let armed = Infinity;
  let timer: any;
  let looking: any;
  let shown = ""; // what the status was made of
  let status: Status;

  const subscribers = new Set<() => void>();
  const retired = new Set<SocketLike>();
  const unconfirmed = new Set<Item>();

  /** Runs what belongs to the site, so that nothing in it can stop recovery. */
  const call = <T>(f: () => T): T | undefined => {
    try {
      return f();
    } catch (e) {
      console.error(e);
    }
  };

  /** Runs what throws where the socket is gone. */
  const attempt = (f: () => void) => {
    try {
      f();
    } catch (e) {
      fail({ reason: "" + e });
    }
  };

  const mark = ({ receipt }: Item, state: Receipt["state"], why?: Receipt["why"]) => {
    receipt.state = state;
    receipt.why = why;
    shown = "";
  };

  const lose = (item: Item, why: Loss) => mark(item, why == "expired" ? why : "dropped", why);

  const funnel = createFunnel({ profile, backoff: channel.backoff, random: o.random });
  const outbox = createOutbox(limits, lose, o.context);
  let action = funnel.tick(now());

  const perform = (a: Action) => {
    action = a;
    if (a.retire) retire();
    if (a.connect) dial(a.connect);
    if (a.probe) judged(judge.wake(now()));
    if (running && a.phase == "stopped") {
      running = false;
      listen("remove");
      outbox.clear();
      unconfirmed.clear();
    }
  };

  const fail = (why: Failure, n = current) => perform(funnel.fail(now(), n, why));

  const judged = (e: Effects) => {
    effects = e;
    suspectAt = e.state == "suspect" ? Math.min(suspectAt, now().mono + SHOW_SUSPECT) : Infinity;
    if (e.probes) attempt(ask);
    if (e.dead) fail({ reason: e.dead });
  };

  const ask = () => probe(socket!);

  const retire = () => {
    const s = socket;
    effects = socket = undefined;
    answerDue = suspectAt = Infinity;
    if (s) {
      const forget = () => {
        retired.delete(s);
        emit();
      };
      retired.add(s);
      s.onopen = s.onmessage = s.onerror = () => {};
      s.onclose = forget;
      setTimeout(forget, RETIRED_AGE);
      call(() => s.close());
    }
  };

  const dial = (n: number) => {
    current = n;
    judge = createJudge(channel);
    judged(judge.start(now()));
    attempt(() => {
      if (retired.size >= MAX_RETIRED) throw "too many sockets are closing";
      const token = resolve(o.token);
      const protocols = token ? ["holdfast.v1", "holdfast.bearer." + token] : [];
      const s = (socket = open(resolve(o.url), protocols));
      s.onopen = () => {
        const t = now();
        perform(funnel.opened(t, n));
        judged(judge.opened(t));
        if (!channel.ready) ready(t);
        else if (!greets) attempt(ask);
        settle();
      };
      s.onmessage = arrived;
      const gone = async ({ code, reason }: Failure) => {
        let why: Failure = { code, reason };
        if (access && action.phase == "dialing") {
          // A browser hides how the upgrade was answered.
          try {
            const { status, headers } = await fetch(access, {
              headers: { authorization: "Bearer " + token },
              signal: AbortSignal.timeout(ACCESS_LIMIT),
            });
            const refusal = headers.get("holdfast-refusal");
            why = {
              code: codeOfRefusal(status, !!refusal),
              reason: refusal ?? reason,
              after: +headers.get("retry-after")! * 1e3 || 0,
            };
          } catch {}
        }
        fail(why, n);
        settle();
      };
      s.onclose = (e: Failure) => {
        socket = undefined;
        gone(e);
      };
      s.onerror = () => setTimeout(() => socket == s && gone({}), CLOSE_AFTER_ERROR);
    });
  };

  const ready = (t: Instant) => {
    perform(funnel.ready(t, current));
    judged(judge.ready(t));
    outbox.connected();
  };

  const arrived = ({ data }: { data: any }) => {
    const t = now();
    const s = socket!;
    const first = action.phase == "open";
    const kind = data == profile.ping ? PING : data == profile.pong ? PONG : TEXT;
    let message: any;
    try {
      if (kind == TEXT) message = JSON.parse(data);
    } catch {}
    proof = t.wall;
    offline = false;
    answerDue = Infinity;
    if (first) {
      // Nothing was asked before, so an error is the whole channel's. The close
      // behind it may never come.
      if (message?.error) fail({ code: 4000, reason: message.error.name });
      else if (kind != PONG || !greets) ready(t);
    }
    if (socket == s) judged(judge.inbound(t, kind));
    if (socket == s && kind == PING) attempt(() => s.send(profile.pong));
    if (message !== undefined) for (const item of unconfirmed) if (call(() => item.confirm!(message))) item.receipt.confirm();
    settle();
    if (socket == s) {
      if (first && action.phase == "up") call(() => o.ready?.());
      if (message !== undefined) call(() => o.message?.(message));
    }
  };

  /** Sends what may go. While a question is open things wait: what a dead socket takes is lost. */
  const flush = () => {
    for (let item: Item | undefined; action.phase == "up" && effects!.state == "alive" && (item = outbox.next(now())); ) {
      const { text, confirm } = item;
      const data = call(text);
      mark(item, "dropped", "failed"); // until it is sent
      if (data !== undefined)
        attempt(() => {
          socket!.send(data);
          mark(item!, "sent");
          if (confirm) unconfirmed.add(item!);
          for (const old of unconfirmed) if (unconfirmed.size > limits.count) unconfirmed.delete(old);
          answerDue = Math.min(answerDue, now().mono + (channel.answer ?? Infinity));
        });
    }
  };

  /** One timer for the next deadline, armed in the handler of what changed it: chained timers of a hidden page run once a minute. */
  const arm = () => {
    const { mono } = now();
    const at = held ? Infinity : Math.min(action.next, effects?.next ?? Infinity, answerDue, suspectAt > mono ? suspectAt : Infinity);
    if (at != armed) {
      clearTimeout(timer);
      armed = at;
      if (at < Infinity) timer = setTimeout(fire, Math.max(0, at - mono));
    }
  };

  /** Reads before it judges: what waits in the socket is delivered before the tick. */
  const fire = () => {
    const t = now();
    armed = Infinity;
    setTimeout(() => {
      if (effects) judged(judge.tick(t));
      perform(funnel.tick(t));
      if (t.mono >= answerDue) {
        answerDue = Infinity;
        judged(judge.wake(t));
      }
      outbox.expire(t);
      settle();
    });
  };

  const look = () => {
    if (running) {
      if (!held) fire();
      setTimeout(look, LOOK);
    }
  };

  const emit = () => {
    const { mono, wall } = now();
    const { phase, next } = action;
    const why = funnel.why();
    const state: LiveState =
      phase == "stopped" ? (why && why.code != profile.ended ? "refused" : "ended")
      : offline ? "offline"
      : phase == "up" ? (mono < suspectAt ? "live" : "suspect")
      : why ? "reconnecting"
      : "connecting";
    const made = state + next + retired.size;
    if (made != shown) {
      shown = made;
      status = { state, proof, why, retryAt: wall + next - mono, retired: retired.size };
      for (const f of subscribers) call(f);
    }
  };

  const settle = () => {
    flush();
    arm();
    emit();
  };

  const onPage = ({ type, persisted }: any) => {
    if (type == "offline") offline = true;
    else if (type == "pagehide") {
      if (persisted) {
        held = true;
        fail({ code: 1001, reason: "page hidden" });
      }
    } else if (type[0] != "v" || page.document.visibilityState == "visible") {
      if (type == "online") offline = false;
      held = false;
      looking ??= setTimeout(() => {
        looking = undefined;
        perform(funnel.wake(now()));
        settle();
      }, DEBOUNCE);
    }
    settle();
  };

  const listen = (how: "add" | "remove") => {
    for (const type of ["pageshow", "pagehide", "online", "offline", "focus", "visibilitychange", "resume"])
      (/^[vr]/.test(type) ? page.document : page)?.[`${how}EventListener`]?.(type, onPage);
  };

  const reopen = () => {
    held = false;
    perform(funnel.start(now()));
    if (!running) {
      running = true;
      listen("add");
      look();
    }
    settle();
  };

  const close = () => {
    perform(funnel.stop(now()));
    settle();
  };

  const create = (text: () => string, { confirm }: SendOptions = {}): Item => {
    const item: Item = {
      receipt: {
        state: "queued",
        why: undefined,
        confirm() {
          unconfirmed.delete(item);
          mark(item, "confirmed");
        },
      },
      text,
      confirm,
    };
    return item;
  };

  emit();

  return {
    get status() {
      return status;
    },
    proof: () => proof,
    subscribe(f) {
      subscribers.add(f);
      return () => subscribers.delete(f);
    },
    reopen,
    close,
    send(value, options) {
      // As it is now, whatever becomes of the value while it waits.
      const data = JSON.stringify(value);
      const item = create(() => data, options);
      if (action.phase == "stopped") lose(item, "contextEnded");
      else outbox.push(now(), new Blob([data]).size, item);
      settle();
      return item.receipt;
    },
    report(key, value, options) {
      const item = create(() => JSON.stringify(resolve(value)), options);
      outbox.report(key, item);
      settle();
      return item.receipt;
    },
    withdraw: outbox.withdraw,
    context(name) {
      if (outbox.context(name) && running) {
        close();
        reopen();
      }
    },
  };
};
