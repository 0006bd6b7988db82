// The messages on their way to every session of this page, however often its
// screen is left and opened again.

import { known } from "../machines.js";
import { clearDraft, dropReply, keepReply, keptReplies } from "./kept.js";
import { Outbox, type Ways } from "./outbox.js";
import { request } from "./remote.js";

/** Other pages of this browser show the same kept messages: they hear which ones are done with. */
const pages = typeof BroadcastChannel == "undefined" ? undefined : new BroadcastChannel("holdfast.outbox");

const ways: Ways = {
  request,
  // What is on its way to a machine that is being forgotten leaves nothing behind.
  keep: async (machine, ...rest) => (!known.value || known.value.some((m) => m.id == machine)) && keepReply(machine, ...rest),
  clear: clearDraft,
  async drop(machine, session, key) {
    await dropReply(machine, session, key);
    pages?.postMessage({ machine, session, key });
  },
  kept: keptReplies,
  now: Date.now,
};
const boxes = new Map<string, Outbox>();
const nameOf = (machine: string, session: string): string => `${machine} ${session}`;

/** Those to one session. */
export const outboxOf = (machine: string, session: string): Outbox => {
  const name = nameOf(machine, session);
  let box = boxes.get(name);
  if (!box) boxes.set(name, (box = new Outbox(machine, session, ways)));
  return box;
};

if (pages) pages.onmessage = ({ data }) => boxes.get(nameOf(String(data?.machine), String(data?.session)))?.gone(String(data?.key));

// What is sent to a machine that was forgotten is not found when it is paired again.
known.subscribe(() => {
  for (const name of boxes.keys()) if (!known.value?.some((m) => name.startsWith(`${m.id} `))) boxes.delete(name);
});
