// Key exchange: what is offered, what is agreed on, and the three methods
// (RFC 8731, RFC 5656, and mlkem768x25519-sha256 of
// draft-ietf-sshm-mlkem-hybrid-kex). Values in, values out.

import { concat, Reader, Writer, type Bytes } from "./bytes.js";
import { SshError } from "./errors.js";
import { Gcm } from "./packets.js";
import type { KeyType } from "./types.js";

export const msgKexInit = 20;
export const msgNewKeys = 21;
export const msgExchangeInit = 30;
export const msgExchangeReply = 31;

const hybrid = "mlkem768x25519-sha256";
const ciphers: Record<string, number> = { "aes256-gcm@openssh.com": 32, "aes128-gcm@openssh.com": 16 }; // bytes of their keys
const strictClient = "kex-strict-c-v00@openssh.com";
const strictServer = "kex-strict-s-v00@openssh.com";
// Unused, as our ciphers authenticate; some servers refuse when they find no common one.
const macs = ["hmac-sha2-256", "hmac-sha2-512"];
const maxReplyPart = 4 << 10; // bytes; host keys, signatures and the longest method's 1,120

/** The methods that this browser can do, best first. */
export async function methods(): Promise<string[]> {
  const out = ["ecdh-sha2-nistp256"];
  try {
    await crypto.subtle.generateKey({ name: "X25519" }, false, ["deriveBits"]);
    out.unshift(hybrid, "curve25519-sha256");
  } catch {
    // A browser of before 2025: what is left is not post-quantum, and the client says so.
  }
  return out;
}

export const isPostQuantum = (kex: string) => kex == hybrid;

/** first: of the connection; later ones repeat neither of the two offers that hold for all of it. */
export function kexInit(kex: readonly string[], hostKeyTypes: readonly KeyType[], first: boolean): Bytes {
  const w = new Writer(msgKexInit).raw(crypto.getRandomValues(new Uint8Array(16)));
  const encryption = Object.keys(ciphers);
  const lists = [first ? [...kex, "ext-info-c", strictClient] : kex, hostKeyTypes, encryption, encryption, macs, macs, ["none"], ["none"], [], []];
  for (const list of lists) w.string(list.join(","));
  return w.bool(false).u32(0).bytes;
}

export interface Agreed {
  kex: string;
  hostKey: KeyType;
  cipherOut: string;
  cipherIn: string;
  /** The server offers strict key exchange. */
  strict: boolean;
  /** The server sends a message of a method that it guessed, wrongly: it has no meaning. */
  skipGuess: boolean;
}

/** The server has no key of a pinned type. */
export class NoHostKey extends SshError {
  readonly offered: string;
  constructor(offered: string) {
    super("host-key", `the server has no host key of the pinned type, only ${offered}`);
    this.offered = offered;
  }
}

export function negotiate(payload: Bytes, kex: readonly string[], hostKeyTypes: readonly KeyType[]): Agreed {
  const r = new Reader(payload, "KEXINIT");
  r.take(1 + 16);
  const lists = Array.from({ length: 10 }, () => r.names());
  const guesses = r.bool();
  r.u32();
  r.end();
  const pick = (ours: readonly string[], theirs: string[], what: string): string => {
    const found = ours.find((name) => theirs.includes(name));
    if (!found) throw new SshError("algorithms", `the server has none of our ${what} (${ours.join(", ")}): it has ${theirs.join(", ").slice(0, 300) || "none"}`);
    return found;
  };
  const [theirKex, theirKeys, theirCipherOut, theirCipherIn, , , compressOut, compressIn] = lists as [string[], string[], string[], string[], unknown, unknown, string[], string[]];
  const method = pick(kex, theirKex, "key exchanges");
  const hostKey = hostKeyTypes.find((type) => theirKeys.includes(type));
  if (!hostKey) throw new NoHostKey(theirKeys.join(", ").slice(0, 300) || "none");
  const encryption = Object.keys(ciphers);
  const cipherOut = pick(encryption, theirCipherOut, "ciphers");
  const cipherIn = pick(encryption, theirCipherIn, "ciphers");
  pick(["none"], compressOut, "compressions");
  pick(["none"], compressIn, "compressions");
  const right = theirKex[0] == kex[0] && theirKeys[0] == hostKeyTypes[0];
  return { kex: method, hostKey, cipherOut, cipherIn, strict: theirKex.includes(strictServer), skipGuess: guesses && !right };
}

