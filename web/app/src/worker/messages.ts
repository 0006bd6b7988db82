// What page and Worker say to each other. One Worker holds everything about one
// machine: its WebSocket, SSH, keys in use and the judging of the connection.
// The page never holds a token or a key.

import type { Dialog, Session, Stage } from "../sessions/model.js";

/** What runs in a terminal. */
export type Program =
  /** A session of the sessions protocol, by the command that the machine gave for it. */
  | { kind: "attach"; session: string; name: string; args: readonly string[]; fit: boolean }
  | { kind: "shell" }
  /** fit: let this screen set the window's size. Otherwise the size of who is attached stays. */
  | { kind: "tmux"; name: string; target?: string; fit: boolean };

/** Why a connection is not there. Words are the page's business. */
export interface Why {
  /** A close code, or what stands for one; 0 where it is none's. */
  code: number;
  kind: "close" | "hostKey" | "auth" | "ssh" | "silent" | "storage" | "unknownMachine";
  /** Text of a peer, cleaned. */
  text?: string;
  /** Fingerprints, of a wrong host key. */
  pinned?: readonly string[];
  shown?: string;
}

export type Phase = "idle" | "dialing" | "version" | "kex" | "auth" | "up" | "waiting" | "stopped";

export interface LinkState {
  phase: Phase;
  /** A question is open for the path. */
  suspect: boolean;
  /** Of the last byte that came; wall clock, ms. */
  proof: number | undefined;
  /** When it is tried again; wall clock, ms. */
  retryAt: number | undefined;
  why: Why | undefined;
  /** Of the present connection. */
  postQuantum: boolean | undefined;
  service: "ssh" | "sshd" | undefined;
  server: string | undefined;
}

/** What the page wants of a machine's sessions (docs/sessions.md). */
export type SessionsAsk =
  | { op: "watch" }
  | { op: "unwatch" }
  /** A request; unfollow names the follow's call. */
  | { op: "call"; call: number; request: string; params: Record<string, unknown> };

export type SessionsTell =
  | { op: "sessionsHello"; machine: string; features: string[]; skew: number }
  | { op: "sessionsAll"; sessions: Session[]; at: number }
  | { op: "sessionChanged"; session: Session; at: number }
  | { op: "sessionGone"; session: string; at: number }
  /** They are not told any more: the connection was "lost", the machine has "none", or its bye. */
  | { op: "sessionsClosed"; code: string; text: string }
  | { op: "answer"; call: number; result: unknown }
  | { op: "refused"; call: number; code: string; message: string; dialog: Dialog | undefined; text: string }
  | { op: "receipt"; call: number; stage: Stage }
  | { op: "items"; call: number; result: unknown };

export type Ask =
  | SessionsAsk
  | { op: "pair"; link: string; name: string }
  | { op: "machine"; id: string }
  | { op: "open"; term: number; program: Program; cols: number; rows: number }
  | { op: "input"; term: number; data: Uint8Array }
  | { op: "resize"; term: number; cols: number; rows: number }
  | { op: "consumed"; term: number; bytes: number }
  | { op: "end"; term: number }
  /** Runs a command and gathers what it prints, at most 64 KiB. */
  | { op: "run"; id: number; command: string }
  /** Somebody looks at the machine: the connection that its terminals use is wanted. */
  | { op: "connect" }
  /** The page came to the front, or the network changed. */
  | { op: "wake" }
  /** The person's act: try now, also after a stop. */
  | { op: "retry" }
  | { op: "stop" };

/** What became of a terminal. */
export type Ending =
  | { how: "exit"; code: number | undefined; signal: string | undefined }
  /** The connection broke and a plain shell cannot outlive it. */
  | { how: "lost" }
  /** The tmux session is not there any more. */
  | { how: "gone" }
  | { how: "refused"; text: string };

export type PairFault =
  | "notLink" | "cutOff" | "damaged" | "version" // the link itself
  | "expired" // its time is over, by this device's clock and the relay's word
  | "unknown" // the relay knows no such link: over, used up or another relay's
  | "unreachable" // the relay does not answer
  | "offline" // the machine is not connected to the relay
  | "limit" | "relay" // the relay's refusal
  | "hostKey" // somebody stands in between
  | "proof" | "closed" | "bound" | "failed" // the machine's refusals
  | "insecure" | "storage" | "ssh";

export type PairStep = "key" | "redeem" | "connect" | "prove";

export type Tell =
  | SessionsTell
  /** Of the connection that terminals use. */
  | { op: "state"; state: LinkState }
  /** Of the connection that sessions use; the same one where terminals go through the built-in server. */
  | { op: "sessionsState"; state: LinkState }
  | { op: "opened"; term: number; again: boolean }
  /** Its connection is gone; it opens again on the next. */
  | { op: "detached"; term: number }
  | { op: "data"; term: number; data: Uint8Array }
  /** So many bytes of its input were not sent and will not be. */
  | { op: "dropped"; term: number; bytes: number }
  | { op: "ended"; term: number; ending: Ending }
  | { op: "ran"; id: number; code: number | undefined; text: string }
  | { op: "pairing"; step: PairStep }
  | { op: "paired"; machine: string }
  | { op: "notPaired"; fault: PairFault; text?: string; expires?: number; pinned?: readonly string[]; shown?: string };
