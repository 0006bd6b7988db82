// The parts without socket, timer and clock, whole: for programs that own their
// transport, such as SSH in a page with its keep-alive as the probe.

export { createJudge, APPLICATION, BYTE, FRAME, PING, PONG, PROTOCOL, TEXT } from "./judge.js";
export type { Arrival, Effects, Judge, JudgeConfig, SocketState, Track, TypingRule, Verdict } from "./judge.js";
export { createFunnel, pageBackoff, timingBackoff, type Action, type Backoff, type Failure, type Funnel, type FunnelOptions, type Phase } from "./funnel.js";
export { createOutbox, type Loss, type Outbox, type OutboxLimits } from "./outbox.js";
export { classOf, codeOfRefusal, holdfast, hydro, restartDelay, type Class, type Profile } from "./codes.js";
export { createWatch, type Instant } from "./time.js";
export { quiet, timing, type Channel } from "./channels.js";
export { data, typing } from "./stream.js";
