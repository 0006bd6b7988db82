import type { SshError } from "./errors.js";

/** Host and device keys of these types, and no others. */
export type KeyType = "ssh-ed25519" | "ecdsa-sha2-nistp256";

/**
 * Something that carries bytes both ways in order: see webSocketTransport and
 * streamTransport. Where one message ends and the next begins means nothing.
 */
export interface Transport {
  /**
   * Takes bytes to be sent in the order of the calls, which never overlap: the
   * next call is made when the promise of the last is fulfilled, and that is
   * how a slow path holds back the writers. The bytes are not reused.
   */
  send(bytes: Uint8Array): void | Promise<void>;
  /** Set by connect: called with each piece that came, of any size. The bytes are not kept. */
  onmessage: ((bytes: Uint8Array) => void) | null;
  /** Set by connect: called once when nothing more will come, with a reason for people. */
  onclose: ((reason: string) => void) | null;
  /** Ends the transport, flushing what was sent where it can. May be called twice. */
  close(): void;
}

/** A host key as it is pinned: the whole public key, not its fingerprint. */
export interface HostKey {
  readonly type: KeyType;
  /** The public key in SSH's encoding (RFC 4253 part 6.6): the middle word of a known_hosts line, decoded. */
  readonly blob: Uint8Array;
}

/** The device's key. The private half stays where it is. */
export interface Signer {
  readonly algorithm: KeyType;
  /** The public key in SSH's encoding. */
  readonly publicBlob: Uint8Array;
  /** Signs as WebCrypto does: 64 bytes, for ECDSA r and s (over SHA-256), for Ed25519 the signature as it is. */
  sign(data: Uint8Array): Promise<Uint8Array>;
}

/** Where a connection that is being made has come to, for a person who waits. */
export type Phase = "version" | "kex" | "auth" | "ready";

/** Bounds on what a server may make this side hold. */
export interface Limits {
  /**
   * Bytes that came and were not yet decrypted, 16 MiB: a WebSocket in a page
   * cannot be told to stop reading. Less than all windows together would end
   * honest connections.
   */
  inputBytes: number;
  /** Bytes that a channel may be sent before its reader has consumed any, 1 MiB: 10 MB/s at a round trip of 100 ms. */
  windowBytes: number;
  /** Channels at a time, 64. */
  channels: number;
}

export interface ConnectOptions {
  user: string;
  /**
   * The pins: only their types are offered, and only these very keys are
   * believed. At least one.
   */
  hostKeys: readonly HostKey[];
  signer: Signer;
  /** Ends the attempt, or the connection, at once. */
  signal?: AbortSignal;
  /** For everything up to the end of authentication, in milliseconds; 30,000 where missing. */
  timeoutMs?: number;
  /** New keys after so many bytes of both directions (1 GiB where missing), or at the first byte after so many milliseconds (one hour). */
  rekey?: { bytes?: number; ms?: number };
  limits?: Partial<Limits>;
  onPhase?(phase: Phase): void;
  /** Any bytes came, even a piece of a packet: the sign of life that a judge of the path wants. */
  onInbound?(): void;
  /** The server's words before authentication (RFC 4252 part 5.4). Text from a stranger: show it as such. */
  onBanner?(text: string): void;
  /**
   * The server announced its host keys over this authenticated connection, and
   * proved to hold each (hostkeys-prove-00@openssh.com). These are all of the
   * types known here; pin them in place of the present ones, which they need
   * not include. Keys that could not be proved are not among them.
   */
  onHostKeys?(keys: HostKey[]): void;
}

/** What was agreed on. */
export interface Algorithms {
  kex: string;
  hostKey: KeyType;
  cipherIn: string;
  cipherOut: string;
  /** Strict key exchange, as both sides offered it. */
  strict: boolean;
}

/** A connection whose server was recognised and which it lets in. */
export interface Client {
  /** Of the last key exchange. */
  readonly algorithms: Algorithms;
  /** Whether what a recorder keeps today stays unreadable to a quantum computer. */
  readonly postQuantum: boolean;
  /** The server's identification line, such as `SSH-2.0-OpenSSH_9.2p1 Debian-2`. */
  readonly serverVersion: string;
  /** The first exchange hash (RFC 4253 part 7.2): binds a proof to this very connection. */
  readonly sessionId: Uint8Array;
  /** The pin that the server proved to hold. */
  readonly hostKey: HostKey;
  /** When bytes last came, by performance.now(). */
  readonly lastInbound: number;
  /** Opens a channel of type session. Rejects where the server refuses; the connection lives on. */
  openSession(): Promise<Channel>;
  /**
   * Asks the server for a sign of life (keepalive@openssh.com) and says after
   * how many milliseconds it came. Has no time-out of its own: it is settled by
   * the answer or by the end of the connection.
   */
  ping(): Promise<number>;
  /** Exchanges new keys now. Resolves when they are in use; joins an exchange that is under way. */
  rekey(): Promise<void>;
  /** Says goodbye and closes the transport. `closed` follows. */
  disconnect(reason?: string): void;
  /** Resolves with what ended the connection, and never rejects. `closed` is the code after disconnect(). */
  readonly closed: Promise<SshError>;
}

export interface Size {
  cols: number;
  rows: number;
  /** In pixels, 0 where missing. */
  width?: number;
  height?: number;
}

export interface PtyOptions extends Size {
  /** `TERM`. */
  term: string;
  /** Terminal modes by their numbers (RFC 4254 part 8). */
  modes?: Readonly<Record<number, number>>;
}

/** How what ran in a channel ended. Empty where the server did not say. */
export interface Exit {
  code?: number;
  /** Without `SIG`. */
  signal?: string;
  /** What the server says about the signal. */
  message?: string;
  /** The connection ended first. */
  lost?: SshError;
}

/**
 * Takes what the channel delivers, in order. A promise holds the bytes to be
 * unconsumed until it settles, whatever comes meanwhile: when a window full of
 * them is, the server stops sending. One promise may be returned for several
 * deliveries, which costs less than one for each. The bytes, and the buffer they lie in, are
 * the reader's own from then on: it may change them, or transfer them elsewhere.
 */
export type DataHandler = (data: Uint8Array, stream: "stdout" | "stderr") => void | Promise<void>;

/**
 * One session on the connection. What is asked (requestPty, shell and so on)
 * rejects with an SshError of code `channel` where the server refuses.
 */
export interface Channel {
  requestPty(options: PtyOptions): Promise<void>;
  /** Sets a variable; servers accept few. */
  env(name: string, value: string): Promise<void>;
  shell(): Promise<void>;
  exec(command: string): Promise<void>;
  subsystem(name: string): Promise<void>;
  /** Tells the size of the window; has no answer. */
  resize(size: Size): void;
  /** Sends a signal by its name without `SIG`; has no answer, and servers may ignore it. */
  signal(name: string): void;
  /**
   * Sends all of data, and resolves when the last of it is on its way: waiting
   * for that is what keeps a paste from filling the memory. Calls keep their
   * order. The bytes must not be changed until then.
   */
  write(data: Uint8Array): Promise<void>;
  /** Says that nothing more will be written, after what was. */
  sendEof(): Promise<void>;
  /** Ends the channel, after what was written and can still be sent at once. Nothing is delivered any more. */
  close(): void;
  /** Sets the one reader, which gets what came before, too. Without one a window full of bytes is kept and the server stops. */
  onData(handler: DataHandler): void;
  /** Set to be told that the server will send no more data. */
  onEof: (() => void) | null;
  /** Resolves when the channel has ended and everything was handed to the reader; never rejects. */
  readonly exit: Promise<Exit>;
}
