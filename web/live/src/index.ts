export { createLive, type Live, type LiveOptions, type LiveState, type Receipt, type SendOptions, type SocketLike, type Status, type Timers } from "./live.js";
export { quiet, timing, type Channel } from "./channels.js";
export { holdfast, hydro, type Class, type Profile } from "./codes.js";
export type { Backoff, Failure } from "./funnel.js";
export type { OutboxLimits } from "./outbox.js";
export type { Instant } from "./time.js";
