// What a push message says (docs/sessions.md), and the names of sessions in it.

export interface PushMessage {
  /** What this device calls the machine. */
  as: string;
  test: boolean;
  /** Names of the sessions that wait; the first ones, this many, are new. */
  open: string[];
  fresh: number;
  /** Of those that have no place. */
  more: number;
}

const MAX_OPEN = 64;
const word = /^[\w-]{1,64}$/;

/** Undefined for what is no message of ours. */
export const readMessage = (text: string | undefined): PushMessage | undefined => {
  let m: Record<string, unknown>;
  try {
    m = JSON.parse(text ?? "");
  } catch {
    return undefined;
  }
  if (!m || typeof m != "object" || m["v"] != 1 || typeof m["as"] != "string" || !word.test(m["as"])) return undefined;
  const open = (Array.isArray(m["open"]) ? m["open"] : []).filter((n): n is string => typeof n == "string" && word.test(n)).slice(0, MAX_OPEN);
  const count = (v: unknown, max: number) => (Number.isInteger(v) && (v as number) > 0 ? Math.min(v as number, max) : 0);
  return { as: m["as"], test: m["test"] === true, open, fresh: count(m["new"], open.length), more: count(m["more"], 9999) };
};

/** Of base64url. */
export const bytes = (s: string): Uint8Array<ArrayBuffer> => Uint8Array.from(atob(s.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));

export const base64url = (b: Uint8Array): string => btoa(String.fromCharCode(...b)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

/** The name of each session for this device. */
export const namer = async (as: string): Promise<(session: string) => Promise<string>> => {
  const encoder = new TextEncoder();
  const key = await crypto.subtle.importKey("raw", encoder.encode(as), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return async (session) => base64url(new Uint8Array(await crypto.subtle.sign("HMAC", key, encoder.encode(`session\0${session}`))).subarray(0, 12));
};
