/**
 * What ended a connection, or kept it from beginning.
 *
 * - `closed`: this side asked for it.
 * - `aborted`: the caller's AbortSignal.
 * - `timeout`: the handshake or a rekeying took too long.
 * - `transport`: the bytes stopped coming; says nothing about the machine.
 * - `disconnected`: the server said goodbye; its words are in the message.
 * - `version`: what answers does not speak SSH 2.
 * - `algorithms`: no common key exchange or cipher.
 * - `host-key`: the server has another host key than the pinned one.
 * - `host-key-proof`: it showed the pinned key and could not prove to have it.
 * - `auth`: the server does not let this key in.
 * - `integrity`: bytes were changed on the way.
 * - `protocol`: the server broke the protocol, or a limit.
 * - `channel`: a channel or a request on it was refused, or the channel has ended; the connection lives.
 * - `unsupported`: this browser lacks what the connection needs.
 */
export type ErrorCode =
  | "closed"
  | "aborted"
  | "timeout"
  | "transport"
  | "disconnected"
  | "version"
  | "algorithms"
  | "host-key"
  | "host-key-proof"
  | "auth"
  | "integrity"
  | "protocol"
  | "channel"
  | "unsupported";

/** The only kind of error that this package makes, apart from a TypeError for wrong arguments. */
export class SshError extends Error {
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = "SshError";
    this.code = code;
  }
}

/** The server is not the one that was pinned. No authentication was tried: it has learnt nothing, not even the user's name. */
export class HostKeyError extends SshError {
  /** Fingerprints of the pinned keys, as OpenSSH writes them: `SHA256:…`. */
  readonly pinned: readonly string[];
  /** Fingerprint of the key that was shown, or the types that the server has, where none of them is pinned. */
  readonly shown: string;

  constructor(pinned: readonly string[], shown: string, message: string) {
    super("host-key", message);
    this.name = "HostKeyError";
    this.pinned = pinned;
    this.shown = shown;
  }
}
