// The browser has changed this device's subscription at its push service, most
// often while no page is open. The service worker makes a new one; machines are
// told of it over SSH, which only a page speaks, at the next opening.

import { bytes } from "./message.js";
import type { PushDevice } from "./kept.js";

export interface Renewal {
  device(): Promise<PushDevice | undefined>;
  /** Keeps that machines hold an address that is no more. */
  keepChanged(at: number): Promise<unknown>;
  subscribe(o: { userVisibleOnly: true; applicationServerKey: Uint8Array<ArrayBuffer> }): Promise<unknown>;
  /** Pages that are open. */
  tell(): Promise<void>;
}

/** made: the browser has made the new subscription itself. */
export const renew = async (made: boolean, how: Renewal): Promise<void> => {
  const d = await how.device().catch(() => undefined);
  if (!d?.on) return;
  await how.keepChanged(Date.now()).catch(() => undefined);
  // What is refused here the page tries again.
  if (!made) await how.subscribe({ userVisibleOnly: true, applicationServerKey: bytes(d.vapid.public) }).catch(() => undefined);
  await how.tell().catch(() => undefined);
};

/** What a machine was given, by its name here: an address and a key. */
export const subscriptionName = (s: { endpoint?: string | undefined; keys?: Record<string, string> | undefined }): string => `${s.endpoint} ${s.keys?.["p256dh"]}`;

/**
 * Whether a machine is to be told of the subscription: it has none, or another.
 * One that the push service has ended is the person's to make anew, unless it is
 * not the one that the machine has.
 */
export const tells = (at: { on: boolean; ended: boolean }, gave: string | undefined, mine: string, sure: boolean): boolean => (at.ended ? gave !== undefined && gave != mine : !(at.on && sure));
