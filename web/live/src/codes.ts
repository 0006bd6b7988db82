// What a close code asks of the one who held the connection, as data.

/**
 * back: the transport ended, which says nothing about the work. counted: back,
 * and a failure whatever came before. delayed: after the delay in the reason.
 * later: counted, and not within a second. stop: final until the person acts.
 */
export type Class = "back" | "counted" | "delayed" | "later" | "stop";

/** How the two ends of a channel talk below it. */
export interface Profile {
  name: string;
  /** Whole text frames: the question, which either end may ask, and its answer. */
  ping: string;
  pong: string;
  /** Whether the server answers a ping only when the channel has opened; then the first pong makes it ready. */
  pongAfterOpen?: boolean;
  /** Which codes are of which class, first match wins. What none holds is counted. */
  codes: readonly (readonly [is: Class, codes: RegExp])[];
  /** The code that ends a channel as it should end. */
  ended: number;
}

const common = [
  ["back", /^1(00[0156]|011)$/],
  ["delayed", /^1012$/],
] as const;

/** Holdfast's own channels, and any site's on the Go package `live`. */
export const holdfast: Profile = {
  name: "holdfast",
  ping: '{"op":"ping"}',
  pong: '{"op":"pong"}',
  codes: [...common, ["stop", /^(1008|4[04]..)$/], ["later", /^(1013|[4-9]...|.{5})$/]],
  ended: 4001,
};

/** A Hydro server: 1000 is no farewell there, and only three codes are final. */
export const hydro: Profile = {
  name: "hydro",
  ping: "ping",
  pong: "pong",
  pongAfterOpen: true,
  codes: [...common, ["stop", /^(1008|400[01])$/], ["later", /^1013$/]],
  ended: 4001,
};

/** The class of a close code; every code has one. */
export const classOf = (profile: Profile, code: number): Class =>
  profile.codes.find(([, codes]) => codes.test("" + code))?.[0] ?? "counted";

/**
 * A delay that a peer asks for is at most ten minutes: restarts are spread over
 * half a minute, and one wrong number must not keep a page away for long.
 */
export const MAX_PEER_DELAY = 6e5;

/** The delay in the reason of a 1012, `restart after=MS`; undefined for any other reason. */
export const restartDelay = (reason: string): number | undefined => {
  // More digits than a 64-bit number has are no number.
  const ms = /^restart after=(\d{1,19})( |$)/.exec(reason)?.[1];
  return ms ? Math.min(+ms, MAX_PEER_DELAY) : undefined;
};

/**
 * The close code whose meaning an HTTP answer to the upgrade has. `ours`: it
 * carried Holdfast-Refusal; without it a 401 or 403 may be a captive portal's.
 */
export const codeOfRefusal = (status: number, ours: boolean): number =>
  status == 429 ? 4129
  : status == 503 ? 1013
  : !ours ? 1006
  : status == 400 ? 1008
  : /40[134]|426/.test("" + status) ? 4e3 + status
  : 1006;
