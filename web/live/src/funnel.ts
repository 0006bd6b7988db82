// The life of one channel over all its sockets: every failure goes in, at most
// one live socket and one pending reconnect come out. No socket, no timer.

import { classOf, MAX_PEER_DELAY, restartDelay, type Profile } from "./codes.js";
import { createWatch, type Instant } from "./time.js";

/** Every wait is uniform between nothing and a ceiling: thousands that lost one server must not come back as a wave. */
export interface Backoff {
  /** The ceiling after the first failure; absent: base. ms. */
  first?: number;
  /** Doubles with every failure after the first, up to cap; ms. */
  base: number;
  cap: number;
}

/** Pages: the first wait is spread over 3 s, because all pages of a server lose it at once. */
export const pageBackoff: Backoff = { first: 3e3, base: 1e3, cap: 15e3 };
/** A channel whose lease is 30 s. */
export const timingBackoff: Backoff = { first: 3e3, base: 1e3, cap: 5e3 };

/** The longest wait after a number of failures in a row, from 1. */
export const ceiling = ({ first, base, cap }: Backoff, failures: number): number =>
  Math.min(failures < 2 && first ? first : base * 2 ** (failures - 1), cap);

/** A connection ready for so long starts the backoff anew: longer than a server takes to fall over whoever comes. */
export const STABLE_AFTER = 1e4;
/** The least time between two attempts: network events come in bursts. */
export const MIN_ATTEMPT_GAP = 250;
/** The least wait after an answer of class later. */
export const LATER_MIN = 1e3;
/** An unattended program asks again so long after a terminal answer, give or take a quarter. */
export const UNATTENDED_RETRY = 36e5;

/** How a connection ended. */
export interface Failure {
  /** The close code; absent: 1006. */
  code?: number | undefined;
  reason?: string | undefined;
  /** A wait that the peer asked for otherwise (Retry-After); ms. */
  after?: number | undefined;
}

export type Phase = "idle" | "waiting" | "dialing" | "open" | "up" | "stopped";

/** What the owner of a channel does after an event, in this order. */
export interface Action {
  /** Forget this socket, detach from it, then close it as best one can, waiting for nothing. 0: none. */
  retire: number;
  /** Dial now, under this number. 0: no. */
  connect: number;
  /** Wake the live socket's judge. */
  probe: boolean;
  /** The monotonic time at which to call tick; Infinity for none. */
  next: number;
  phase: Phase;
}

export interface FunnelOptions {
  profile: Profile;
  backoff: Backoff;
  /** Uniform in [0, 1). Absent: Math.random. */
  random?: (() => number) | undefined;
  /** For a program that nobody watches: a terminal answer other than 4409 is asked again hourly. */
  unattended?: boolean | undefined;
  /** What this process calls itself: a 4409 that names it is its own doing. */
  instance?: string | undefined;
}

export interface Funnel {
  /** The person's act: connect, also after a stop, whatever the wait. */
  start(now: Instant): Action;
  /** The person's act: nothing connects until start. */
  stop(now: Instant): Action;
  opened(now: Instant, socket: number): Action;
  ready(now: Instant, socket: number): Action;
  /** A socket is over, by whatever cause. Of one that is not the present one: changes nothing. */
  fail(now: Instant, socket: number, why: Failure): Action;
  /** The peer asks to be left after a delay. */
  drain(now: Instant, socket: number, after: number): Action;
  /** Network change, page to the front: skips a wait, probes a live socket, undoes no stop. */
  wake(now: Instant): Action;
  tick(now: Instant): Action;
  /** The newest failure; undefined before the first, after stop and after start from a stop. */
  why(): Failure | undefined;
}

const NONE = -Infinity;

