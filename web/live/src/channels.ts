// The numbers of each kind of channel; docs/liveness.md gives the reason for
// every one and what breaks at half and at double.

import { pageBackoff, timingBackoff, type Backoff } from "./funnel.js";
import { APPLICATION, BYTE, type JudgeConfig } from "./judge.js";

/** How one kind of channel is judged and how it comes back. */
export interface Channel extends JudgeConfig {
  backoff: Backoff;
  /** So long without any arrival after something was sent that is answered as a rule: ask at once; ms. */
  answer?: number;
}

const page = { handshake: 1e4, ready: 15e3 };
const track = { probe: APPLICATION, counts: BYTE } as const;

/** A quiet channel: three missed heartbeats of 40 s, then one question. */
export const quiet: Channel = { ...page, tracks: [{ ...track, idle: 12e4, window: 1e4 }], backoff: pageBackoff };

/**
 * A channel with a 30 s lease and a report every 10 s that is answered: 6 s
 * after an unanswered one a question, 4 s later the verdict, and 10 s are left.
 */
export const timing: Channel = { ...page, tracks: [{ ...track, idle: 16e3, window: 4e3 }], backoff: timingBackoff, answer: 6e3 };
