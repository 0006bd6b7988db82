// The pairing link: what the fragment of RELAY/#FRAGMENT holds, and what is
// derived from its secret. docs/protocol.md, "Pairing".
//
// A link is a bearer secret for five minutes: its text goes into no log, no
// request and no storage. No error repeats it.

import { concat, fromBase64url, sha256, toBase64url, uint32, utf8, type Bytes } from "./bytes.js";
import { ed25519Key, p256Key, type PublicKey } from "./key.js";

export interface Link {
  /** http or https, without a trailing slash. */
  relay: string;
  machine: string;
  /** Of the machine's built-in SSH server, best first: 1 to 4. */
  hostKeys: PublicKey[];
  /** S, 128 bits. */
  secret: Bytes;
  /** Unix seconds. */
  expires: number;
}

/** notLink: another text. cutOff: ends too early. damaged: not what was printed. version: of a later one. */
export type LinkFault = "notLink" | "cutOff" | "damaged" | "version";

export class LinkError extends Error {
  override name = "LinkError";
  constructor(readonly fault: LinkFault) {
    super(`pairing link: ${fault}`);
  }
}

const MAX_LINK = 1024;
const MAX_RELAY = 120;
const MAX_KEYS = 4;
const CHECK = 4; // bytes of SHA-256 against a slip in copying
const V1 = "hf1.";

/** Whether a page's fragment is meant to be a pairing link, whole or not. */
export const looksLikeLink = (fragment: string): boolean => /^hf\d*\./.test(fragment);

/** Reads a link as a person pastes it: blanks and line breaks are left out. */
export const parseLink = async (pasted: string): Promise<Link> => {
  if (pasted.length > 2 * MAX_LINK) throw new LinkError("notLink");
  const text = pasted.replace(/[ \t\r\n]/g, "");
  if (utf8(text).length > MAX_LINK) throw new LinkError("notLink");
  const hash = text.indexOf("#");
  const page = hash < 0 ? text : text.slice(0, hash);
  if (!/^https?:\/\/[^/?#]/i.test(page) || !URL.canParse(page)) throw new LinkError("notLink");
  if (hash < 0) throw new LinkError("cutOff");
  return parseFragment(text.slice(hash + 1));
};

/** Reads what follows the '#'. */
export const parseFragment = async (fragment: string): Promise<Link> => {
  if (fragment.length > MAX_LINK) throw new LinkError("notLink");
  if (!fragment.startsWith(V1)) {
    if (V1.startsWith(fragment)) throw new LinkError("cutOff");
    throw new LinkError(/^hf\d+\./.test(fragment) ? "version" : "notLink");
  }
  const [body, whole] = decode(fragment.slice(V1.length));
  let rest: Uint8Array = body;
  const take = (n: number): Uint8Array => {
    if (rest.length < n) throw new LinkError("cutOff");
    const b = rest.subarray(0, n);
    rest = rest.subarray(n);
    return b;
  };
  const secret = new Uint8Array(take(16));
  const e = take(4);
  const expires = new DataView(e.buffer, e.byteOffset, 4).getUint32(0);
  const relay = ascii(take(take(1)[0]!));
  const machine = ascii(take(take(1)[0]!));
  const count = take(1)[0]!;
  if (count < 1 || count > MAX_KEYS) throw new LinkError("damaged");
  const hostKeys: PublicKey[] = [];
  for (let i = 0; i < count; i++) {
    const tag = take(1)[0];
    if (tag == 1) hostKeys.push(ed25519Key(take(32)));
    else if (tag == 2) {
      const point = take(65);
      hostKeys.push(await p256Key(point).catch(() => Promise.reject(new LinkError("damaged"))));
    } else throw new LinkError("damaged");
  }
  if (rest.length < CHECK) throw new LinkError("cutOff");
  const sum = (await sha256(body.subarray(0, body.length - CHECK))).subarray(0, CHECK);
  const said = body.subarray(body.length - CHECK);
  if (!whole || sum.some((b, i) => b != said[i])) throw new LinkError("damaged");
  if (!relayOk(relay) || !machineOk(machine) || expires == 0 || secret.every((b) => !b)) throw new LinkError("damaged");
  return { relay, machine, hostKeys, secret, expires };
};

/** As much of text as is there, so that a link cut between two characters is called cut off, not damaged. */
const decode = (text: string): [body: Bytes, whole: boolean] => {
  if (!/^[A-Za-z0-9_-]*$/.test(text)) throw new LinkError("damaged");
  const body = fromBase64url(text);
  if (body) return [body, true];
  const even = text.length % 4 == 1 ? text.slice(0, -1) : text;
  return [Uint8Array.from(atob(even.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0)), false];
};

const ascii = (b: Uint8Array): string => String.fromCharCode(...b);

/** The URL that a link may carry: http or https with a host; no user, query, fragment, escape or trailing slash. */
export const relayOk = (relay: string): boolean => {
  if (relay.length > MAX_RELAY || !/^https?:\/\/[!-~]+$/.test(relay) || /[?#%]|\/$/.test(relay) || !URL.canParse(relay)) return false;
  const u = new URL(relay);
  return !!u.host && !u.username && !u.password && !/^https?:\/\/[^/]*@/.test(relay);
};

/** Whether a link leads to another relay than the one that serves this page. */
export const foreignRelay = (relay: string, origin: string): boolean => new URL(relay).origin != origin;

export const machineOk = (machine: string): boolean => /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/.test(machine);

const derive = async (secret: Bytes, info: string): Promise<Bytes> => {
  const key = await crypto.subtle.importKey("raw", secret, "HKDF", false, ["deriveBits"]);
  const bits = { name: "HKDF", hash: "SHA-256", salt: new Uint8Array(), info: utf8(info) };
  return new Uint8Array(await crypto.subtle.deriveBits(bits, key, 256));
};

/** What the relay is shown for a token: base64url. From it nobody can compute the secret or the proof. */
export const relaySecret = async (link: Pick<Link, "secret">): Promise<string> => toBase64url(await derive(link.secret, "relay"));

export interface Binding {
  /** The SSH connection's exchange hash. */
  sessionId: Uint8Array;
  /** Blobs of the keys that this very connection authenticated with. */
  deviceKey: Uint8Array;
  hostKey: Uint8Array;
  machine: string;
}

/** Shows the agent, inside SSH, that this device knows the secret. */
export const prove = async (link: Pick<Link, "secret">, b: Binding): Promise<string> => {
  const key = await crypto.subtle.importKey("raw", await derive(link.secret, "agent"), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const parts = [b.sessionId, b.deviceKey, b.hostKey, utf8(b.machine)].flatMap((p) => [uint32(p.length), p]);
  return toBase64url(new Uint8Array(await crypto.subtle.sign("HMAC", key, concat(...parts))));
};

