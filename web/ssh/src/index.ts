/**
 * An SSH client for a page or, better, a Worker. See docs/ssh-web.md for what it
 * does and does not.
 *
 * What a caller will get wrong: the pin is the whole of the trust, so it must
 * not come from whom it protects against; a channel without a reader stops at
 * one window; write() wants to be awaited; and nothing here resumes: when
 * `closed` resolves, the channels are gone.
 */
export { connect } from "./client.js";
export { HostKeyError, SshError, type ErrorCode } from "./errors.js";
export { deviceSigner, fingerprint, generateDeviceKey, parsePublicKey, publicKeyLine, type DeviceKey } from "./keys.js";
export { streamTransport, webSocketTransport, type WebSocketLike } from "./transports.js";
export type { Algorithms, Channel, Client, ConnectOptions, DataHandler, Exit, HostKey, KeyType, Limits, Phase, PtyOptions, Signer, Size, Transport } from "./types.js";
