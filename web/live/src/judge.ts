// When one socket is dead: evidence and time in, probes and a verdict out. No
// socket, no timer, no clock. The rules are those of docs/liveness.md, and the
// vectors of testdata/vectors/liveness are their specification.

import { createWatch, LATE_TICK, type Instant } from "./time.js";

/** Bits of what can be asked: a ping frame of RFC 6455 (a page cannot send one), or the channel's own ping. */
export const PROTOCOL = 1;
export const APPLICATION = 2;

/** What arrived. Each kind is also all that stand before it. */
export const BYTE = 1;
export const FRAME = 2;
export const TEXT = 3;
/** The peer's own question, in a text frame. */
export const PING = 4;
/** The answer to ours, in a text frame. */
export const PONG = 5;
export type Arrival = 1 | 2 | 3 | 4 | 5;

/** One question and the rule that judges by it. */
export interface Track {
  /** PROTOCOL or APPLICATION; 0 asks nothing and waits for the peer's own heartbeat. */
  probe: number;
  /** The lowest kind of arrival that is life here. */
  counts: Arrival;
  /** Raises `counts` to TEXT once the peer has sent a PING. */
  textOnceAsked?: boolean;
  /** How long quiet is normal, then how long an answer may take; ms. */
  idle: number;
  window: number;
  /** Sends the probe when ready and then this often, whatever arrives; ms. */
  beat?: number;
  /** Judges only after an application pong was seen (true), or only until then (false); absent: always. */
  answered?: boolean;
}

/** Judges sooner while a person types. */
export interface TypingRule {
  /** So long without sending starts a new burst; ms. */
  quiet: number;
  /** A larger burst is a paste or a copy, and judges nothing. */
  maxBytes: number;
  /** Unanswered for `idle`: a probe; for `window` more: dead; ms. */
  idle: number;
  window: number;
}

/** How one kind of connection is judged. */
export interface JudgeConfig {
  /** From dialling to open; ms. Absent: not judged here. */
  handshake?: number;
  /** From open to ready; ms. Absent: open is ready. */
  ready?: number;
  /** A PROTOCOL probe this often, so that no proxy sees an idle link; judges nothing. */
  keepalive?: number;
  tracks: readonly Track[];
  typing?: TypingRule;
}

export type Verdict =
  | "handshake timed out"
  | "ready timed out"
  | "probe timed out"
  | "typing probe timed out"
  | "silent";

export type SocketState = "connecting" | "opening" | "alive" | "suspect" | "dead";

/** What the owner of a connection does after an event. */
export interface Effects {
  /** Bits of the probes to send now, waiting for nothing. */
  probes: number;
  /** Said once: give the connection up. */
  dead?: Verdict;
  /** The monotonic time at which to call tick; Infinity for none. Replaces the one before. */
  next: number;
  state: SocketState;
}

/**
 * The judge of one socket; every new socket gets a new one. Every method is one
 * event and returns what to do. Report what has arrived before a tick that may
 * judge, and tell of every pause of your own reading.
 */
export interface Judge {
  /** Dialling begins. Always first. */
  start(now: Instant): Effects;
  /** The upgrade was answered. */
  opened(now: Instant): Effects;
  /** The channel does its work; implies opened. */
  ready(now: Instant): Effects;
  /** Something arrived: the highest kind that it held. */
  inbound(now: Instant, kind: Arrival): Effects;
  /** Own data went to the socket; `unsent` waited there before it (bufferedAmount). */
  sent(now: Instant, bytes: number, unsent: number): Effects;
  /** This side stopped reading, or reads again. */
  pause(now: Instant, paused: boolean): Effects;
  /** Network change, page to the front: asks at once. */
  wake(now: Instant): Effects;
  /** Time passed. Early and late calls do no harm. */
  tick(now: Instant): Effects;
}

const NEVER = Infinity;
const NONE = -Infinity;

