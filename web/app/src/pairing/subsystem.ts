// The one line each way of the `pair` subsystem.

import { cleanText } from "./bytes.js";
import { keyLine, parseKey } from "./key.js";
import { machineOk } from "./link.js";

export const SUBSYSTEM = "pair";
/** Of a line; an answer with three host keys has 1.5 KiB. */
export const MAX_LINE = 16 << 10;

const MAX_KEYS = 16;
const MAX_TEXT = 1 << 10;
const MAX_USER = 256;

export interface PairAccepted {
  ok: true;
  machine: string;
  /** The agent's OS user. */
  user: string;
  /** Absent where the machine offers no sshd. */
  sshd?: { keys: string[]; installed: boolean; note?: string };
  /** The built-in server gives paired devices a shell. */
  shell: boolean;
}

export interface PairRefused {
  ok: false;
  /** proof, expired, bound, syntax, failed, or a later version's word. */
  code: string;
  message: string;
}

/** The machine's answer is not one. */
export class PairLineError extends Error {
  override name = "PairLineError";
}

export const requestLine = (proof: string, name: string): string => JSON.stringify({ v: 1, proof, name: cleanText(name, 64) }) + "\n";

export const parseResponse = async (line: string): Promise<PairAccepted | PairRefused> => {
  let p: any;
  try {
    p = JSON.parse(line);
  } catch {
    throw new PairLineError("not JSON");
  }
  const text = (v: unknown) => (typeof v == "string" ? v : "");
  if (!p || typeof p != "object") throw new PairLineError("not an object");
  if (p.ok !== true) {
    if (!text(p.code)) throw new PairLineError("neither ok nor a code");
    return { ok: false, code: cleanText(p.code, 64), message: cleanText(text(p.message), MAX_TEXT) };
  }
  if (!machineOk(text(p.machine))) throw new PairLineError("no machine");
  const user = text(p.user);
  // Letters, marks, numbers, punctuation and symbols: what a shell and a
  // configuration file take as one word.
  if (!user || user.length > MAX_USER || user[0] == "-" || !/^[\p{L}\p{M}\p{N}\p{P}\p{S}]+$/u.test(user) || /["'%#]/.test(user))
    throw new PairLineError("no user name");
  const out: PairAccepted = { ok: true, machine: p.machine, user, shell: p.shell === true };
  if (p.sshd && typeof p.sshd == "object") {
    // null, or nothing: an sshd that did not answer. Machines have said it so.
    const lines = p.sshd.keys ?? [];
    if (!Array.isArray(lines) || lines.length > MAX_KEYS) throw new PairLineError("host keys");
    const keys: string[] = [];
    for (const l of lines) {
      keys.push(await parseKey(text(l)).then(keyLine, () => Promise.reject(new PairLineError("a host key that is none"))));
    }
    const note = cleanText(text(p.sshd.note), MAX_TEXT);
    out.sshd = { keys, installed: p.sshd.installed === true, ...(note && { note }) };
  }
  return out;
};
