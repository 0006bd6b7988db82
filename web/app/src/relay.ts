// The relay's JSON interface: /v1 of docs/protocol.md.

import { codeOfRefusal } from "@holdfast/live/parts";
import { cleanText, concat } from "./pairing/bytes.js";
import { machineOk } from "./pairing/link.js";

/** An answer that is none: code is the close code with the same meaning, 1006 for no believable answer. */
export class RelayError extends Error {
  override name = "RelayError";
  constructor(
    readonly code: number,
    readonly status: number,
    text: string,
  ) {
    super(text);
  }
}

const states = ["offline", "connected", "reachable", "unreachable"] as const;

export interface RelayMachine {
  machine: string;
  /** undefined for a word of a later relay. */
  state: (typeof states)[number] | undefined;
  provenAt: string | undefined;
  /** Without control characters and changes of direction, as all text here but a notice's. */
  reason: string;
}

export interface RelayDevice {
  id: string;
  name: string;
  created: string;
  used: string | undefined;
  this: boolean;
}

/** What the relay's operator tells the account. */
export interface RelayNotice {
  id: string;
  at: string;
  text: string;
}

/** So long may the relay take: it answers from memory. */
const TIMEOUT = 8e3;
/** More than the longest honest list; a stranger's page is not read into memory. */
const MAX_BODY = 1 << 20;

const request = async (relay: string, path: string, init: RequestInit & { token?: string }): Promise<any> => {
  const { token, ...rest } = init;
  const headers = new Headers(rest.headers);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let r: Response;
  try {
    r = await fetch(relay + path, { ...rest, headers, credentials: "omit", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer", signal: AbortSignal.timeout(TIMEOUT) });
  } catch {
    throw new RelayError(1006, 0, "no answer");
  }
  if (r.status == 204) return undefined;
  const body = await read(r);
  if (!r.ok) {
    const text = typeof body?.detail == "string" ? cleanText(body.detail, 300) : `status ${r.status}`;
    throw new RelayError(codeOfRefusal(r.status, r.headers.has("Holdfast-Refusal")), r.status, text);
  }
  if (!body || typeof body != "object") throw new RelayError(1006, r.status, "the answer is not the relay's");
  return body;
};

/** The answer as JSON, undefined where it is none. Its length is counted as it comes: not every answer says it before. */
const read = async (r: Response): Promise<any> => {
  const parts: Uint8Array[] = [];
  let length = 0;
  const reader = r.body?.getReader();
  try {
    for (let next; reader && !(next = await reader.read()).done; parts.push(next.value)) {
      length += next.value.length;
      if (length > MAX_BODY) throw new RelayError(1006, r.status, "the answer is too long");
    }
    return JSON.parse(new TextDecoder().decode(concat(...parts)));
  } catch (e) {
    void reader?.cancel().catch(() => undefined);
    if (e instanceof RelayError) throw e;
    return undefined;
  }
};

const isRecord = (v: unknown): v is Record<string, unknown> => typeof v == "object" && v !== null;
/** A field's text as it may be shown; "" where there is none. */
const shown = (v: unknown, maxBytes: number): string => (typeof v == "string" ? cleanText(v, maxBytes) : "");
/** A time of the relay, or none. */
const time = (v: unknown): string | undefined => (typeof v == "string" && v.length < 64 && Date.parse(v) > 0 ? v : undefined);
const rows = (v: unknown, max: number): Record<string, unknown>[] => (Array.isArray(v) ? v.filter(isRecord).slice(0, max) : []);

/** More machines or devices of one account than this are not a person's. */
const MAX_ROWS = 1000;
const MAX_NOTICES = 50;
/** UTF-16 units of a notice, which has 4 KiB at the relay. */
const MAX_NOTICE = 4096;

/** What this token may do, for a page whose socket never opened. */
export const access = (relay: string, token: string, machine: string): Promise<{ account: string; state: string }> =>
  request(relay, `/v1/access?machine=${machine}`, { token });

export const listMachines = async (relay: string, token: string): Promise<RelayMachine[]> => {
  const { machines } = await request(relay, "/v1/machines", { token });
  return rows(machines, MAX_ROWS).flatMap((m): RelayMachine[] => {
    if (typeof m["machine"] != "string" || !machineOk(m["machine"])) return [];
    return [{ machine: m["machine"], state: states.find((s) => s === m["state"]), provenAt: time(m["provenAt"]), reason: shown(m["reason"], 300) }];
  });
};

export const listDevices = async (relay: string, token: string): Promise<RelayDevice[]> => {
  const { devices } = await request(relay, "/v1/devices", { token });
  return rows(devices, MAX_ROWS).flatMap((d): RelayDevice[] =>
    typeof d["id"] == "string" && d["id"].length <= 128 && typeof d["name"] == "string"
      ? [{ id: d["id"], name: shown(d["name"], 64), created: time(d["created"]) ?? "", used: time(d["used"]), this: d["this"] === true }]
      : [],
  );
};

/** Those that nobody of the account has read, the oldest first. */
export const listNotices = async (relay: string, token: string): Promise<RelayNotice[]> => {
  const { notices } = await request(relay, "/v1/notices?unread=true", { token });
  return rows(notices, MAX_NOTICES).flatMap((n): RelayNotice[] =>
    typeof n["id"] == "string" && n["id"].length <= 128 && typeof n["text"] == "string" && !n["read"] ? [{ id: n["id"], at: time(n["at"]) ?? "", text: n["text"].slice(0, MAX_NOTICE) }] : [],
  );
};

/** Marks one read for every device of the account; it may be repeated. */
export const acknowledge = (relay: string, token: string, id: string): Promise<void> =>
  request(relay, `/v1/notices/${encodeURIComponent(id)}/ack`, { token, method: "POST" });

export const revokeDevice = (relay: string, token: string, id: string): Promise<void> =>
  request(relay, `/v1/devices/${encodeURIComponent(id)}`, { token, method: "DELETE" });

export interface Redeemed {
  token: string;
  device: string;
  account: string;
  machine: string;
}

/** Shows the relay its share of a link's secret. The body is the only place where it ever stands. */
export const redeem = async (relay: string, secret: string, key: string, name: string): Promise<Redeemed> => {
  const got = await request(relay, "/v1/pairings/redeem", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ secret, key, name }),
  });
  for (const field of ["token", "device", "account", "machine"])
    if (typeof got[field] != "string" || !/^[A-Za-z0-9._~-]{1,128}$/.test(got[field])) throw new RelayError(1006, 200, "the answer is not the relay's");
  return got;
};
