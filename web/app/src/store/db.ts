// What this browser remembers, in IndexedDB: the device's key, which cannot be
// read back, and the machines it is paired with. Page and Worker both open it.
//
// Safari forgets all of it after seven days without a visit unless the page is
// on the home screen: everything here can be made anew by pairing again.

import type { DeviceKey, HostKey } from "@holdfast/ssh";
import type { Out } from "../access.js";
import { database, StorageError } from "./database.js";

/** A machine that let this device in. Holds a token: never log one. */
export interface Machine {
  /** Random, of this browser: stands in addresses, so that they name nothing. */
  id: string;
  relay: string;
  account: string;
  /** The machine's name in that account. */
  machine: string;
  token: string;
  /** This device's id at the relay. */
  device: string;
  user: string;
  /** Where terminals go: the built-in SSH server, or the machine's own sshd. Changed by the person only. */
  service: "ssh" | "sshd";
  /** The built-in server gives a shell. */
  shell: boolean;
  /** Pins of the built-in server, and of the machine's sshd where it has one. */
  hostKeys: HostKey[];
  sshd?: { hostKeys: HostKey[]; installed: boolean; note?: string };
  pairedAt: number;
  /** This device is let in no more, for certain. */
  out?: Out | undefined;
}

/** What the page may see: all but the token, which stays with the code that calls the relay. */
export type MachineView = Omit<Machine, "token">;

const run = database<"keys" | "machines">(
  "holdfast",
  1,
  (db) => {
    db.createObjectStore("keys");
    db.createObjectStore("machines", { keyPath: "id" });
  },
  // Pairing again is what losing it costs.
  { durability: "strict" },
);

export const machines = (): Promise<Machine[]> => run("machines", "readonly", (s) => s.getAll());

export const machine = (id: string): Promise<Machine | undefined> => run("machines", "readonly", (s) => s.get(id));

export const forgetMachine = (id: string): Promise<undefined> => run("machines", "readwrite", (s) => s.delete(id));

/** Reads and writes in one go: another tab, or the Worker, may be changing the same machine, or forgetting it. */
const alter = <T>(read: (s: IDBObjectStore) => IDBRequest<T>, write: (s: IDBObjectStore, found: T) => void): Promise<T> =>
  run("machines", "readwrite", (s) => {
    const r = read(s);
    r.onsuccess = () => write(s, r.result);
    return r;
  });

/** Changes a machine that is still known. */
export const changeMachine = async (id: string, change: Partial<Machine>): Promise<void> => {
  await alter((s): IDBRequest<Machine | undefined> => s.get(id), (s, m) => m && s.put({ ...m, ...change, id }));
};

/** Remembers a machine; one that is paired again keeps its id. */
export const rememberMachine = async (m: Omit<Machine, "id">): Promise<Machine> => {
  let record!: Machine;
  await alter((s): IDBRequest<Machine[]> => s.getAll(), (s, all) => {
    record = { ...m, id: all.find((x) => x.relay == m.relay && x.account == m.account && x.machine == m.machine)?.id ?? crypto.randomUUID() };
    s.put(record);
  });
  return record;
};

export const storedKey = (): Promise<DeviceKey | undefined> => run("keys", "readonly", (s) => s.get("device"));

/** Keeps the device's key, unless another tab was first; gives back the one that is kept. */
export const keepKey = async (key: DeviceKey): Promise<DeviceKey> => {
  await run("keys", "readwrite", (s) => s.add(key, "device")).catch(() => undefined);
  const kept = await storedKey();
  if (!kept) throw new StorageError("this browser does not keep keys: a private window, or Lockdown Mode");
  return kept;
};
