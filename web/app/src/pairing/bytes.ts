// Bytes and their spellings, as the pairing link and SSH need them.

/** Uint8Array over an ArrayBuffer of its own, which is what WebCrypto takes. */
export type Bytes = Uint8Array<ArrayBuffer>;

export const utf8 = (text: string): Bytes => new TextEncoder().encode(text) as Bytes;

export const concat = (...parts: readonly Uint8Array[]): Bytes => {
  const out = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const p of parts) {
    out.set(p, at);
    at += p.length;
  }
  return out;
};

export const uint32 = (n: number): Bytes => {
  const out = new Uint8Array(4);
  new DataView(out.buffer).setUint32(0, n);
  return out;
};

/** An SSH string (RFC 4251 section 5): the length, then the bytes. */
export const sshString = (b: Uint8Array): Bytes => concat(uint32(b.length), b);

/** Takes one SSH string off b; undefined where b is cut off. */
export const cutString = (b: Uint8Array): [Uint8Array, Uint8Array] | undefined => {
  if (b.length < 4) return undefined;
  const n = new DataView(b.buffer, b.byteOffset, b.length).getUint32(0);
  if (n > b.length - 4) return undefined;
  return [b.subarray(4, 4 + n), b.subarray(4 + n)];
};

export const equal = (a: Uint8Array, b: Uint8Array): boolean => {
  if (a.length != b.length) return false;
  let different = 0;
  for (let i = 0; i < a.length; i++) different |= a[i]! ^ b[i]!;
  return different == 0;
};

const binary = (b: Uint8Array): string => {
  let s = "";
  for (const byte of b) s += String.fromCharCode(byte);
  return s;
};

export const toBase64 = (b: Uint8Array): string => btoa(binary(b));

export const toBase64url = (b: Uint8Array): string => toBase64(b).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

/** Standard base64 with its padding and without stray bits; undefined for anything else. */
export const fromBase64 = (text: string): Bytes | undefined => {
  if (text.length % 4 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) return undefined;
  const out = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return toBase64(out) == text ? out : undefined;
};

/** base64url without padding and without stray bits; undefined for anything else. */
export const fromBase64url = (text: string): Bytes | undefined => {
  if (!/^[A-Za-z0-9_-]*$/.test(text) || text.length % 4 == 1) return undefined;
  const out = Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
  return toBase64url(out) == text ? out : undefined;
};

export const sha256 = async (b: Uint8Array): Promise<Bytes> => new Uint8Array(await crypto.subtle.digest("SHA-256", b as Bytes));

/**
 * Text of a peer that is shown: without control and format characters (a
 * bidirectional override among them), and at most so many bytes of UTF-8.
 */
export const cleanText = (s: string, maxBytes: number): string => {
  let text = s.slice(0, 8 * maxBytes).replace(/[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029\ufffd]/gu, "");
  let used = 0;
  let at = 0;
  for (const c of text) {
    used += utf8(c).length;
    if (used > maxBytes) break;
    at += c.length;
  }
  text = text.slice(0, at);
  return text;
};
