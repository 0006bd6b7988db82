// The connection: authentication (RFC 4252), global requests, channels.

import { encode, printable, Reader, same, Writer, type Bytes } from "./bytes.js";
import { maxDataBytes, msgOpen, msgOpenConfirmation, msgOpenFailure, SessionChannel } from "./channel.js";
import { SshError } from "./errors.js";
import { isPostQuantum } from "./kex.js";
import { isKeyType, parseBlob, proofOf, signWith, verify } from "./keys.js";
import { deadline, Secure, settler } from "./secure.js";
import type { Algorithms, Channel, Client, ConnectOptions, HostKey, Limits, Phase, Transport } from "./types.js";

const msgServiceRequest = 5;
const msgServiceAccept = 6;
const msgExtInfo = 7;
const msgAuthRequest = 50;
const msgAuthFailure = 51;
const msgAuthSuccess = 52;
const msgAuthBanner = 53;
const msgGlobalRequest = 80;
const msgRequestSuccess = 81;
const msgRequestFailure = 82;

const defaults: Limits = { inputBytes: 16 << 20, windowBytes: 1 << 20, channels: 64 };
const defaultTimeout = 30_000; // ms; a slow link's handshake takes six round trips
const rekeyBytes = 1 << 30; // RFC 4253 part 9
const rekeyMs = 3600_000;
const maxBanners = 16; // of at most 35,000 bytes each
const maxHostKeys = 16; // a server has three or four
const maxUserBytes = 1024;
const refusedOpen = 1; // administratively prohibited

/**
 * Makes a connection: recognises the server by a pin, then logs in. Rejects
 * with an SshError that says what went wrong; the transport is closed then. The
 * transport belongs to the connection from the call on.
 */
export async function connect(transport: Transport, options: ConnectOptions): Promise<Client> {
  const connection = new Connection(transport, options);
  await connection.open();
  return connection;
}