export const createFunnel = (o: FunnelOptions): Funnel => {
  const { profile, backoff, random = Math.random } = o;
  const slept = createWatch();
  let phase: Phase = "idle";
  let live = 0; // the socket that is live or being dialled
  let last = 0; // the newest number given out
  let due = 0;
  let failures = 0;
  let readyAt = 0;
  let attemptAt = NONE;
  let why: Failure | undefined;
  let a: Action;
  // What pages do not have: the pending attempt follows a terminal answer; when
  // a drain's delay has passed.
  const more = FULL ? { hourly: false, drainAt: NONE } : (undefined as never);

  const retire = () => {
    a.retire = live;
    live = 0;
    if (FULL) more.drainAt = NONE;
  };

  const wait = (now: Instant, delay: number) => {
    phase = "waiting";
    due = now.mono + delay;
    if (FULL) more.hourly = false;
  };

  const wake = (now: Instant) => {
    if (phase == "waiting" && !(FULL && more.hourly)) due = Math.min(due, now.mono);
    if (phase == "open" || phase == "up") a.probe = true;
  };

  /** One event: what it changes, then what is due. One of a socket that is not the present one changes nothing. */
  const event =
    (change?: (now: Instant, arg: any) => void, ofSocket?: boolean) =>
    (now: Instant, socket?: number, arg?: unknown): Action => {
      a = { retire: 0, connect: 0, probe: false, next: Infinity, phase };
      if (!ofSocket || (socket && socket == live)) change?.(now, arg);
      if (slept(now)) wake(now);
      if (FULL && live && more.drainAt > NONE) {
        if (now.mono >= more.drainAt) {
          // Planned: the peer has spread its clients already.
          why = { code: 1012, reason: "drain" };
          a.probe = false;
          retire();
          wait(now, 0);
        } else a.next = more.drainAt;
      }
      if (phase == "waiting") {
        due = Math.max(due, attemptAt + MIN_ATTEMPT_GAP);
        if (now.mono >= due) {
          a.connect = live = ++last;
          phase = "dialing";
          attemptAt = now.mono;
        } else a.next = due;
      }
      a.phase = phase;
      return a;
    };

  return {
    start: event((now) => {
      if (phase == "idle" || phase == "stopped") {
        failures = 0;
        why = undefined;
        wait(now, 0);
      } else if (phase == "waiting") wait(now, Math.min(0, due - now.mono));
    }),
    stop: event(() => {
      retire();
      why = undefined;
      phase = "stopped";
    }),
    opened: event(() => {
      if (phase == "dialing") phase = "open";
    }, true),
    ready: event((now) => {
      if (phase != "up") {
        phase = "up";
        readyAt = now.mono;
      }
    }, true),
    fail: event((now, failure: Failure) => {
      const { code = 1006, reason = "", after = 0 } = failure;
      const stable = phase == "up" && now.mono - readyAt >= STABLE_AFTER;
      const drained = FULL && more.drainAt - now.mono;
      let is = classOf(profile, code);
      why = failure;
      retire();
      // A 4409 that names us: our own newer attempt won and has failed since.
      if (FULL && code == 4409 && o.instance && reason.split(/[ =:"]/).includes(o.instance)) is = "counted";
      if (is == "stop") {
        phase = "stopped";
        if (FULL && o.unattended && code != 4409) {
          failures++;
          wait(now, (0.75 + random() / 2) * UNATTENDED_RETRY);
          more.hourly = true;
        }
        return;
      }
      if (stable && (is == "back" || is == "delayed")) failures = 0;
      const delay = random() * ceiling(backoff, ++failures);
      const asked = is == "delayed" ? restartDelay(reason) : undefined;
      wait(
        now,
        Math.max(
          // A delay that the close names is newer than what a drain said.
          asked ?? (drained ? Math.max(delay, drained) : delay),
          is == "later" ? LATER_MIN : 0,
          Math.min(after, MAX_PEER_DELAY),
        ),
      );
    }, true),
    ...((FULL && {
      drain: event((now, after: number) => {
        more.drainAt = now.mono + Math.min(Math.max(after, 0), MAX_PEER_DELAY);
      }, true),
    }) as Pick<Funnel, "drain">),
    wake: event(wake),
    tick: event(),
    why: () => why,
  };
};
