// The transport layer (RFC 4253): versions, packets, key exchange and its
// repetition, in order, both ways. It knows nothing of users and channels.

import { concat, encode, printable, Reader, same, Writer, type Bytes } from "./bytes.js";
import { HostKeyError, SshError } from "./errors.js";
import * as kex from "./kex.js";
import { fingerprint, verify } from "./keys.js";
import { Input, open, pad, VersionReader, type Gcm } from "./packets.js";
import type { Algorithms, HostKey, Transport } from "./types.js";

const ourVersion = "SSH-2.0-Holdfast_1";

const msgDisconnect = 1;
const msgIgnore = 2;
const msgUnimplemented = 3;
const msgDebug = 4;

/** A data connection's message, DESIGN's limit for our own senders: a frame that a slow link can put other things between. */
export const maxMessageBytes = 32 << 10;
const roomBytes = 256 << 10; // sealed and unsent, where writers begin to wait: 25 ms at 10 MB/s, and Ctrl-C is no further behind
const queuedBytes = 128; // what a message in the queue takes beside its own bytes: many small ones are as much as few large ones
const maxUnsentBytes = 4 << 20; // beyond what writers may have: answers to somebody who asks and does not read
const maxOpening = 64; // packets that WebCrypto opens at a time: enough to keep its threads busy, 2 MiB at most
const rekeyTimeout = 120_000; // ms; before its half of the exchange a server may have a window of data under way on a slow link
const goodbyeTimeout = 2_000; // ms for the last bytes of a connection that is over
const lateTick = 2_000; // ms: this process slept, and the bytes that it waits for may be here already

// Reasons of RFC 4253 part 11.1.
const reasonOf: Partial<Record<string, number>> = { protocol: 2, algorithms: 3, "host-key-proof": 3, integrity: 5, version: 8, "host-key": 9, closed: 11, aborted: 11, timeout: 11 };

/** Runs then after ms, and once more as long where it was called late. Returns what ends it. */
export function deadline(ms: number, then: () => void): () => void {
  let timer: ReturnType<typeof setTimeout>;
  const arm = (again: boolean) => {
    const due = performance.now() + ms;
    timer = setTimeout(() => (again && performance.now() - due > lateTick ? arm(false) : then()), ms);
  };
  arm(true);
  return () => clearTimeout(timer);
}

/** A promise of which somebody may never ask. */
export function settler<T>(): { promise: Promise<T>; resolve: (value: T) => void; reject: (error: SshError) => void } {
  let resolve!: (value: T) => void;
  let reject!: (error: SshError) => void;
  const promise = new Promise<T>((yes, no) => ((resolve = yes), (reject = no)));
  promise.catch(() => {});
  return { promise, resolve, reject };
}

export interface SecureOptions {
  hostKeys: readonly HostKey[];
  inputBytes: number;
  rekeyBytes: number;
  rekeyMs: number;
  /** The server's version was read. */
  onVersion(): void;
  onInbound(): void;
  /** A message for the layers above; what it throws ends the connection. */
  onMessage(payload: Bytes): void;
  /** Called once. */
  onEnd(why: SshError): void;
}

interface Sealed {
  bytes: Bytes | null;
  length: number;
}

/** The state of one key exchange, from the first KEXINIT to both NEWKEYS. */
interface Exchanging {
  ours: Bytes;
  theirs?: Bytes;
  agreed?: kex.Agreed;
  exchange?: kex.Exchange;
  skipGuess?: boolean;
  /** Our NEWKEYS is sent; the server's switches to this key. */
  next?: Gcm;
}

export class Secure {
  algorithms: Algorithms | null = null;
  serverVersion = "";
  sessionId: Bytes | null = null;
  hostKey: HostKey | null = null;
  lastInbound = performance.now();
  /** The first keys are in use. */
  readonly ready = settler<void>();

  readonly #transport: Transport;
  readonly #o: SecureOptions;
  #methods: string[] = [];
  #ended: SshError | null = null;

  readonly #input = new Input();
  readonly #version = new VersionReader();
  readonly #opening: (Promise<Bytes> | Bytes)[] = [];
  #delivering = false;
  #gone: SshError | null = null; // the transport has ended, what it brought is not yet read
  #in: Gcm | null = null;
  #received = 0; // the sequence number of the next packet

  #out: Gcm | null = null;
  readonly #unsent: Sealed[] = [];
  #unsentBytes = 0;
  #sending = false;
  readonly #held: Bytes[] = []; // waits for the end of a key exchange
  readonly #waiting: (() => void)[] = [];