export const createJudge = (config: JudgeConfig): Judge => {
  const { handshake, ready: readyLimit, keepalive, typing } = config;
  const slept = createWatch();
  let state: SocketState = "connecting";
  let began = 0;
  let asked = NEVER; // the next tick that was asked for last
  let paused = false;
  let pongSeen = false;
  let pingSeen = false;
  let keepaliveDue = 0;
  // The typing rule: bytes since the last quiet second, the last send, whether
  // the socket was empty when the burst began, the first unanswered byte.
  let burst = 0;
  let sentAt = NONE;
  let clean = false;
  let armed = NONE;
  let typingWindow = NONE;
  let typingReprieve = false;

  const tracks = config.tracks.map((rule) => ({
    rule,
    evidence: 0, // last arrival that counts
    probed: NONE, // newest probe; outstanding if after evidence
    beat: 0,
    window: NONE, // when the open question is decided
    reprieve: false, // it had its one fresh window
  }));

  type State = (typeof tracks)[number];

  const settle = (t: State, now: Instant) => {
    t.evidence = now.mono;
    t.window = NONE;
    t.reprieve = false;
  };

  const disarm = () => {
    armed = typingWindow = NONE;
  };

  const judges = ({ rule }: State) => !paused && (rule.answered ?? pongSeen) === pongSeen;

  /** Notes a probe for every track that it can answer. */
  const send = (probe: number, now: Instant) => {
    if (probe & PROTOCOL && keepalive) keepaliveDue = now.mono + keepalive;
    for (const t of tracks) {
      if (t.rule.probe & probe) {
        t.probed = now.mono;
        t.beat = now.mono + (t.rule.beat ?? 0);
      }
    }
    return probe;
  };

  /** Opens or renews a question. */
  const ask = (t: State, now: Instant) => {
    t.window = now.mono + t.rule.window;
    return send(t.rule.probe, now);
  };

  const step = (now: Instant, woken?: boolean): Effects => {
    const hasSlept = slept(now);
    // Against the tick that was asked for, not against the window to be judged:
    // a stop that hid an earlier tick hid arrivals as well.
    const late = now.mono - asked > LATE_TICK;
    const e: Effects = { probes: 0, next: (asked = NEVER), state };
    const die = (dead: Verdict): Effects => ({ probes: 0, dead, next: (asked = NEVER), state: (state = "dead") });
    const due = (at: number) => {
      if (at < e.next) asked = e.next = at;
    };

    if (state == "dead") return e;
    if (state != "alive") {
      const opening = state == "opening";
      const limit = opening ? readyLimit : handshake;
      if (limit) {
        due(began + limit);
        if (now.mono >= e.next) return die(opening ? "ready timed out" : "handshake timed out");
      }
      return e;
    }

    if (hasSlept || woken) {
      for (const t of tracks) {
        if (!judges(t)) continue;
        if (t.window > NONE) {
          if (hasSlept && !t.reprieve) {
            t.reprieve = true;
            e.probes |= ask(t, now);
          }
        } else if (t.rule.probe) {
          // Who asks nothing keeps his time: a stepped clock must not hurry a
          // peer that nobody asks.
          e.probes |= ask(t, now);
        }
      }
      if (hasSlept) disarm();
    }

    for (const t of tracks) {
      const { rule } = t;
      if (rule.beat) {
        if (now.mono >= t.beat) e.probes |= send(rule.probe, now);
        due(t.beat);
      }
      if (!judges(t)) continue;
      const quiet = t.evidence + rule.idle;
      if (t.window > NONE) {
        if (now.mono >= t.window) {
          if (!late || t.reprieve) return die(rule.probe ? "probe timed out" : "silent");
          t.reprieve = true;
          e.probes |= ask(t, now);
        }
      } else if (now.mono >= quiet) {
        // A beat or a keepalive may have asked already.
        if (t.probed > t.evidence && !late) t.window = quiet + rule.window;
        else e.probes |= ask(t, now);
      }
      if (t.window > NONE) {
        e.state = "suspect";
        due(t.window);
      } else due(quiet);
    }

    if (typing && armed > NONE) {
      const open = typingWindow > NONE;
      if (now.mono >= (open ? typingWindow : armed + typing.idle)) {
        if (open) {
          if (!late || typingReprieve) return die("typing probe timed out");
          typingReprieve = true;
        }
        typingWindow = now.mono + typing.window;
        e.probes |= send(PROTOCOL, now);
      }
      if (typingWindow > NONE) e.state = "suspect";
      due(typingWindow > NONE ? typingWindow : armed + typing.idle);
    }

    if (keepalive) {
      if (now.mono >= keepaliveDue) e.probes |= send(PROTOCOL, now);
      due(keepaliveDue);
    }
    return e;
  };

  const becomeReady = (now: Instant) => {
    state = "alive";
    keepaliveDue = now.mono + (keepalive ?? 0);
    for (const t of tracks) {
      settle(t, now);
      t.beat = now.mono;
    }
  };

  return {
    start(now) {
      began = now.mono;
      return step(now);
    },
    opened(now) {
      if (state == "connecting") {
        state = "opening";
        began = now.mono;
        if (!readyLimit) becomeReady(now);
      }
      return step(now);
    },
    ready(now) {
      if (state == "connecting" || state == "opening") becomeReady(now);
      return step(now);
    },
    inbound(now, kind) {
      if (state == "alive") {
        pingSeen ||= kind == PING;
        pongSeen ||= kind == PONG;
        for (const t of tracks) {
          const { counts, textOnceAsked } = t.rule;
          if (kind >= (textOnceAsked && pingSeen && counts < TEXT ? TEXT : counts)) settle(t, now);
        }
        disarm();
      }
      return step(now);
    },
    sent(now, bytes, unsent) {
      if (typing && state == "alive" && bytes > 0) {
        if (now.mono - sentAt >= typing.quiet) {
          burst = 0;
          clean = !unsent;
        }
        sentAt = now.mono;
        if ((burst += bytes) > typing.maxBytes) disarm();
        else if (clean && armed == NONE && !paused) {
          armed = now.mono;
          typingReprieve = false;
        }
      }
      return step(now);
    },
    pause(now, on) {
      if (on != paused) {
        paused = on;
        if (state == "alive") {
          // What came during the pause was not looked at: start afresh.
          for (const t of tracks) settle(t, now);
          disarm();
        }
      }
      return step(now);
    },
    wake: (now) => step(now, true),
    tick: (now) => step(now),
  };
};
