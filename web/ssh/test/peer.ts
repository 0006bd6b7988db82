// A server that does what a test tells it to, right or wrong. It is written with
// Node's own cryptography and shares no code with the client, so that a mistake
// of the one is not excused by the other.

import { createCipheriv, createDecipheriv, createECDH, createHash, diffieHellman, generateKeyPairSync, createPublicKey, randomBytes, sign, type KeyObject } from "node:crypto";

import type { HostKey, KeyType, Transport } from "@holdfast/ssh";

export const u32 = (n: number) => {
  const b = Buffer.alloc(4);
  b.writeUInt32BE(n >>> 0);
  return b;
};
export const str = (s: string | Uint8Array) => {
  const b = typeof s == "string" ? Buffer.from(s) : s;
  return Buffer.concat([u32(b.length), b]);
};
export const mpint = (b: Uint8Array) => {
  let at = 0;
  while (at < b.length && b[at] == 0) at++;
  const rest = b.subarray(at);
  return str(rest.length && rest[0]! >= 0x80 ? Buffer.concat([Buffer.of(0), rest]) : rest);
};
export const msg = (type: number, ...parts: Uint8Array[]) => Buffer.concat([Buffer.of(type), ...parts]);
const hash = (...parts: Uint8Array[]) => createHash("sha256").update(Buffer.concat(parts)).digest();

export interface ServerKey {
  type: KeyType;
  blob: Buffer;
  private: KeyObject;
}

