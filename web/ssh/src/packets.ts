// Packets (RFC 4253 part 6), plain and under AES-GCM as OpenSSH names it (RFC
// 5647: the length travels in the clear and is authenticated; the nonce counts
// packets, so that none can be left out, doubled or moved).

import { concat, type Bytes } from "./bytes.js";
import { SshError } from "./errors.js";

/** The longest packet that RFC 4253 part 6.1 makes everybody accept; our channels ask for less. */
const maxPacketBytes = 35_000;
const lengthBytes = 4;
const tagBytes = 16;
const minPadding = 4;
const plainBlock = 8;
const gcmBlock = 16;

/** What came and was not yet read: one buffer, however small the pieces are that it comes in. */
export class Input {
  #bytes: Bytes = new Uint8Array(4096);
  #start = 0;
  #end = 0;

  get length(): number {
    return this.#end - this.#start;
  }

  push(more: Uint8Array): void {
    const need = this.length + more.length;
    if (this.#end + more.length > this.#bytes.length) {
      const into = need * 2 > this.#bytes.length ? new Uint8Array(2 * need) : this.#bytes;
      into.set(this.#bytes.subarray(this.#start, this.#end));
      this.#end = this.length;
      this.#start = 0;
      this.#bytes = into;
    }
    this.#bytes.set(more, this.#end);
    this.#end += more.length;
  }

  /** The bytes from the front, without taking them; valid until the next push. */
  peek(length: number): Bytes {
    return this.#bytes.subarray(this.#start, Math.min(this.#start + length, this.#end));
  }

  /** Takes a copy of the bytes at the front. */
  take(length: number): Bytes {
    const out = this.#bytes.slice(this.#start, this.#start + length);
    this.skip(length);
    return out;
  }

  /** Takes the bytes at the front without a copy of them. */
  skip(length: number): void {
    this.#start += length;
    if (this.#start < this.#end) return;
    this.#start = this.#end = 0;
    // A burst is over: its buffer need not stay.
    if (this.#bytes.length > 1 << 18) this.#bytes = new Uint8Array(4096);
  }

  indexOf(value: number, from: number): number {
    return this.#bytes.subarray(this.#start, this.#end).indexOf(value, from);
  }
}

/** One direction's key and the nonce of its next packet. */
export class Gcm {
  readonly #key: CryptoKey;
  readonly #nonce: Bytes;

  /** nonce, 12 bytes, becomes this object's own. */
  constructor(key: CryptoKey, nonce: Bytes) {
    this.#key = key;
    this.#nonce = nonce;
  }

  #next(additionalData: Bytes): AesGcmParams {
    const iv = this.#nonce.slice();
    // The last eight bytes count the packets, modulo 2^64.
    for (let i = 11; i > 3; i--) {
      this.#nonce[i] = (this.#nonce[i]! + 1) & 255;
      if (this.#nonce[i] != 0) break;
    }
    return { name: "AES-GCM", iv, additionalData, tagLength: 8 * tagBytes };
  }

  async seal(packet: Bytes): Promise<Bytes> {
    const length = packet.subarray(0, lengthBytes);
    const rest = await crypto.subtle.encrypt(this.#next(length), this.#key, packet.subarray(lengthBytes));
    return concat(length, new Uint8Array(rest));
  }

  /** WebCrypto copies what it is given before it returns: packet may change once this has. */
  async open(packet: Bytes): Promise<Bytes> {
    const params = this.#next(packet.subarray(0, lengthBytes));
    try {
      return new Uint8Array(await crypto.subtle.decrypt(params, this.#key, packet.subarray(lengthBytes)));
    } catch (cause) {
      throw new SshError("integrity", "what came is not what the server sent: it was changed on the way", cause);
    }
  }
}

const wrong = (how: string) => new SshError("protocol", `the server sent a wrong packet: ${how}`);

/** The payload of what stands behind a packet's length. */
function unpad(body: Bytes): Bytes {
  const padding = body[0]!;
  if (padding < minPadding || padding > body.length - 2) throw wrong(`${padding} bytes of padding in ${body.length}`);
  return body.subarray(1, body.length - padding);
}

/**
 * Begins to open the packet at the front of input, where it is whole; null
 * where it is not. A length that cannot be is an error as soon as it is read.
 */
export function open(input: Input, gcm: Gcm | null): Promise<Bytes> | Bytes | null {
  if (input.length < lengthBytes) return null;
  const [a, b, c, d] = input.peek(lengthBytes);
  const length = ((a! << 24) | (b! << 16) | (c! << 8) | d!) >>> 0;
  // The shortest has 16 bytes: all of it in the clear, behind the length where that is not encrypted.
  const odd = gcm ? length % gcmBlock : (length + lengthBytes) % plainBlock;
  if (odd != 0 || length < (gcm ? gcmBlock : gcmBlock - lengthBytes) || length > maxPacketBytes) throw wrong(`a length of ${length} bytes`);
  const whole = lengthBytes + length + (gcm ? tagBytes : 0);
  if (input.length < whole) return null;
  if (!gcm) return unpad(input.take(whole).subarray(lengthBytes));
  const payload = gcm.open(input.peek(whole)).then(unpad);
  input.skip(whole);
  return payload;
}

// Asking for a few random bytes costs as much as for many.
const pool = new Uint8Array(4096);
let pooled = 0;

function random(into: Uint8Array): void {
  if (pooled < into.length) {
    crypto.getRandomValues(pool);
    pooled = pool.length;
  }
  into.set(pool.subarray(pooled - into.length, pooled));
  pool.fill(0, pooled - into.length, pooled);
  pooled -= into.length;
}

/** Frames a payload, with random padding. */
export function pad(payload: Uint8Array, encrypted: boolean): Bytes {
  const block = encrypted ? gcmBlock : plainBlock;
  const head = encrypted ? 1 : lengthBytes + 1; // what counts for the block beside payload and padding
  let padding = block - ((head + payload.length) % block);
  if (padding < minPadding) padding += block;
  const length = 1 + payload.length + padding;
  const packet = new Uint8Array(lengthBytes + length);
  new DataView(packet.buffer).setUint32(0, length);
  packet[lengthBytes] = padding;
  packet.set(payload, lengthBytes + 1);
  random(packet.subarray(packet.length - padding));
  return packet;
}

const maxVersionBytes = 255; // with its line break, RFC 4253 part 4.2
const maxPreambleBytes = 8 << 10; // lines before it, for which servers have little use

/** Finds the server's identification line, which lines of text may precede. */
export class VersionReader {
  #seen = 0;
  #scanned = 0;

  /** The line without its end, or null where more is needed. */
  read(input: Input): string | null {
    for (;;) {
      const end = input.indexOf(10, this.#scanned);
      if (end < 0) {
        this.#scanned = input.length;
        if (this.#seen + input.length > maxPreambleBytes) throw this.#none();
        if (input.length >= maxVersionBytes && isVersion(input.peek(4))) throw this.#none();
        return null;
      }
      this.#scanned = 0;
      this.#seen += end + 1;
      if (this.#seen > maxPreambleBytes) throw this.#none();
      const bytes = input.take(end + 1);
      if (!isVersion(bytes)) continue;
      const line = String.fromCharCode(...bytes.subarray(0, maxVersionBytes)).replace(/\r?\n$/, "");
      if (end >= maxVersionBytes || /[^ -~]/.test(line)) throw this.#none();
      if (!/^SSH-(2\.0|1\.99)-/.test(line)) throw new SshError("version", `the server speaks ${line.slice(0, 64)}, not SSH 2`);
      return line;
    }
  }

  #none(): SshError {
    return new SshError("version", "what answers does not speak SSH");
  }
}

const isVersion = (bytes: Uint8Array) => bytes[0] == 83 && bytes[1] == 83 && bytes[2] == 72 && bytes[3] == 45; // SSH-