/** Our half of a key exchange. */
export interface Exchange {
  /** What is sent. */
  readonly ours: Bytes;
  /** Makes the shared secret from what the server sent, in the encoding in which it is hashed. */
  finish(theirs: Bytes): Promise<Bytes>;
}

const wrongShare = (cause?: unknown) => new SshError("protocol", "the server sent a wrong share of the key exchange", cause);

async function diffieHellman(algorithm: { name: string; namedCurve?: string }, length: number): Promise<Exchange> {
  const pair = (await crypto.subtle.generateKey(algorithm, false, ["deriveBits"])) as CryptoKeyPair;
  return {
    ours: new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey)),
    async finish(theirs) {
      if (theirs.length != length) throw wrongShare();
      let secret: Bytes;
      try {
        const theirKey = await crypto.subtle.importKey("raw", theirs, algorithm, false, []);
        secret = new Uint8Array(await crypto.subtle.deriveBits({ name: algorithm.name, public: theirKey } as AlgorithmIdentifier, pair.privateKey, 256));
      } catch (cause) {
        throw wrongShare(cause); // no point on the curve, or one of low order
      }
      if (secret.every((b) => b == 0)) throw wrongShare();
      return secret;
    },
  };
}

export async function beginExchange(method: string): Promise<Exchange> {
  if (method == "ecdh-sha2-nistp256") return asInteger(await diffieHellman({ name: "ECDH", namedCurve: "P-256" }, 65));
  const classical = await diffieHellman({ name: "X25519" }, 32);
  if (method != hybrid) return asInteger(classical);

  let kem: typeof import("./mlkem.js").ml_kem768;
  try {
    kem = (await import("./mlkem.js")).ml_kem768;
  } catch (cause) {
    // Going on with less than was agreed on is what somebody in the middle would wish for.
    throw new SshError("unsupported", "the post-quantum part of this app did not load: try again when the page's server is reachable", cause);
  }
  const { publicKey, secretKey } = kem.keygen();
  return {
    ours: concat(publicKey, classical.ours),
    async finish(theirs) {
      const length = theirs.length - 32;
      if (length != kem.lengths.cipherText) throw wrongShare();
      const quantum = kem.decapsulate(theirs.subarray(0, length), secretKey);
      const both = concat(quantum, await classical.finish(theirs.subarray(length)));
      const secret = await sha256(both);
      for (const used of [quantum, both, secretKey]) used.fill(0);
      return new Writer().string(secret).bytes;
    },
  };
}

/** The older methods hash the secret as a number. */
const asInteger = ({ ours, finish }: Exchange): Exchange => ({ ours, finish: async (theirs) => new Writer().mpint(await finish(theirs)).bytes });

const sha256 = async (data: Bytes): Promise<Bytes> => new Uint8Array(await crypto.subtle.digest("SHA-256", data));

export interface Reply {
  hostKey: Bytes;
  theirs: Bytes;
  signature: Bytes;
}

export function parseReply(payload: Bytes): Reply {
  const r = new Reader(payload, "key exchange reply");
  r.take(1);
  const reply = { hostKey: r.string(maxReplyPart), theirs: r.string(maxReplyPart), signature: r.string(maxReplyPart) };
  r.end();
  return reply;
}

/** What the host key signs, and all keys depend on. secret is encoded already. */
export function exchangeHash(versions: [Bytes, Bytes], inits: [Bytes, Bytes], hostKey: Bytes, shares: [Bytes, Bytes], secret: Bytes): Promise<Bytes> {
  const w = new Writer();
  for (const part of [...versions, ...inits, hostKey, ...shares]) w.string(part);
  return sha256(w.raw(secret).bytes);
}

/** Makes the keys of both directions (RFC 4253 part 7.2); one hash is enough for each. */
export async function deriveKeys(agreed: Agreed, secret: Bytes, hash: Bytes, sessionId: Bytes): Promise<{ out: Gcm; in: Gcm }> {
  const derive = (letter: string) => sha256(concat(secret, hash, Uint8Array.of(letter.charCodeAt(0)), sessionId));
  const direction = async (cipher: string, use: KeyUsage, nonceLetter: string, keyLetter: string): Promise<Gcm> => {
    const raw = await derive(keyLetter);
    const key = await crypto.subtle.importKey("raw", raw.subarray(0, ciphers[cipher]), "AES-GCM", false, [use]);
    raw.fill(0);
    return new Gcm(key, (await derive(nonceLetter)).slice(0, 12));
  };
  return { out: await direction(agreed.cipherOut, "encrypt", "A", "C"), in: await direction(agreed.cipherIn, "decrypt", "B", "D") };
}