/** A callback's mistake is not the connection's: it surfaces where uncaught errors do. */
function told<A extends unknown[]>(callback: ((...args: A) => void) | undefined, ...args: A): void {
  try {
    callback?.(...args);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

function check(o: ConnectOptions): void {
  if (!o.user || encode(o.user).length > maxUserBytes) throw new TypeError(`user: 1 to ${maxUserBytes} bytes`);
  if (o.hostKeys.length == 0) throw new TypeError("hostKeys: at least one, without a pin there is nobody to trust");
  for (const [what, { type, blob }] of [...o.hostKeys.map((key) => ["hostKeys", key] as const), ["signer", { type: o.signer.algorithm, blob: o.signer.publicBlob }] as const]) {
    let real: string;
    try {
      real = parseBlob(blob).type;
    } catch (cause) {
      throw new TypeError(`${what}: not a public key`, { cause });
    }
    if (real != type) throw new TypeError(`${what}: a key of type ${real}, said to be ${type}`);
  }
}

class Connection implements Client {
  readonly #o: ConnectOptions;
  readonly #limits: Limits;
  readonly #secure: Secure;
  readonly #closed = settler<SshError>();
  readonly #admitted = settler<void>();
  #ended: SshError | null = null;
  #stopDeadline = () => {};
  readonly #abort = () => this.#secure.end(new SshError("aborted", "the connection was given up", this.#o.signal?.reason));

  #accepted = false; // the server has begun to authenticate
  #open = false; // it has let us in
  #banners = 0;
  #signatures: string[] | null = null; // what it says to accept
  readonly #answers: ((success: Reader | null) => void)[] = []; // of global requests, in order
  readonly #channels = new Map<number, SessionChannel | ReturnType<typeof settler<SessionChannel>>>();
  #nextChannel = 0;
  #provesKeys = false;

  constructor(transport: Transport, options: ConnectOptions) {
    check(options);
    this.#o = options;
    this.#limits = { ...defaults, ...options.limits };
    this.#secure = new Secure(transport, {
      hostKeys: options.hostKeys,
      inputBytes: this.#limits.inputBytes,
      rekeyBytes: options.rekey?.bytes ?? rekeyBytes,
      rekeyMs: options.rekey?.ms ?? rekeyMs,
      onVersion: () => this.#phase("kex"),
      onInbound: () => told(options.onInbound),
      onMessage: (payload) => this.#message(payload),
      onEnd: (why) => this.#end(why),
    });
  }

  async open(): Promise<void> {
    const { signal, timeoutMs = defaultTimeout } = this.#o;
    if (signal?.aborted) this.#abort();
    signal?.addEventListener("abort", this.#abort);
    if (!this.#ended) {
      this.#stopDeadline = deadline(timeoutMs, () => this.#secure.end(new SshError("timeout", `the server did not finish letting us in within ${timeoutMs / 1000} s`)));
      this.#phase("version");
    }
    await this.#secure.start();
    await this.#secure.ready.promise;
    this.#phase("auth");
    this.#secure.send(new Writer(msgServiceRequest).string("ssh-userauth").bytes);
    try {
      // Without waiting for the answer to the first: a round trip less.
      this.#secure.send(await this.#authRequest());
    } catch (cause) {
      this.#secure.end(new SshError("auth", `signing with the device's key: ${(cause as Error).message}`, cause));
    }
    await this.#admitted.promise;
    this.#stopDeadline();
    this.#phase("ready");
  }

  get algorithms(): Algorithms {
    const { kex, hostKey, cipherIn, cipherOut, strict } = this.#secure.algorithms!;
    return { kex, hostKey, cipherIn, cipherOut, strict };
  }

  get postQuantum(): boolean {
    return isPostQuantum(this.algorithms.kex);
  }

  get serverVersion(): string {
    return this.#secure.serverVersion;
  }

  get sessionId(): Uint8Array {
    return this.#secure.sessionId!.slice();
  }

  get hostKey(): HostKey {
    return this.#secure.hostKey!;
  }

  get lastInbound(): number {
    return this.#secure.lastInbound;
  }

  get closed(): Promise<SshError> {
    return this.#closed.promise;
  }

  async openSession(): Promise<Channel> {
    if (this.#ended) throw this.#ended;
    if (this.#channels.size >= this.#limits.channels) throw new SshError("channel", `${this.#limits.channels} channels are open already`);
    const number = this.#nextChannel;
    this.#nextChannel = (number + 1) >>> 0;
    const opening = settler<SessionChannel>();
    this.#channels.set(number, opening);
    this.#secure.send(new Writer(msgOpen).string("session").u32(number).u32(this.#limits.windowBytes).u32(maxDataBytes).bytes);
    return opening.promise;
  }

  async ping(): Promise<number> {
    const from = performance.now();
    await this.#globalRequest("keepalive@openssh.com");
    return performance.now() - from;
  }

  rekey(): Promise<void> {
    return this.#secure.rekey();
  }

  disconnect(reason = ""): void {
    this.#secure.end(new SshError("closed", reason || "closed by this side"));
  }

  #phase(phase: Phase): void {
    told(this.#o.onPhase, phase);
  }

  async #authRequest(): Promise<Bytes> {
    const { user, signer } = this.#o;
    const request = new Writer(msgAuthRequest).string(user).string("ssh-connection").string("publickey").bool(true).string(signer.algorithm).string(signer.publicBlob).bytes;
    const signed = new Writer().string(this.#secure.sessionId!).raw(request).bytes;
    return new Writer().raw(request).string(await signWith(signer, signed)).bytes;
  }

  /** Resolves with what a successful answer holds, or null for a failed one. */
  #globalRequest(name: string, rest: Uint8Array = new Uint8Array()): Promise<Reader | null> {
    return new Promise((resolve, reject) => {
      if (this.#ended) return reject(this.#ended);
      this.#answers.push((answer) => (this.#ended ? reject(this.#ended) : resolve(answer)));
      this.#secure.send(new Writer(msgGlobalRequest).string(name).bool(true).raw(rest).bytes);
    });
  }

  #end(why: SshError): void {
    this.#ended = why;
    this.#stopDeadline();
    this.#o.signal?.removeEventListener("abort", this.#abort);
    this.#admitted.reject(why);
    for (const channel of this.#channels.values()) {
      if (channel instanceof SessionChannel) channel.lost(why);
      else channel.reject(why);
    }
    this.#channels.clear();
    for (const answer of this.#answers.splice(0)) answer(null);
    this.#closed.resolve(why);
  }

  #message(payload: Bytes): void {
    const type = payload[0]!;
    const r = new Reader(payload, `message ${type}`);
    r.byte();
    if (type == msgExtInfo && !this.#open) return this.#extInfo(r);
    if (!this.#open) return this.#authMessage(type, r);
    if (type == msgGlobalRequest) return this.#request(r);
    if (type == msgRequestSuccess || type == msgRequestFailure) {
      const answer = this.#answers.shift();
      if (!answer) throw r.wrong("nobody asked for it");
      return answer(type == msgRequestSuccess ? r : null);
    }
    if (type == msgOpen) return this.#refuse(r);
    if (type > msgOpen && type <= 100) return this.#channelMessage(type, r);
    this.#secure.unimplemented();
  }

  #authMessage(type: number, r: Reader): void {
    if (type == msgServiceAccept && !this.#accepted) {
      if (r.text(64) != "ssh-userauth") throw r.wrong("it accepts another service");
      this.#accepted = true;
      return;
    }
    if (!this.#accepted) throw r.wrong("authentication has not begun");
    switch (type) {
      case msgAuthBanner: {
        if (++this.#banners > maxBanners) throw r.wrong("there were too many");
        const text = r.text();
        r.string();
        r.end();
        return told(this.#o.onBanner, text);
      }
      case msgAuthSuccess:
        r.end();
        this.#open = true;
        return this.#admitted.resolve();
      case msgAuthFailure: {
        const methods = r.names();
        const partly = r.bool();
        r.end();
        throw new SshError("auth", this.#notLetIn(methods, partly));
      }
    }
    throw r.wrong("it has no place in authentication");
  }

  #notLetIn(methods: string[], partly: boolean): string {
    const { user, signer } = this.#o;
    const rest = printable(methods.join(", ")) || "nothing";
    if (partly) return `the server accepts this device's key and wants more, which a page cannot give: ${rest}`;
    if (this.#signatures && !this.#signatures.includes(signer.algorithm)) return `the server accepts no ${signer.algorithm} keys, and this device's is one`;
    return `the server does not let this device's key in as "${printable(user)}" (it would accept: ${rest}): pair this device again, or add its key on the machine`;
  }

  #extInfo(r: Reader): void {
    for (let n = r.u32(); n > 0; n--) {
      const name = r.text();
      const value = r.string();
      if (name == "server-sig-algs") this.#signatures = new TextDecoder().decode(value).split(",");
    }
    r.end();
  }

  #request(r: Reader): void {
    const name = r.text(128);
    const wantsReply = r.bool();
    if (name == "hostkeys-00@openssh.com" && !wantsReply) return this.#announced(r);
    // keepalive@openssh.com wants the answer, and any will do.
    if (wantsReply) this.#secure.send(Uint8Array.of(msgRequestFailure));
  }

  #announced(r: Reader): void {
    if (!this.#o.onHostKeys || this.#provesKeys) return;
    const keys: HostKey[] = [];
    for (let n = 0; r.left > 0; n++) {
      if (n == maxHostKeys) throw r.wrong("there are too many keys");
      const blob = r.string();
      // Others, such as RSA, are not of our kind, and not wrong.
      const type = new Reader(blob, "host key").text(64);
      if (isKeyType(type)) keys.push({ type: parseBlob(blob, "host key").type, blob: blob.slice() });
    }
    if (keys.length == 0) return;
    this.#provesKeys = true;
    this.#prove(keys).then(
      (proved) => proved.length && told(this.#o.onHostKeys, proved),
      (error) => this.#secure.end(error instanceof SshError ? error : new SshError("protocol", "checking the server's host keys", error)),
    );
  }

  /** Asks for a proof of each key, the present one too: it costs one more signature. */
  async #prove(keys: HostKey[]): Promise<HostKey[]> {
    const list = new Writer();
    for (const key of keys) list.string(key.blob);
    const r = await this.#globalRequest("hostkeys-prove-00@openssh.com", list.bytes);
    this.#provesKeys = false;
    if (!r) return [];
    const proved: HostKey[] = [];
    for (const key of keys) {
      const signature = r.string();
      if (proved.some((other) => same(other.blob, key.blob))) continue;
      if (await verify(key.blob, signature, proofOf(this.#secure.sessionId!, key.blob))) proved.push(key);
    }
    r.end();
    return proved;
  }

  /** No server has a reason to open a channel to a page. */
  #refuse(r: Reader): void {
    r.string(128);
    const theirs = r.u32();
    this.#secure.send(new Writer(msgOpenFailure).u32(theirs).u32(refusedOpen).string("not here").string("").bytes);
  }

  #channelMessage(type: number, r: Reader): void {
    const number = r.u32();
    const channel = this.#channels.get(number);
    if (!channel) throw r.wrong("there is no such channel");
    if (channel instanceof SessionChannel) return channel.message(type, r);
    switch (type) {
      case msgOpenConfirmation: {
        const theirs = r.u32();
        const window = r.u32();
        const maxPacket = r.u32();
        if (maxPacket == 0) throw r.wrong("a channel that takes nothing");
        const link = { send: (payload: Bytes) => this.#secure.send(payload), room: () => this.#secure.room(), forget: () => void this.#channels.delete(number) };
        const open = new SessionChannel(link, theirs, this.#limits.windowBytes, window, maxPacket);
        this.#channels.set(number, open);
        return channel.resolve(open);
      }
      case msgOpenFailure: {
        const reason = r.u32();
        const text = printable(r.text());
        r.string();
        r.end();
        this.#channels.delete(number);
        return channel.reject(new SshError("channel", `the server opens no session: ${text || `reason ${reason}`}`));
      }
    }
    throw r.wrong("the channel is not open");
  }
}

