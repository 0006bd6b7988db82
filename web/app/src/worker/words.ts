// Errors of SSH as what the page can say and the funnel can act on.

import { HostKeyError, SshError } from "@holdfast/ssh";
import { cleanText } from "../pairing/bytes.js";
import type { Why } from "./messages.js";

/** Stands for "stop until the person acts" in the funnel: a code of ours in the stopping range. */
export const STOP = 4000;

/** What an SSH error means for the connection. */
export const whyOf = (e: unknown): Why => {
  if (e instanceof HostKeyError) return { code: STOP, kind: "hostKey", pinned: e.pinned, shown: e.shown };
  const text = cleanText(e instanceof Error ? e.message : String(e), 300);
  if (!(e instanceof SshError)) return { code: STOP, kind: "ssh", text };
  switch (e.code) {
    case "auth":
      // With a cause it is the device's own key that could not be used.
      return { code: STOP, kind: e.cause ? "ssh" : "auth", text };
    case "host-key":
    case "host-key-proof":
      return { code: STOP, kind: "hostKey", text };
    case "algorithms":
    case "unsupported":
    case "version":
      return { code: STOP, kind: "ssh", text };
    case "integrity":
    case "protocol":
      // Bytes were changed on the way, or the peer is broken: come back, and
      // count it as a failure whatever came before.
      return { code: 1002, kind: "ssh", text };
    default:
      return { code: 1006, kind: "ssh", text };
  }
};
