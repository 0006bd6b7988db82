// SSH public keys as authorized_keys and the `pair` subsystem spell them. Both
// the agent and this page refuse the same lines: testdata/vectors/pairing.

import { concat, cutString, fromBase64, sha256, sshString, toBase64, utf8, type Bytes } from "./bytes.js";

export const ED25519 = "ssh-ed25519";
export const P256 = "ecdsa-sha2-nistp256";

/** A public key that is syntactically right, which says nothing about who holds its private half. */
export interface PublicKey {
  type: string;
  /** RFC 4253 section 6.6. */
  blob: Bytes;
}

/** Why a text is no key. */
export class KeyError extends Error {
  override name = "KeyError";
}

const MAX_TYPE = 64; // the longest of OpenSSH has 46
const MAX_BLOB = 4096;
const MAX_LINE = MAX_TYPE + 1 + Math.ceil(MAX_BLOB / 3) * 4;

/** Reads "type base64", with or without a comment. */
export const parseKey = async (line: string): Promise<PublicKey> => {
  if (line.length > MAX_LINE + 1024) throw new KeyError("the key is too long");
  if (/[\r\n\0]/.test(line)) throw new KeyError("more than one line");
  const [type, text] = line.split(/\s+/).filter((w) => w);
  if (!type || !text) throw new KeyError('a key is "type base64"');
  if (text.length > Math.ceil(MAX_BLOB / 3) * 4) throw new KeyError("the key is too long");
  const blob = fromBase64(text);
  if (!blob) throw new KeyError("the key's second word is not base64");
  const key = await parseKeyBlob(blob);
  if (key.type != type) throw new KeyError("the base64 holds another type than it says");
  return key;
};

/** Reads the wire form of a key. */
export const parseKeyBlob = async (blob: Bytes): Promise<PublicKey> => {
  if (blob.length > MAX_BLOB) throw new KeyError("the key is too long");
  const [kind, rest] = cutString(blob) ?? [new Uint8Array(), new Uint8Array()];
  if (!kind.length || kind.length > MAX_TYPE || !rest.length) throw new KeyError("the key is cut off");
  const type = String.fromCharCode(...kind);
  if (!/^[!$-+\--[\]-~]+$/.test(type)) throw new KeyError("the key's type has a strange character");
  if (type == ED25519) {
    const [raw, more] = cutString(rest) ?? [new Uint8Array(), rest];
    if (raw.length != 32 || more.length) throw new KeyError("an ed25519 key of a wrong length");
  } else if (type == P256) {
    const [curve, more] = cutString(rest) ?? [new Uint8Array(), rest];
    if (String.fromCharCode(...curve) != "nistp256") throw new KeyError("a key of another curve");
    const [point, end] = cutString(more) ?? [new Uint8Array(), more];
    if (point.length != 65 || end.length) throw new KeyError("a P-256 key of a wrong length");
    await checkPoint(new Uint8Array(point));
  }
  return { type, blob };
};

/** Whether a device or the built-in server may have such a key. */
export const isOwn = (k: PublicKey): boolean => k.type == ED25519 || k.type == P256;

export const ed25519Key = (raw: Uint8Array): PublicKey => ({ type: ED25519, blob: concat(sshString(utf8(ED25519)), sshString(raw)) });

export const p256Key = async (point: Uint8Array): Promise<PublicKey> => {
  await checkPoint(new Uint8Array(point));
  return { type: P256, blob: concat(sshString(utf8(P256)), sshString(utf8("nistp256")), sshString(point)) };
};

const checkPoint = async (point: Bytes): Promise<void> => {
  if (point[0] != 4) throw new KeyError("a compressed point");
  try {
    await crypto.subtle.importKey("raw", point, { name: "ECDSA", namedCurve: "P-256" }, true, ["verify"]);
  } catch {
    throw new KeyError("a point that is not on its curve");
  }
};

/** "type base64", without a comment. */
export const keyLine = (k: PublicKey): string => `${k.type} ${toBase64(k.blob)}`;

/** The key's SHA-256 as OpenSSH shows it. */
export const fingerprint = async (blob: Uint8Array): Promise<string> => "SHA256:" + toBase64(await sha256(blob)).replace(/=+$/, "");
