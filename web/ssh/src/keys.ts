// Keys of hosts and devices: their encodings (RFC 4253 part 6.6, RFC 5656
// part 3.1, RFC 8709), and WebCrypto's ways with them.

import { concat, encode, Reader, Writer, type Bytes } from "./bytes.js";
import { SshError } from "./errors.js";
import type { HostKey, KeyType, Signer } from "./types.js";

const curve = "nistp256";
const coordinate = 32; // bytes of a number modulo the order of P-256
const signatureBytes = 64; // of both kinds, as WebCrypto has them
const maxKeyBytes = 256; // the longest of the two has 104

const p256 = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" };
const ed25519 = { name: "Ed25519" };
const algorithm = (type: KeyType) => (type == "ssh-ed25519" ? ed25519 : p256);

export const isKeyType = (type: string): type is KeyType => type == "ssh-ed25519" || type == "ecdsa-sha2-nistp256";

/** Reads a public key: its type and what WebCrypto calls its raw form. */
export function parseBlob(blob: Uint8Array, what = "key"): { type: KeyType; raw: Bytes } {
  const r = new Reader(blob, what);
  if (blob.length > maxKeyBytes) throw r.wrong("it is too long");
  const type = r.text(64);
  if (!isKeyType(type)) throw r.wrong("it is of another type");
  if (type == "ecdsa-sha2-nistp256" && r.text(16) != curve) throw r.wrong("it is of another curve");
  const raw = r.string(2 * coordinate + 1);
  r.end();
  if (type == "ssh-ed25519" ? raw.length != 32 : raw.length != 2 * coordinate + 1 || raw[0] != 4) throw r.wrong("it has a wrong length or form");
  return { type, raw };
}

const blobOf = (type: KeyType, raw: Uint8Array): Bytes => {
  const w = new Writer().string(type);
  if (type == "ecdsa-sha2-nistp256") w.string(curve);
  return w.string(raw).bytes.slice();
};

/** Checks a signature as SSH carries it. Throws where blob or signature are no such thing, or this browser lacks the algorithm. */
export async function verify(blob: Uint8Array, signature: Uint8Array, data: Bytes): Promise<boolean> {
  const { type, raw } = parseBlob(blob, "host key");
  const r = new Reader(signature, "signature");
  if (r.text(64) != type) throw r.wrong("it is of another type than the key");
  let plain = r.string(2 * coordinate + 16);
  r.end();
  if (type == "ecdsa-sha2-nistp256") {
    const numbers = new Reader(plain, "signature");
    plain = new Uint8Array(signatureBytes);
    for (const end of [coordinate, 2 * coordinate]) {
      const number = numbers.positive(coordinate);
      plain.set(number, end - number.length);
    }
    numbers.end();
  }
  if (plain.length != signatureBytes) throw r.wrong("it has a wrong length");
  const key = await importHostKey(type, raw);
  return crypto.subtle.verify(algorithm(type), key, plain, data);
}

async function importHostKey(type: KeyType, raw: Bytes): Promise<CryptoKey> {
  try {
    return await crypto.subtle.importKey("raw", raw, algorithm(type), false, ["verify"]);
  } catch (cause) {
    if ((cause as Error).name == "NotSupportedError") throw new SshError("unsupported", `this browser cannot check ${type} host keys: update it`, cause);
    throw new SshError("protocol", `the ${type} host key is no point on its curve`, cause);
  }
}

/** Signs with the device's key, in SSH's encoding. */
export async function signWith(signer: Signer, data: Bytes): Promise<Bytes> {
  const plain = await signer.sign(data);
  if (plain.length != signatureBytes) throw new TypeError(`signer: a signature of ${plain.length} bytes, want ${signatureBytes}`);
  const inner = signer.algorithm == "ssh-ed25519" ? plain : new Writer().mpint(plain.subarray(0, coordinate)).mpint(plain.subarray(coordinate)).bytes;
  return new Writer().string(signer.algorithm).string(inner).bytes;
}

const base64 = (bytes: Uint8Array) => btoa(String.fromCharCode(...bytes));

/** A key's SHA-256, as OpenSSH shows it. */
export async function fingerprint(blob: Uint8Array): Promise<string> {
  return "SHA256:" + base64(new Uint8Array(await crypto.subtle.digest("SHA-256", blob as Bytes))).replace(/=+$/, "");
}

/** A public key as authorized_keys and known_hosts spell it: type, base64 and, where given, a comment without line breaks. */
export function publicKeyLine(key: Uint8Array | { publicBlob: Uint8Array }, comment = ""): string {
  const blob = key instanceof Uint8Array ? key : key.publicBlob;
  return [parseBlob(blob).type, base64(blob), comment.replace(/[\r\n\0]+/g, " ").trim()].join(" ").trim();
}

/** Reads such a line. Throws a TypeError where it holds no key of a type known here. */
export function parsePublicKey(line: string): HostKey {
  const [type, encoded = ""] = line.trim().split(/\s+/);
  try {
    const blob = Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0));
    const key = parseBlob(blob);
    if (key.type != type) throw new TypeError("the two types differ");
    return { type: key.type, blob };
  } catch (cause) {
    throw new TypeError("not an ssh-ed25519 or ecdsa-sha2-nistp256 public key", { cause });
  }
}

/** Can be put into IndexedDB as it is: what was generated stays in the browser that made it, and cannot be read out. */
export interface DeviceKey {
  readonly algorithm: KeyType;
  readonly publicBlob: Uint8Array;
  readonly privateKey: CryptoKey;
}

/**
 * Makes a key whose private half no script can read, this one included. P-256
 * is what every browser has; Ed25519 rejects with `unsupported` where it lacks.
 */
export async function generateDeviceKey(type: KeyType = "ecdsa-sha2-nistp256"): Promise<DeviceKey> {
  let pair: CryptoKeyPair;
  try {
    pair = (await crypto.subtle.generateKey(algorithm(type), false, ["sign", "verify"])) as CryptoKeyPair;
  } catch (cause) {
    throw new SshError("unsupported", `this browser cannot make ${type} keys`, cause);
  }
  const raw = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
  return { algorithm: type, publicBlob: blobOf(type, raw), privateKey: pair.privateKey };
}

/** The signer that connect wants. */
export function deviceSigner(key: DeviceKey): Signer {
  return {
    algorithm: key.algorithm,
    publicBlob: key.publicBlob,
    sign: async (data) => new Uint8Array(await crypto.subtle.sign(algorithm(key.algorithm), key.privateKey, data as Bytes)),
  };
}

const announcement = "hostkeys-prove-00@openssh.com";

/** What a host key signs to prove that the server holds it (OpenSSH's PROTOCOL, part 2.5). */
export const proofOf = (sessionId: Bytes, blob: Uint8Array): Bytes => concat(new Writer().string(encode(announcement)).string(sessionId).string(blob).bytes);
