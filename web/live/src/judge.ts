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
  dead: Verdict | undefined;
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
  const slept = createWatch();
  let state: SocketState = "connecting";
  let began = 0; // of the present phase, until ready
  let asked = NEVER; // the next tick that was asked for last
  const tracks = config.tracks.map((rule) => ({
    rule,
    evidence: 0, // last arrival that counts
    probed: NONE, // newest probe; outstanding if after evidence
    decided: NONE, // when the open question is decided
    reprieve: false, // it had its one fresh window
    ...(FULL && { beaten: 0 }), // when the next beat is due
  }));
  type State = (typeof tracks)[number];

  // What the channels of pages do not have.
  const more = FULL
    ? {
        keepalive: config.keepalive,
        typing: config.typing,
        paused: false,
        pongSeen: false,
        pingSeen: false,
        keepaliveDue: 0,
        // Of the typing rule: bytes since the last quiet second, the last send,
        // whether the socket was empty when the burst began, the first
        // unanswered byte, and as for a track.
        burst: 0,
        sentAt: NONE,
        clean: false,
        armed: NONE,
        decided: NONE,
        reprieve: false,
      }
    : (undefined as never);

  const settle = (t: State, now: Instant) => {
    t.evidence = now.mono;
    t.decided = NONE;
    t.reprieve = false;
  };

  /** Notes a probe for every track that it can answer. */
  const send = (probe: number, now: Instant) => {
    if (FULL && probe & PROTOCOL && more.keepalive) more.keepaliveDue = now.mono + more.keepalive;
    for (const t of tracks) {
      if (t.rule.probe & probe) {
        t.probed = now.mono;
        if (FULL) t.beaten = now.mono + (t.rule.beat ?? 0);
      }
    }
    return probe;
  };

  const step = (now: Instant, woken?: boolean): Effects => {
    const hasSlept = slept(now);
    // Against the tick that was asked for, not against the window to be judged:
    // a stop that hid an earlier tick hid arrivals as well.
    const late = now.mono - asked > LATE_TICK;
    const e: Effects = { probes: 0, dead: undefined, next: (asked = NEVER), state };
    const due = (at: number) => {
      if (at < e.next) asked = e.next = at;
    };
    const die = (dead: Verdict): Effects => ({ probes: 0, dead, next: (asked = NEVER), state: (state = "dead") });

    if (state == "connecting" || state == "opening") {
      const opening = state == "opening";
      const limit = opening ? config.ready : config.handshake;
      if (limit) due(began + limit);
      return now.mono < e.next ? e : die(opening ? "ready timed out" : "handshake timed out");
    }
    if (state == "dead") return e;

    for (const t of tracks) {
      const { rule } = t;
      const quiet = t.evidence + rule.idle;
      /** Opens or renews the question. */
      const ask = () => {
        t.decided = now.mono + rule.window;
        e.probes |= send(rule.probe, now);
      };
      if (FULL && rule.beat && now.mono >= t.beaten!) e.probes |= send(rule.probe, now);
      if (!FULL || (!more.paused && (rule.answered ?? more.pongSeen) == more.pongSeen)) {
        if (t.decided > NONE) {
          const over = now.mono >= t.decided;
          if (!t.reprieve && (hasSlept || (over && late))) {
            t.reprieve = true;
            ask();
          } else if (over) return die(rule.probe ? "probe timed out" : "silent");
        } else if ((hasSlept || woken) && rule.probe) {
          // Who asks nothing keeps his time: a stepped clock must not hurry a
          // peer that nobody asks.
          ask();
        } else if (now.mono >= quiet) {
          // A beat or a keepalive may have asked already.
          if (t.probed > t.evidence && !late) t.decided = quiet + rule.window;
          else ask();
        }
        if (t.decided > NONE) {
          e.state = "suspect";
          due(t.decided);
        } else due(quiet);
      }
      if (FULL && rule.beat) due(t.beaten!);
    }

    if (FULL && more.typing) {
      const { typing } = more;
      // The tracks ask after sleep; a key pressed before it judges nothing.
      if (hasSlept) more.armed = more.decided = NONE;
      if (more.armed > NONE) {
        const open = more.decided > NONE;
        if (now.mono >= (open ? more.decided : more.armed + typing.idle)) {
          if (open) {
            if (!late || more.reprieve) return die("typing probe timed out");
            more.reprieve = true;
          }
          more.decided = now.mono + typing.window;
          e.probes |= send(PROTOCOL, now);
        }
        if (more.decided > NONE) e.state = "suspect";
        due(more.decided > NONE ? more.decided : more.armed + typing.idle);
      }
    }
    if (FULL && more.keepalive) {
      if (now.mono >= more.keepaliveDue) e.probes |= send(PROTOCOL, now);
      due(more.keepaliveDue);
    }
    return e;
  };

  const becomeReady = (now: Instant) => {
    if (state == "connecting" || state == "opening") {
      state = "alive";
      for (const t of tracks) {
        settle(t, now);
        if (FULL) t.beaten = now.mono;
      }
      if (FULL && more.keepalive) more.keepaliveDue = now.mono + more.keepalive;
    }
  };

  return {
    start(now) {
      began = now.mono;
      return step(now);
    },
    opened(now) {
      if (state == "connecting") {
        if (config.ready) {
          state = "opening";
          began = now.mono;
        } else becomeReady(now);
      }
      return step(now);
    },
    ready(now) {
      becomeReady(now);
      return step(now);
    },
    inbound(now, kind) {
      if (state == "alive") {
        if (FULL) {
          more.pingSeen ||= kind == PING;
          more.pongSeen ||= kind == PONG;
          more.armed = more.decided = NONE;
        }
        for (const t of tracks) {
          const { counts } = t.rule;
          if (kind >= (FULL && t.rule.textOnceAsked && more.pingSeen && counts < TEXT ? TEXT : counts)) settle(t, now);
        }
      }
      return step(now);
    },
    ...((FULL && {
      sent(now, bytes, unsent) {
        const { typing } = more;
        if (typing && state == "alive" && bytes > 0) {
          if (now.mono - more.sentAt >= typing.quiet) {
            more.burst = 0;
            more.clean = !unsent;
          }
          more.sentAt = now.mono;
          if ((more.burst += bytes) > typing.maxBytes) more.armed = more.decided = NONE;
          else if (more.clean && more.armed == NONE && !more.paused) {
            more.armed = now.mono;
            more.reprieve = false;
          }
        }
        return step(now);
      },
      pause(now, on) {
        if (on != more.paused) {
          more.paused = on;
          if (state == "alive") {
            // What came during the pause was not looked at: start afresh.
            for (const t of tracks) settle(t, now);
            more.armed = more.decided = NONE;
          }
        }
        return step(now);
      },
    }) as Pick<Judge, "sent" | "pause">),
    wake: (now) => step(now, true),
    tick: (now) => step(now),
  };
};