  #exchanging: Exchanging | null = null;
  #stopDeadline = () => {};
  #rekeyed: ReturnType<typeof settler<void>> | null = null;
  #sinceKeys = 0; // bytes of both directions
  #keysAt = 0;

  constructor(transport: Transport, options: SecureOptions) {
    this.#transport = transport;
    this.#o = options;
    // Before anything waits: what comes early must not be lost.
    transport.onmessage = (bytes) => this.#receive(bytes);
    transport.onclose = (reason) => {
      this.#gone = new SshError("transport", `the connection broke: ${printable(reason) || "no reason given"}`);
      if (!this.#delivering) this.end(this.#gone);
    };
  }

  /** Sends our version and half of the first exchange, without waiting for the server's. */
  async start(): Promise<void> {
    this.#methods = await kex.methods();
    if (this.#ended) return;
    this.#push(encode(ourVersion + "\r\n"));
    this.#beginKex();
    this.#drain();
  }

  /** Sends a message now, or after the key exchange that is under way. */
  send(payload: Bytes): void {
    if (this.#ended) return;
    if (this.#exchanging && !this.#exchanging.next) {
      this.#held.push(payload);
      this.#count(payload.length + queuedBytes);
    } else this.#seal(payload);
  }

  /** Waits until more may be sent, where that is not at once, or until the end. */
  room(): Promise<void> | null {
    if (this.#ended || (!(this.#exchanging && !this.#exchanging.next) && this.#unsentBytes < roomBytes)) return null;
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  /** Exchanges keys. Resolves when both directions use the new ones. */
  rekey(): Promise<void> {
    if (this.#ended) return Promise.reject(this.#ended);
    this.#rekeyed ??= settler<void>();
    const { promise } = this.#rekeyed;
    if (!this.#exchanging) this.#beginKex();
    return promise;
  }

  /** Ends everything: the server is told why, and nothing that still comes is looked at. */
  end(why: SshError): void {
    if (this.#ended) return;
    this.#ended = why;
    this.#stopDeadline();
    this.#transport.onmessage = null;
    this.#transport.onclose = null;
    this.#opening.length = 0;
    this.#held.length = 0;
    const reason = reasonOf[why.code];
    if (reason && this.#methods.length) {
      // To somebody who broke the rules, or was not recognised, no more than the kind.
      this.#seal(new Writer(msgDisconnect).u32(reason).string(why.code == "closed" ? why.message : "").string("").bytes);
      this.#stopDeadline = deadline(goodbyeTimeout, () => this.#transport.close());
    } else {
      this.#unsent.length = 0;
      this.#transport.close();
    }
    this.ready.reject(why);
    this.#rekeyed?.reject(why);
    this.#wake();
    this.#o.onEnd(why);
  }

  // What comes.

  #receive(bytes: Uint8Array): void {
    if (this.#ended || bytes.length == 0) return;
    this.lastInbound = performance.now();
    try {
      this.#o.onInbound();
      if (this.#input.length + bytes.length > this.#o.inputBytes) throw new SshError("protocol", `the server sent more than ${this.#o.inputBytes} bytes faster than they could be read`);
      this.#input.push(bytes);
    } catch (error) {
      return this.#broken(error);
    }
    this.#drain();
  }

  #drain(): void {
    if (!this.#methods.length || this.#ended) return; // not started, or over
    try {
      if (!this.serverVersion) {
        const version = this.#version.read(this.#input);
        if (version === null) return;
        this.serverVersion = version;
        this.#o.onVersion();
      }
      this.#open(this.#delivering ? 0 : 1);
    } catch (error) {
      return this.#broken(error);
    }
    if (!this.#delivering) void this.#deliver();
  }

  /** Begins to open what is whole; alone says how many where order matters. */
  #open(alone: number): void {
    // Behind a KEXINIT stands, somewhere, a NEWKEYS, after which other keys
    // open: one at a time. No server can send its NEWKEYS before it has read
    // our share, which is sent when its KEXINIT was read.
    const limit = this.#in && !this.#exchanging?.theirs ? maxOpening : alone;
    while (this.#opening.length < limit) {
      const before = this.#input.length;
      const packet = open(this.#input, this.#in);
      if (!packet) break;
      this.#sinceKeys += before - this.#input.length;
      if (packet instanceof Promise) packet.catch(() => {}); // is heard of when its turn comes
      this.#opening.push(packet);
    }
  }

  async #deliver(): Promise<void> {
    this.#delivering = true;
    try {
      for (;;) {
        this.#open(1);
        const next = this.#opening.shift();
        if (!next) break;
        const payload = await next;
        if (this.#ended) return;
        const done = this.#handle(payload);
        if (done) await done;
        if (this.#ended) return;
        this.#received = (this.#received + 1) >>> 0;
        this.#rekeyWhenDue();
      }
    } catch (error) {
      return this.#broken(error);
    }
    this.#delivering = false;
    // What came before the end was worth reading: last output, a goodbye.
    if (this.#gone) this.end(this.#gone);
  }

  #broken(error: unknown): void {
    this.end(error instanceof SshError ? error : new SshError("protocol", `reading what the server sent: ${(error as Error).message}`, error));
  }

  #handle(payload: Bytes): void | Promise<void> {
    const type = payload[0]!;
    const x = this.#exchanging;
    const first = !this.sessionId || !this.#in;
    if (type == msgDisconnect) {
      const r = new Reader(payload, "DISCONNECT");
      r.byte();
      const reason = r.u32();
      throw new SshError("disconnected", `the server ended the connection: ${printable(r.text()) || `reason ${reason}`}`);
    }
    if (type == kex.msgKexInit) return this.#theirKexInit(payload);
    if (x?.skipGuess && type >= 30 && type < 50) {
      x.skipGuess = false;
      return;
    }
    if (type == kex.msgExchangeReply && x?.exchange && !x.next) return this.#reply(x, payload);
    if (type == kex.msgNewKeys && x?.next) return this.#newKeys(x, payload);
    if (type > 4 || (first && x?.agreed?.strict)) {
      if (first || x?.theirs || (type >= 20 && type < 50)) throw new SshError("protocol", `the server sent message ${type} in the middle of a key exchange, or without one`);
      return this.#o.onMessage(payload);
    }
    if (type == msgIgnore || type == msgDebug) return;
    if (type != msgUnimplemented) throw new SshError("protocol", `the server sent message ${type}`);
    if (first || x?.theirs) throw new SshError("protocol", "the server does not understand the key exchange");
  }

  /** Answers a message whose number nobody here knows. */
  unimplemented(): void {
    this.send(new Writer(msgUnimplemented).u32(this.#received).bytes);
  }

  // Key exchange.

  #beginKex(): void {
    const ours = kex.kexInit(this.#methods, this.#keyTypes(), !this.sessionId);
    this.#exchanging = { ours };
    this.#seal(ours);
    if (this.sessionId) this.#stopDeadline = deadline(rekeyTimeout, () => this.end(new SshError("timeout", "the server did not finish the exchange of new keys")));
  }

  #keyTypes() {
    // After the first exchange no other key than the one that was shown.
    return [...new Set((this.hostKey ? [this.hostKey] : this.#o.hostKeys).map((key) => key.type))];
  }

  #rekeyWhenDue(): void {
    if (this.#exchanging || !this.sessionId) return;
    if (this.#sinceKeys >= this.#o.rekeyBytes || performance.now() - this.#keysAt >= this.#o.rekeyMs) this.#beginKex();
  }

  async #theirKexInit(payload: Bytes): Promise<void> {
    if (this.#exchanging?.theirs) throw new SshError("protocol", "the server began a key exchange in the middle of one");
    if (!this.#exchanging) this.#beginKex();
    const x = this.#exchanging!;
    x.theirs = payload;
    let agreed: kex.Agreed;
    try {
      agreed = kex.negotiate(payload, this.#methods, this.#keyTypes());
    } catch (error) {
      if (!(error instanceof kex.NoHostKey)) throw error;
      throw await this.#hostKeyError(error.offered);
    }
    // What holds for the connection is what was offered at its beginning.
    if (this.algorithms) agreed.strict = this.algorithms.strict;
    else if (agreed.strict && this.#received != 0) throw new SshError("protocol", "the server promises strict key exchange, and something came before it");
    x.agreed = agreed;
    x.skipGuess = agreed.skipGuess;
    const exchange = await kex.beginExchange(agreed.kex);
    if (this.#ended) return;
    x.exchange = exchange;
    this.#seal(new Writer(kex.msgExchangeInit).string(exchange.ours).bytes);
  }

  async #hostKeyError(shown: string): Promise<HostKeyError> {
    const pinned = await Promise.all(this.#o.hostKeys.map((key) => fingerprint(key.blob)));
    return new HostKeyError(pinned, shown, `this is not the machine that was paired: its host key is ${shown}, expected is ${pinned.join(" or ")}`);
  }

  async #reply(x: Exchanging, payload: Bytes): Promise<void> {
    const { hostKey, theirs, signature } = kex.parseReply(payload);
    const agreed = x.agreed!;
    // The whole key before anything else is done with what came.
    const pins = this.hostKey ? [this.hostKey] : this.#o.hostKeys;
    const pin = pins.find((key) => key.type == agreed.hostKey && same(key.blob, hostKey));
    if (!pin) throw await this.#hostKeyError(await fingerprint(hostKey));
    const secret = await x.exchange!.finish(theirs);
    const hash = await kex.exchangeHash([encode(ourVersion), encode(this.serverVersion)], [x.ours, x.theirs!], hostKey, [x.exchange!.ours, theirs], secret);
    if (!(await verify(hostKey, signature, hash))) throw new SshError("host-key-proof", "the server shows the pinned host key and could not prove that it has it: somebody stands in the middle");
    const sessionId = this.sessionId ?? hash;
    const keys = await kex.deriveKeys(agreed, secret, hash, sessionId);
    secret.fill(0);
    if (this.#ended) return;
    this.hostKey = pin;
    this.sessionId = sessionId;
    this.algorithms = agreed;
    this.#seal(Uint8Array.of(kex.msgNewKeys));
    this.#out = keys.out;
    x.next = keys.in;
    for (const held of this.#held.splice(0)) {
      this.#unsentBytes -= held.length + queuedBytes;
      this.#seal(held);
    }
    this.#wake();
  }

  #newKeys(x: Exchanging, payload: Bytes): void {
    if (payload.length != 1) throw new SshError("protocol", "the server sent a wrong NEWKEYS");
    if (this.#opening.length) throw new SshError("protocol", "the server began to use new keys before it could have them");
    this.#in = x.next!;
    this.#exchanging = null;
    this.#sinceKeys = 0;
    this.#keysAt = performance.now();
    this.#stopDeadline();
    // Wraps to zero when this packet is counted.
    if (this.algorithms!.strict) this.#received = 0xffff_ffff;
    this.ready.resolve();
    this.#rekeyed?.resolve();
    this.#rekeyed = null;
  }

  // What goes.

  #seal(payload: Bytes): void {
    const packet = pad(payload, !!this.#out);
    this.#sinceKeys += packet.length;
    if (!this.#out) return this.#push(packet);
    const sealed: Sealed = { bytes: null, length: packet.length + queuedBytes };
    this.#unsent.push(sealed);
    this.#out.seal(packet).then(
      (bytes) => {
        sealed.bytes = bytes;
        void this.#flush();
      },
      (error) => this.#broken(error),
    );
    this.#count(sealed.length);
  }

  #push(bytes: Bytes): void {
    this.#unsent.push({ bytes, length: bytes.length });
    this.#count(bytes.length);
    void this.#flush();
  }

  #count(bytes: number): void {
    this.#unsentBytes += bytes;
    if (this.#unsentBytes > maxUnsentBytes) this.end(new SshError("protocol", "the server asks for more than it takes answers"));
  }

  /** Sends what is sealed, in order, as few messages as there is something to send. */
  async #flush(): Promise<void> {
    if (this.#sending) return;
    this.#sending = true;
    try {
      while (this.#unsent[0]?.bytes) {
        const parts: Bytes[] = [];
        let length = 0;
        for (let next; (next = this.#unsent[0])?.bytes && (length == 0 || length + next.bytes.length <= maxMessageBytes); this.#unsent.shift()) {
          parts.push(next.bytes);
          length += next.bytes.length;
          this.#unsentBytes -= next.length;
        }
        const wait = this.#transport.send(parts.length == 1 ? parts[0]! : concat(...parts));
        if (wait) await wait;
        if (this.#unsentBytes < roomBytes) this.#wake();
      }
    } catch (cause) {
      this.#unsent.length = 0;
      this.end(new SshError("transport", `sending: ${(cause as Error).message}`, cause));
    }
    this.#sending = false;
    if (!this.#ended) this.#rekeyWhenDue();
    else if (!this.#unsent.length) {
      this.#stopDeadline();
      this.#transport.close();
    }
  }

  #wake(): void {
    for (const resolve of this.#waiting.splice(0)) resolve();
  }
}
