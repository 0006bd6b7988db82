// What the page does about notifications while it is open: it tells machines of
// this device where the person wants that, closes what is looked at, and goes
// where a tap on a notification leads. All else comes when it is needed.

import { known, onLose } from "../machines.js";
import { knownOf, onLook } from "../sessions/remote.js";
import { pushChanged, pushMachines } from "./kept.js";
import { createStore } from "../store/state.js";
import type { Shown } from "./show.js";

const NAME = "holdfast.push";

const load = (): string | null => {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null;
  }
};

/** The person wants to be called on this device. */
export const wanted = createStore(load() == "on");
export const setWanted = (on: boolean): void => {
  wanted.set(on);
  try {
    localStorage.setItem(NAME, on ? "on" : "off");
  } catch {
    // A private window, which has no notifications either.
  }
};

/** Machines whose push service has ended this device's subscription, by name, and why. */
export const ended = createStore<readonly { machine: string; why: string }[]>([]);

/** Machines that call an address which the browser has changed, until they are told. */
export const renewing = createStore<readonly string[]>([]);

const tell = async (): Promise<void> => {
  const { atMachine, sync, untold } = await import("./device.js");
  const all = (known.value ?? []).filter((m) => !m.out);
  await sync(all).catch(() => undefined);
  renewing.set(await untold(all).catch(() => []));
  ended.set(wanted.value ? all.flatMap((m) => (atMachine(m.id).value?.ended ? [{ machine: m.machine, why: atMachine(m.id).value!.why }] : [])) : []);
};

const notifications = async () => (await (await navigator.serviceWorker?.getRegistration())?.getNotifications()) ?? [];

/** Whoever looks at the app has seen what was answered; whoever looks at a session needs no call for it. */
const tidy = async (machine?: string, sessions: readonly string[] = []): Promise<void> => {
  const hashes = new Set(sessions.map((s) => `#/m/${machine}/s/${encodeURIComponent(s)}`));
  for (const n of await notifications()) {
    const d = n.data as Shown | null;
    if (d?.done ? !n.tag.startsWith("test ") : hashes.has(d?.hash ?? "")) n.close();
  }
};

/** No notification of this machine is left, also not of sessions that this device does not know. */
const closeAll = async (id: string): Promise<void> => {
  // Read first: what it is called in messages is about to be forgotten.
  const [called, all] = await Promise.all([pushMachines().catch(() => []), notifications()]);
  const as = called.find((m) => m.id == id)?.as;
  for (const n of all) {
    const d = n.data as Shown | null;
    if (d?.hash?.startsWith(`#/m/${id}/`) || (as && d?.as == as)) n.close();
  }
};

export const startPush = (): void => {
  if (!navigator.serviceWorker) return;
  navigator.serviceWorker.addEventListener("message", ({ data }: MessageEvent<{ op?: unknown; hash?: unknown }>) => {
    if (data?.op == "renewed") void tell().catch(() => undefined);
    if (data?.op == "go" && typeof data.hash == "string" && data.hash.startsWith("#/")) location.hash = data.hash;
  });
  navigator.serviceWorker.startMessages?.();
  onLook((machine, sessions) => void tidy(machine, sessions).catch(() => undefined));
  document.addEventListener("visibilitychange", () => document.visibilityState == "visible" && void tidy().catch(() => undefined));
  void tidy().catch(() => undefined);
  onLose((id) => void closeAll(id).catch(() => undefined));

  const live = new Map<string, boolean>();
  const watched = new Set<string>();
  const look = (id: string) => {
    const now = knownOf(id).value.live;
    if (now == !!live.get(id)) return;
    live.set(id, now);
    // Also where they were turned off while a machine was not connected.
    if (now && load()) void tell().catch(() => undefined);
  };
  const machines = () => {
    for (const m of known.value ?? [])
      if (!watched.has(m.id)) {
        watched.add(m.id);
        knownOf(m.id).subscribe(() => look(m.id));
        look(m.id);
      }
  };
  known.subscribe(machines);
  machines();
  // What was changed while no page was open is said at once, and done when a machine is there.
  let asked = false;
  const changed = async () => {
    if (asked || !known.value || !wanted.value) return;
    asked = true;
    if (await pushChanged()) await tell();
  };
  known.subscribe(() => void changed().catch(() => undefined));
  void changed().catch(() => undefined);
  wanted.subscribe(() => void tell().catch(() => undefined));
};
