// What is kept of sessions in this browser: the last known list of each machine,
// drafts, and messages that were not accepted yet. A database of its own: an
// older page in another tab never holds it up.

import { database } from "../store/database.js";
import type { Session } from "./model.js";
import type { KeptReply } from "./outbox.js";

export interface KeptList {
  at: number;
  sessions: Session[];
}

/** A list is kept that long; what is older says nothing any more. */
const KEEP = 30 * 24 * 3600e3;
/** A machine with more sessions has its newest kept. */
const MAX_KEPT = 300;
/** As long as a reply may be. */
export const MAX_DRAFT = 256 << 10;

const act = database<"lists" | "drafts">("holdfast.sessions", 1, (db) => {
  db.createObjectStore("lists");
  db.createObjectStore("drafts");
});

/** Without storage nothing is kept, and everything else works: errors end here. */
const run = <T>(...how: Parameters<typeof act<T>>): Promise<T | undefined> => act(...how).catch(() => undefined);

export const keptList = async (machine: string): Promise<KeptList | undefined> => {
  const k: KeptList | undefined = await run("lists", "readonly", (s) => s.get(machine));
  return k && Array.isArray(k.sessions) && Date.now() - k.at < KEEP ? k : undefined;
};

export const keepList = (machine: string, list: KeptList): Promise<unknown> => run("lists", "readwrite", (s) => s.put({ at: list.at, sessions: list.sessions.slice(0, MAX_KEPT) }, machine));

export const dropList = (machine: string): Promise<unknown> => run("lists", "readwrite", (s) => s.delete(machine));

const written = (machine: string) => IDBKeyRange.bound(`${machine} `, `${machine} \uffff`);

export const dropWritten = (machine: string): Promise<unknown> => run("drafts", "readwrite", (s) => s.delete(written(machine)));

/** Every text that the person wrote for this machine and that it did not accept. */
export const writtenFor = async (machine: string): Promise<string[]> => {
  const all: unknown[] | undefined = await run("drafts", "readonly", (s) => s.getAll(written(machine)));
  return (all ?? []).flatMap((v) => (typeof v == "string" ? [v] : isReply(v) ? [v.text] : []));
};

export const draft = async (machine: string, session: string): Promise<string> => {
  const d: unknown = await run("drafts", "readonly", (s) => s.get(`${machine} ${session}`));
  return typeof d == "string" ? d : "";
};

export const keepDraft = (machine: string, session: string, text: string): Promise<unknown> =>
  run("drafts", "readwrite", (s): IDBRequest<any> => (text ? s.put(text.slice(0, MAX_DRAFT), `${machine} ${session}`) : s.delete(`${machine} ${session}`)));

const isReply = (v: unknown): v is KeptReply => typeof v == "object" && v !== null && typeof (v as KeptReply).key == "string" && typeof (v as KeptReply).text == "string" && typeof (v as KeptReply).at == "number";

/** Messages stand beside the drafts, so that a draft becomes one in a single act; clear: the draft goes. */
export const keepReply = async (machine: string, session: string, r: KeptReply, clear: boolean): Promise<boolean> =>
  (await run("drafts", "readwrite", (s): IDBRequest<any> => {
    if (clear) s.delete(`${machine} ${session}`);
    return s.put(r, `${machine} ${session} ${r.key}`);
  })) !== undefined;

/** The draft goes where it still is this text, or as much of it as was written. */
export const clearDraft = (machine: string, session: string, text: string): Promise<unknown> =>
  run("drafts", "readwrite", (s): IDBRequest<any> => {
    const name = `${machine} ${session}`;
    const r = s.get(name);
    r.onsuccess = () => typeof r.result == "string" && text.startsWith(r.result) && s.delete(name);
    return r;
  });

export const dropReply = (machine: string, session: string, key: string): Promise<unknown> => run("drafts", "readwrite", (s) => s.delete(`${machine} ${session} ${key}`));

export const keptReplies = async (machine: string, session: string): Promise<KeptReply[]> => {
  const all: unknown[] | undefined = await run("drafts", "readonly", (s) => s.getAll(IDBKeyRange.bound(`${machine} ${session} `, `${machine} ${session} \uffff`)));
  return (all ?? []).filter(isReply);
};