export function newServerKey(type: KeyType = "ssh-ed25519"): ServerKey {
  if (type == "ssh-ed25519") {
    const { publicKey, privateKey } = generateKeyPairSync("ed25519");
    const raw = Buffer.from(publicKey.export({ format: "jwk" }).x!, "base64url");
    return { type, blob: Buffer.concat([str(type), str(raw)]), private: privateKey };
  }
  const { publicKey, privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  const { x, y } = publicKey.export({ format: "jwk" });
  const point = Buffer.concat([Buffer.of(4), Buffer.from(x!, "base64url"), Buffer.from(y!, "base64url")]);
  return { type, blob: Buffer.concat([str(type), str("nistp256"), str(point)]), private: privateKey };
}

export const pinOf = (key: ServerKey): HostKey => ({ type: key.type, blob: key.blob });

export function signatureOf(key: ServerKey, data: Uint8Array): Buffer {
  if (key.type == "ssh-ed25519") return Buffer.concat([str(key.type), str(sign(null, data, key.private))]);
  const plain = sign("sha256", data, { key: key.private, dsaEncoding: "ieee-p1363" });
  return Buffer.concat([str(key.type), str(Buffer.concat([mpint(plain.subarray(0, 32)), mpint(plain.subarray(32))]))]);
}

/** A packet as it is before encryption. */
export function pack(payload: Uint8Array, block: number, head: number, padding?: number): Buffer {
  let n = padding ?? block - ((head + payload.length) % block);
  if (padding === undefined && n < 4) n += block;
  return Buffer.concat([u32(1 + payload.length + n), Buffer.of(n), payload, randomBytes(n)]);
}

class Direction {
  #key: Buffer;
  #iv: Buffer;
  constructor(key: Buffer, iv: Buffer) {
    this.#key = key;
    this.#iv = iv;
  }
  #next() {
    const iv = Buffer.from(this.#iv);
    this.#iv.writeBigUInt64BE((this.#iv.readBigUInt64BE(4) + 1n) & 0xffff_ffff_ffff_ffffn, 4);
    return iv;
  }
  seal(packet: Buffer): Buffer {
    const c = createCipheriv("aes-256-gcm", this.#key, this.#next()).setAAD(packet.subarray(0, 4));
    return Buffer.concat([packet.subarray(0, 4), c.update(packet.subarray(4)), c.final(), c.getAuthTag()]);
  }
  open(packet: Buffer): Buffer {
    const d = createDecipheriv("aes-256-gcm", this.#key, this.#next()).setAAD(packet.subarray(0, 4));
    d.setAuthTag(packet.subarray(-16));
    return Buffer.concat([d.update(packet.subarray(4, -16)), d.final()]);
  }
}

export interface Terms {
  kex?: string;
  hostKey?: string;
  cipher?: string;
  strict?: boolean;
  guess?: boolean;
}

/** What a test may do differently in a key exchange. */
export interface Tricks extends Terms {
  /** Sent before the KEXINIT, behind it, before the NEWKEYS, behind it under old keys. */
  beforeInit?: Uint8Array[];
  afterInit?: Uint8Array[];
  beforeNewKeys?: Uint8Array[];
  /** Changes the reply's parts, or leaves it out, or sends it twice. */
  reply?(parts: { blob: Buffer; share: Buffer; signature: Buffer }): { blob: Buffer; share: Buffer; signature: Buffer };
  noReply?: boolean;
  twice?: boolean;
  newKeysFirst?: boolean;
  noNewKeys?: boolean;
  /** Called when the client is in the middle of it. */
  between?(): void;
  /** The key that signs. */
  key?: ServerKey;
}

/** The server's end of one connection. Its transport is given to the client. */
export class Peer {
  readonly key: ServerKey;
  readonly transport: Transport;
  version = "SSH-2.0-Peer";
  sessionId: Buffer | null = null;
  /** Types of all messages that the client sent under keys. */
  readonly seen: number[] = [];
  /** Everything sent to the client, before it is delivered: a test may change it. */
  onwire: (bytes: Buffer) => Buffer | null = (bytes) => bytes;
  /** Sent under keys so far. */
  sealed: Buffer[] = [];
  closedByClient = false;
  clientVersion = "";
  strict = true;

  #buffer = Buffer.alloc(0);
  #wake: (() => void) | null = null;
  #in: Direction | null = null;
  #out: Direction | null = null;
  #clientInit: Buffer | null = null;

  constructor(key = newServerKey()) {
    this.key = key;
    this.transport = {
      onmessage: null,
      onclose: null,
      send: (bytes) => {
        this.#buffer = Buffer.concat([this.#buffer, bytes]);
        this.#wake?.();
      },
      close: () => {
        this.closedByClient = true;
        this.#wake?.();
      },
    };
  }

  raw(bytes: Uint8Array): void {
    const changed = this.onwire(Buffer.from(bytes));
    if (changed?.length) this.transport.onmessage?.(changed);
  }

  /** Sends a message, packed and sealed as it ought to be. */
  send(payload: Uint8Array): void {
    this.packet(pack(payload, this.#out ? 16 : 8, this.#out ? 1 : 5));
  }

  /** Seals and sends a packet. */
  packet(packet: Buffer): void {
    if (!this.#out) return this.raw(packet);
    const sealed = this.#out.seal(packet);
    this.sealed.push(sealed);
    this.raw(sealed);
  }

  hangUp(): void {
    this.transport.onclose?.("the peer hung up");
  }

  async #need(length: () => number): Promise<void> {
    while (this.#buffer.length < length()) {
      if (this.closedByClient) throw new Error("the client closed");
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  /** The client's next message. Rejects when it closed. */
  async receive(): Promise<Buffer> {
    await this.#need(() => 4);
    const length = this.#buffer.readUInt32BE();
    const whole = 4 + length + (this.#in ? 16 : 0);
    await this.#need(() => whole);
    const packet = this.#buffer.subarray(0, whole);
    this.#buffer = this.#buffer.subarray(whole);
    const body = this.#in ? this.#in.open(packet) : packet.subarray(4);
    const payload = body.subarray(1, body.length - body[0]!);
    if (this.#in) this.seen.push(payload[0]!);
    return payload;
  }

  /** Receives until a message of that type came. */
  async until(type: number): Promise<Buffer> {
    for (;;) {
      const payload = await this.receive();
      if (payload[0] == type) return payload;
    }
  }

  kexInit({ kex = "curve25519-sha256", hostKey = this.key.type, cipher = "aes256-gcm@openssh.com", strict = this.strict, guess = false }: Terms = {}): Buffer {
    const lists = [strict ? `${kex},kex-strict-s-v00@openssh.com` : kex, hostKey, cipher, cipher, "hmac-sha2-256", "hmac-sha2-256", "none", "none", "", ""];
    return msg(20, randomBytes(16), ...lists.map(str), Buffer.of(guess ? 1 : 0), u32(0));
  }

  /** Whether what is sent is encrypted by now. */
  get sealing(): boolean {
    return !!this.#out;
  }

  /** The client has sent something. */
  started(): Promise<void> {
    return this.#need(() => 1);
  }

  async hello(): Promise<void> {
    this.raw(Buffer.from(this.version + "\r\n"));
    let end: number;
    await this.#need(() => ((end = this.#buffer.indexOf(10)), end < 0 ? Infinity : 0));
    this.clientVersion = this.#buffer.subarray(0, end! - 1).toString();
    this.#buffer = this.#buffer.subarray(end! + 1);
  }

  /** One key exchange; the client's KEXINIT may have come already. */
  async exchange(tricks: Tricks = {}, clientInit?: Buffer): Promise<void> {
    for (const m of tricks.beforeInit ?? []) this.send(m);
    const ours = this.kexInit(tricks);
    this.send(ours);
    for (const m of tricks.afterInit ?? []) this.send(m);
    this.#clientInit = clientInit ?? (await this.until(20));
    const init = await this.until(30);
    const theirs = init.subarray(5);
    tricks.between?.();
    const { share, secret } = agree(tricks.kex ?? "curve25519-sha256", theirs);
    const key = tricks.key ?? this.key;
    const h = hash(str(this.clientVersion), str(this.version), str(this.#clientInit), str(ours), str(key.blob), str(theirs), str(share), mpint(secret));
    this.sessionId ??= h;
    const derive = (letter: string) => hash(mpint(secret), h, Buffer.from(letter), this.sessionId!);
    let reply = { blob: key.blob, share, signature: signatureOf(key, h) };
    if (tricks.reply) reply = tricks.reply(reply);
    const out = new Direction(derive("D"), derive("B").subarray(0, 12));
    if (tricks.newKeysFirst) this.send(Buffer.of(21));
    if (!tricks.noReply) this.send(msg(31, str(reply.blob), str(reply.share), str(reply.signature)));
    if (tricks.twice) this.send(msg(31, str(reply.blob), str(reply.share), str(reply.signature)));
    for (const m of tricks.beforeNewKeys ?? []) this.send(m);
    if (!tricks.noNewKeys && !tricks.newKeysFirst) this.send(Buffer.of(21));
    this.#out = out;
    await this.until(21);
    this.#in = new Direction(derive("C"), derive("A").subarray(0, 12));
  }

  /** Everything up to a client that is let in. */
  async admit(tricks: Tricks = {}): Promise<void> {
    await this.hello();
    await this.exchange(tricks);
    await this.until(5);
    this.send(msg(6, str("ssh-userauth")));
    await this.until(50);
    this.send(Buffer.of(52));
  }

  /** Confirms the client's next channel; returns the client's number of it. */
  async confirm({ window = 1 << 20, maxPacket = 32_768, ours = 7 } = {}): Promise<number> {
    const open = await this.until(90);
    const theirs = open.readUInt32BE(1 + 4 + open.readUInt32BE(1));
    this.send(msg(91, u32(theirs), u32(ours), u32(window), u32(maxPacket)));
    return theirs;
  }
}

function agree(kex: string, theirs: Buffer): { share: Buffer; secret: Buffer } {
  if (kex == "ecdh-sha2-nistp256") {
    const ecdh = createECDH("prime256v1");
    const share = ecdh.generateKeys();
    return { share, secret: ecdh.computeSecret(theirs) };
  }
  const { publicKey, privateKey } = generateKeyPairSync("x25519");
  const other = createPublicKey({ key: { kty: "OKP", crv: "X25519", x: theirs.toString("base64url") }, format: "jwk" });
  return { share: Buffer.from(publicKey.export({ format: "jwk" }).x!, "base64url"), secret: diffieHellman({ privateKey, publicKey: other }) };
}
