// The relay's JSON interface: /v1 of docs/protocol.md.

import { codeOfRefusal } from "@holdfast/live/parts";
import { cleanText } from "./pairing/bytes.js";

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

export interface RelayMachine {
  machine: string;
  state: "offline" | "connected" | "reachable" | "unreachable";
  provenAt?: string;
  since?: string;
  reason?: string;
}

export interface RelayDevice {
  id: string;
  name: string;
  key: string;
  created: string;
  used?: string;
  this?: boolean;
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
  if (+(r.headers.get("Content-Length") ?? 0) > MAX_BODY) throw new RelayError(1006, r.status, "the answer is too long");
  if (r.status == 204) return undefined;
  const body = await r.json().catch(() => undefined);
  if (!r.ok) {
    const text = typeof body?.detail == "string" ? cleanText(body.detail, 300) : `status ${r.status}`;
    throw new RelayError(codeOfRefusal(r.status, r.headers.has("Holdfast-Refusal")), r.status, text);
  }
  if (!body || typeof body != "object") throw new RelayError(1006, r.status, "the answer is not the relay's");
  return body;
};

/** What this token may do, for a page whose socket never opened. */
export const access = (relay: string, token: string, machine: string): Promise<{ account: string; state: string }> =>
  request(relay, `/v1/access?machine=${machine}`, { token });

export const listMachines = async (relay: string, token: string): Promise<RelayMachine[]> => {
  const { machines } = await request(relay, "/v1/machines", { token });
  return Array.isArray(machines) ? machines.filter((m) => typeof m?.machine == "string") : [];
};

export const listDevices = async (relay: string, token: string): Promise<RelayDevice[]> => {
  const { devices } = await request(relay, "/v1/devices", { token });
  return Array.isArray(devices) ? devices.filter((d) => typeof d?.id == "string" && typeof d?.name == "string") : [];
};

/** Those that nobody of the account has read, the oldest first. */
export const listNotices = async (relay: string, token: string): Promise<RelayNotice[]> => {
  const { notices } = await request(relay, "/v1/notices?unread=true", { token });
  return Array.isArray(notices) ? notices.slice(0, 50).filter((n) => typeof n?.id == "string" && typeof n?.text == "string" && !n.read) : [];
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
