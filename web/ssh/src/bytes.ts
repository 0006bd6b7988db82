// SSH's data types (RFC 4251 part 5): bytes in, values out, and back. Every
// length is compared with what is there before anything is made from it.

import { SshError } from "./errors.js";

/** What WebCrypto takes: never shared memory. */
export type Bytes = Uint8Array<ArrayBuffer>;

const utf8 = new TextEncoder();
const text = new TextDecoder();

export const encode = (value: string): Bytes => utf8.encode(value);

export function concat(...parts: readonly Uint8Array[]): Bytes {
  const out = new Uint8Array(parts.reduce((n, part) => n + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

/** Says whether two texts are the same in a time that depends on their lengths alone. */
export function same(a: Uint8Array, b: Uint8Array): boolean {
  let difference = a.length ^ b.length;
  for (let i = 0; i < a.length; i++) difference |= a[i]! ^ (b[i] ?? 0);
  return difference == 0;
}

/** A server's words, fit for a line on a screen: no control characters or changes of direction, and not endless. */
export function printable(words: string): string {
  return words.replace(/[\s\p{Cc}\p{Cf}]+/gu, " ").trim().slice(0, 256);
}

/** Reads one message. What is missing, too long or left over is an SshError of code protocol. */
export class Reader {
  readonly #bytes: Bytes;
  readonly #what: string;
  #at = 0;

  constructor(bytes: Uint8Array, what: string) {
    this.#bytes = bytes as Bytes;
    this.#what = what;
  }

  wrong(how: string): SshError {
    return new SshError("protocol", `the server sent a wrong ${this.#what}: ${how}`);
  }

  take(length: number): Bytes {
    if (length > this.#bytes.length - this.#at) throw this.wrong(`it ends early`);
    this.#at += length;
    return this.#bytes.subarray(this.#at - length, this.#at);
  }

  byte(): number {
    return this.take(1)[0]!;
  }

  bool(): boolean {
    return this.byte() != 0;
  }

  u32(): number {
    const [a, b, c, d] = this.take(4);
    return ((a! << 24) | (b! << 16) | (c! << 8) | d!) >>> 0;
  }

  /** A string of bytes; shares the message's memory. */
  string(max = Infinity): Bytes {
    const length = this.u32();
    if (length > max) throw this.wrong(`${length} bytes where at most ${max} have a place`);
    return this.take(length);
  }

  text(max = Infinity): string {
    return text.decode(this.string(max));
  }

  /** A list of names, which are printable ASCII. */
  names(): string[] {
    const list = this.text();
    if (/[^!-~]/.test(list)) throw this.wrong("a name that is not ASCII");
    return list == "" ? [] : list.split(",");
  }

  /** A positive integer, as its bytes without leading zeros. */
  positive(max: number): Bytes {
    let value = this.string(max + 1);
    if (value.length == 0 || value[0]! >= 0x80) throw this.wrong("a number that is not positive");
    if (value[0] == 0) {
      if (value.length == 1 || value[1]! < 0x80) throw this.wrong("a number that is not in its shortest form");
      value = value.subarray(1);
    }
    if (value.length > max) throw this.wrong("a number that is too large");
    return value;
  }

  get left(): number {
    return this.#bytes.length - this.#at;
  }

  end(): void {
    if (this.left > 0) throw this.wrong(`${this.left} bytes too many`);
  }
}

/** Writes one message. */
export class Writer {
  #bytes: Bytes = new Uint8Array(256);
  #length = 0;

  constructor(type?: number) {
    if (type !== undefined) this.byte(type);
  }

  raw(bytes: Uint8Array): this {
    const end = this.#length + bytes.length;
    if (end > this.#bytes.length) {
      const grown = new Uint8Array(Math.max(end, 2 * this.#bytes.length));
      grown.set(this.#bytes.subarray(0, this.#length));
      this.#bytes = grown;
    }
    this.#bytes.set(bytes, this.#length);
    this.#length = end;
    return this;
  }

  byte(value: number): this {
    return this.raw(Uint8Array.of(value));
  }

  bool(value: boolean): this {
    return this.byte(value ? 1 : 0);
  }

  u32(value: number): this {
    return this.raw(Uint8Array.of(value >>> 24, value >>> 16, value >>> 8, value));
  }

  string(value: Uint8Array | string): this {
    const bytes = typeof value == "string" ? encode(value) : value;
    // Whatever else a caller without types hands over would become a message of no length.
    if (!(bytes instanceof Uint8Array)) throw new TypeError("neither text nor bytes");
    return this.u32(bytes.length).raw(bytes);
  }

  /** A number that is not negative, given by its bytes. */
  mpint(value: Uint8Array): this {
    let at = 0;
    while (at < value.length && value[at] == 0) at++;
    const sign = value.length > at && value[at]! >= 0x80 ? 1 : 0;
    this.u32(value.length - at + sign);
    if (sign) this.byte(0);
    return this.raw(value.subarray(at));
  }

  get bytes(): Bytes {
    return this.#bytes.subarray(0, this.#length);
  }
}
