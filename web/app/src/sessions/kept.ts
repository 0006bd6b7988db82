// What is kept of sessions in this browser: the last known list of each machine,
// and drafts. A database of its own: an older page in another tab never holds it
// up, and losing all of it loses nothing that a machine does not know.

import type { Session } from "./model.js";

export interface KeptList {
  at: number;
  sessions: Session[];
}

const NAME = "holdfast.sessions";
const VERSION = 1;
/** A list is kept that long; what is older says nothing any more. */
const KEEP = 30 * 24 * 3600e3;
/** A machine with more sessions has its newest kept. */
const MAX_KEPT = 300;
/** As long as a reply may be. */
export const MAX_DRAFT = 256 << 10;

let opened: Promise<IDBDatabase> | undefined;

const open = (): Promise<IDBDatabase> =>
  (opened ??= new Promise<IDBDatabase>((resolve, reject) => {
    const r = indexedDB.open(NAME, VERSION);
    r.onupgradeneeded = () => {
      r.result.createObjectStore("lists");
      r.result.createObjectStore("drafts");
    };
    r.onsuccess = () => {
      r.result.onversionchange = r.result.onclose = () => {
        r.result.close();
        opened = undefined;
      };
      resolve(r.result);
    };
    r.onerror = r.onblocked = () => reject(r.error);
  }).catch((e) => {
    opened = undefined;
    throw e;
  }));

/** Without storage nothing is kept, and everything else works: errors end here. */
const run = async <T>(store: string, mode: IDBTransactionMode, act: (s: IDBObjectStore) => IDBRequest<T>): Promise<T | undefined> => {
  try {
    const db = await open();
    return await new Promise<T>((resolve, reject) => {
      const t = db.transaction(store, mode);
      const r = act(t.objectStore(store));
      t.oncomplete = () => resolve(r.result);
      t.onabort = t.onerror = () => reject(t.error);
    });
  } catch {
    return undefined;
  }
};

export const keptList = async (machine: string): Promise<KeptList | undefined> => {
  const k: KeptList | undefined = await run("lists", "readonly", (s) => s.get(machine));
  return k && Array.isArray(k.sessions) && Date.now() - k.at < KEEP ? k : undefined;
};

export const keepList = (machine: string, list: KeptList): Promise<unknown> => run("lists", "readwrite", (s) => s.put({ at: list.at, sessions: list.sessions.slice(0, MAX_KEPT) }, machine));

export const dropMachine = async (machine: string): Promise<void> => {
  await run("lists", "readwrite", (s) => s.delete(machine));
  await run("drafts", "readwrite", (s) => s.delete(IDBKeyRange.bound(`${machine} `, `${machine} \uffff`)));
};

export const draft = async (machine: string, session: string): Promise<string> => {
  const d: unknown = await run("drafts", "readonly", (s) => s.get(`${machine} ${session}`));
  return typeof d == "string" ? d : "";
};

export const keepDraft = (machine: string, session: string, text: string): Promise<unknown> =>
  run("drafts", "readwrite", (s): IDBRequest<any> => (text ? s.put(text.slice(0, MAX_DRAFT), `${machine} ${session}`) : s.delete(`${machine} ${session}`)));
