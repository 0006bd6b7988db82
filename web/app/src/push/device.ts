// Notifications of this device: the subscription at the browser's push service,
// the keys for it, and every machine told of it over SSH. Loaded when they are on
// or the person looks at their settings.

import { onLose, restarts } from "../machines.js";
import { isObject, Refused, text } from "../sessions/model.js";
import { knownOf, request } from "../sessions/remote.js";
import type { MachineView } from "../store/db.js";
import { createStore, type Store } from "../store/state.js";
import { serviceWorkerUrl } from "../trusted.js";
import { dropPushMachine, keepPushChanged, keepPushDevice, keepPushMachine, pushChanged, pushDevice, pushMachines, type PushDevice } from "./kept.js";
import { base64url, bytes } from "./message.js";
import { subscriptionName, tells } from "./renew.js";
import { setWanted } from "./start.js";

/** How it stands at one machine, in the machine's words. */
export interface AtMachine {
  on: boolean;
  ended: boolean;
  delivered: number | undefined;
  failed: number | undefined;
  why: string;
}

/** Why this browser cannot be called. */
export type Hindrance = "none" | "home" | "denied";

export const hindrance = (): Hindrance | undefined => {
  if (!("PushManager" in window) || !("Notification" in window) || !navigator.serviceWorker)
    return /iPhone|iPad|iPod/.test(navigator.userAgent) || (/Mac/.test(navigator.userAgent) && navigator.maxTouchPoints > 1) ? "home" : "none";
  return Notification.permission == "denied" ? "denied" : undefined;
};

const states = new Map<string, Store<AtMachine | undefined>>();
/** What a machine said last; undefined where it was not asked yet. */
export const atMachine = (id: string): Store<AtMachine | undefined> => {
  let s = states.get(id);
  if (!s) states.set(id, (s = createStore<AtMachine | undefined>(undefined)));
  return s;
};

const read = (id: string, v: unknown): AtMachine => {
  const o = isObject(v) ? v : {};
  const { skew } = knownOf(id).value;
  const time = (x: unknown) => {
    const at = typeof x == "string" ? Date.parse(x) : NaN;
    return at > 0 ? at + skew : undefined;
  };
  const s: AtMachine = { on: o["on"] === true, ended: o["ended"] === true, delivered: time(o["delivered"]), failed: time(o["failed"]), why: text(o["why"], 300) };
  atMachine(id).set(s);
  return s;
};

const newVapid = async (): Promise<PushDevice["vapid"]> => {
  const pair = await crypto.subtle.generateKey({ name: "ECDSA", namedCurve: "P-256" }, true, ["sign", "verify"]);
  const point = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
  return { public: base64url(point), private: (await crypto.subtle.exportKey("jwk", pair.privateKey)).d! };
};

/** The browser's subscription for these keys, made where there is none. */
const subscription = async (vapid: PushDevice["vapid"], anew = false): Promise<PushSubscription> => {
  await navigator.serviceWorker.register(serviceWorkerUrl(), { updateViaCache: "none" });
  const { pushManager } = await navigator.serviceWorker.ready;
  const key = bytes(vapid.public);
  const there = await pushManager.getSubscription();
  if (there) {
    const its = there.options?.applicationServerKey;
    if (!anew && its && base64url(new Uint8Array(its)) == vapid.public) return there;
    await there.unsubscribe();
  }
  return pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
};

/** Machines that were told of this subscription since the page was opened: the connection that carried it may have broken. */
const given = new Map<string, string>();

/** Tells a machine that is connected; gives back how it stands there. */
const give = async (m: MachineView, vapid: PushDevice["vapid"], sub: PushSubscription, renew: boolean): Promise<void> => {
  const { live, features } = knownOf(m.id).value;
  if (!live || !features.includes("push-subscribe")) return;
  const { endpoint, keys } = sub.toJSON();
  const mine = subscriptionName({ endpoint, keys });
  const before = (await pushMachines()).find((x) => x.id == m.id);
  const as = before?.as ?? base64url(crypto.getRandomValues(new Uint8Array(16)));
  if (!before || before.name != m.machine) await keepPushMachine({ ...before, id: m.id, name: m.machine, as });
  if (!renew && !tells(read(m.id, await request(m.id, "push-state")), before?.gave, mine, given.get(m.id) == mine)) return;
  read(m.id, await request(m.id, "push-subscribe", { endpoint, p256dh: keys?.["p256dh"], auth: keys?.["auth"], vapid: vapid.private, subject: `https://${location.host}`, as }));
  given.set(m.id, mine);
  await keepPushMachine({ id: m.id, name: m.machine, as, gave: mine });
};

