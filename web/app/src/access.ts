// Whether this device is still let in, and by whose word it is not. Only what is
// certain counts: a path that is broken, a relay that does not answer and a
// machine that is away say nothing about it.

import type { LinkState } from "./worker/messages.js";

export interface Out {
  /** The relay has ended the device's access, or the machine its key. */
  by: "relay" | "machine";
  at: number;
}

/** Of a connection's state; the machine's own sshd speaks for itself alone. */
export const outBy = ({ phase, why, service }: LinkState): Out["by"] | undefined => {
  if (phase != "stopped" || !why) return undefined;
  if (why.kind == "close" && why.code == 4401) return "relay";
  return why.kind == "auth" && service == "ssh" ? "machine" : undefined;
};

/**
 * A connection to the machine itself has come up, which shows that it lets the
 * device in. One that was up before shows nothing: it may outlive, for some
 * seconds, the access that it was opened with.
 */
export const isIn = (before: LinkState, now: LinkState): boolean => now.phase == "up" && before.phase != "up" && now.service == "ssh";
