export { HostKeyError, SshError, type ErrorCode } from "./errors.js";
export type { Algorithms, Channel, Client, ConnectOptions, DataHandler, Exit, HostKey, KeyType, Limits, Phase, PtyOptions, Signer, Size, Transport } from "./types.js";