/** Machines that hold a subscription which the browser has changed since; none where nothing was changed. */
export const untold = async (machines: readonly MachineView[]): Promise<string[]> => {
  if (!(await pushChanged()) || !(await pushDevice())?.on) return [];
  const sub = await (await navigator.serviceWorker.getRegistration())?.pushManager.getSubscription();
  const mine = sub ? subscriptionName({ endpoint: sub.endpoint, keys: sub.toJSON().keys }) : undefined;
  const behind = (await pushMachines()).filter((x) => machines.some((m) => m.id == x.id) && (!mine || x.gave != mine));
  if (!behind.length) await keepPushChanged(undefined);
  return behind.map((x) => x.name);
};

/** One at a time for the whole page. */
let turn: Promise<unknown> = Promise.resolve();
const inTurn = <T>(f: () => Promise<T>): Promise<T> => {
  const p = turn.then(f, f);
  turn = p.catch(() => undefined);
  return p;
};

/** Has every connected machine that was told call no more. One that is not connected is told when it is. */
const take = async (machines: readonly MachineView[]): Promise<void> => {
  const told = new Set((await pushMachines()).map((x) => x.id));
  await Promise.all(
    machines.map(async ({ id }) => {
      if (!told.has(id) || !knownOf(id).value.live) return;
      await request(id, "push-unsubscribe").then(() => dropPushMachine(id), () => undefined);
      atMachine(id).set(undefined);
    }),
  );
};

/** Tells every connected machine what it does not know; quiet where it cannot. */
export const sync = (machines: readonly MachineView[]): Promise<void> =>
  inTurn(async () => {
    const d = await pushDevice();
    if (!d) return;
    if (!d.on) return take(machines);
    if (hindrance() || Notification.permission != "granted") return;
    const sub = await subscription(d.vapid);
    await Promise.all(machines.map((m) => give(m, d.vapid, sub, false).catch(() => undefined)));
  });

/** Asks the person, subscribes and tells the machines. Called from a tap, since browsers ask for nothing else. */
export const turnOn = (machines: readonly MachineView[]): Promise<void> =>
  inTurn(async () => {
    if ((await Notification.requestPermission()) != "granted") throw new Refused("denied", "");
    const before = await pushDevice();
    const vapid = before?.vapid ?? (await newVapid());
    // A subscription that one machine's service calls dead is dead for all.
    const ended = machines.some((m) => atMachine(m.id).value?.ended);
    const sub = await subscription(vapid, ended);
    await keepPushDevice({ on: true, vapid });
    setWanted(true);
    await Promise.all(machines.map((m) => give(m, vapid, sub, true).catch(() => undefined)));
  });

export const turnOff = (machines: readonly MachineView[]): Promise<void> =>
  inTurn(async () => {
    const d = await pushDevice();
    setWanted(false);
    given.clear();
    if (d) await keepPushDevice({ ...d, on: false });
    await take(machines);
    // A machine that is not reached before it calls finds the subscription ended.
    const registration = await navigator.serviceWorker?.getRegistration();
    await (await registration?.pushManager.getSubscription())?.unsubscribe();
    for (const n of (await registration?.getNotifications()) ?? []) n.close();
  });

/** So long a machine that is being forgotten may take to hear it. */
const LEAVE = 3000;

/** The machine is about to be forgotten here: where it can be told, it calls this device no more. */
export const leave = async (id: string): Promise<void> => {
  given.delete(id);
  const { live, features } = knownOf(id).value;
  if (live && features.includes("push-unsubscribe")) await Promise.race([request(id, "push-unsubscribe").catch(() => undefined), new Promise((r) => setTimeout(r, LEAVE))]);
};

export const isOn = async (): Promise<boolean> => !!(await pushDevice().catch(() => undefined))?.on;

/** Asks a machine how it stands. */
export const askMachine = async (id: string): Promise<void> => {
  if (knownOf(id).value.features.includes("push-state")) read(id, await request(id, "push-state"));
};

export const test = async (id: string): Promise<void> => {
  try {
    read(id, await request(id, "push-test"));
  } catch (e) {
    await askMachine(id).catch(() => undefined);
    throw e;
  }
};

restarts.subscribe(() => given.clear());
// Its name in messages went with it; the next one is new to the machine.
onLose((id) => given.delete(id));
