// The messages on their way to every session of this page, however often its
// screen is left and opened again.

import { known } from "../machines.js";
import { dropReply, keepReply, keptReplies } from "./kept.js";
import { Outbox, type Ways } from "./outbox.js";
import { request } from "./remote.js";

const ways: Ways = { request, keep: keepReply, drop: dropReply, kept: keptReplies, now: Date.now };
const boxes = new Map<string, Outbox>();

/** Those to one session. */
export const outboxOf = (machine: string, session: string): Outbox => {
  const name = `${machine} ${session}`;
  let box = boxes.get(name);
  if (!box) boxes.set(name, (box = new Outbox(machine, session, ways)));
  return box;
};

// What is sent to a machine that was forgotten is not found when it is paired again.
known.subscribe(() => {
  for (const name of boxes.keys()) if (!known.value?.some((m) => name.startsWith(`${m.id} `))) boxes.delete(name);
});
