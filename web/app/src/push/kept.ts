// What this browser keeps about notifications, for the page and for the service
// worker, which shows them while no page is open. A database of its own, as that
// of the sessions is.

import { database } from "../store/database.js";

export interface PushDevice {
  /** The person wants to be called. */
  on: boolean;
  /** The pair of keys that machines sign with, base64url: public 65 bytes, private 32. */
  vapid: { public: string; private: string };
}

export interface PushMachine {
  /** The machine's id in this browser, and its name for people. */
  id: string;
  name: string;
  /** What this device calls the machine in messages; a key for the names of sessions. */
  as: string;
  /** The subscription that the machine was given last. */
  gave?: string;
}

const run = database<"device" | "machines" | "shown" | "counts">("holdfast.push", 1, (db) => {
  db.createObjectStore("device");
  db.createObjectStore("machines", { keyPath: "id" });
  db.createObjectStore("shown");
  db.createObjectStore("counts");
});

export const pushDevice = (): Promise<PushDevice | undefined> => run("device", "readonly", (s) => s.get("device"));
export const keepPushDevice = (d: PushDevice): Promise<unknown> => run("device", "readwrite", (s) => s.put(d, "device"));

/** The language of the page, for the service worker. */
export const pushLanguage = (): Promise<string | undefined> => run("device", "readonly", (s) => s.get("language"));
export const keepPushLanguage = (language: string): Promise<unknown> => run("device", "readwrite", (s) => s.put(language, "language"));

/** Since when machines may hold a subscription that is no more; undefined where all have been told. */
export const pushChanged = (): Promise<number | undefined> => run("device", "readonly", (s) => s.get("changed"));
export const keepPushChanged = (at: number | undefined): Promise<unknown> => run("device", "readwrite", (s): IDBRequest<any> => (at ? s.put(at, "changed") : s.delete("changed")));

export const pushMachines = (): Promise<PushMachine[]> => run("machines", "readonly", (s) => s.getAll());
export const keepPushMachine = (m: PushMachine): Promise<unknown> => run("machines", "readwrite", (s) => s.put(m));
export const dropPushMachine = async (id: string): Promise<void> => {
  for (const store of ["machines", "shown", "counts"] as const) await run(store, "readwrite", (s) => s.delete(id));
};

/** When a notification of a machine was shown here last. */
export const shownAt = (id: string): Promise<number | undefined> => run("shown", "readonly", (s) => s.get(id));
export const keepShown = (id: string): Promise<unknown> => run("shown", "readwrite", (s) => s.put(Date.now(), id));

/** How many sessions wait at each machine, by its newest message: for the app's icon. */
export const counts = (): Promise<number[]> => run("counts", "readonly", (s) => s.getAll());
export const keepCount = (id: string, n: number): Promise<unknown> => run("counts", "readwrite", (s) => s.put(n, id));
