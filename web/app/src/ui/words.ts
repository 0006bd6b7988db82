// The state of a connection as a person reads it: what is, since when, and what
// happens next.

import { ago, t, type Key } from "../i18n/index.js";
import type { LinkState, PairFault, Why } from "../worker/messages.js";

/** How a state looks: up, busy, bad or off. Never the only sign: the words stand beside it. */
export type Mood = "up" | "busy" | "bad" | "off";

export const mood = (s: LinkState): Mood => {
  if (s.phase == "up") return s.suspect ? "busy" : "up";
  if (s.phase == "stopped") return s.why ? "bad" : "off";
  if (s.phase == "idle") return "off";
  return s.phase == "waiting" ? "bad" : "busy";
};

/** One line: what is, and what comes next. */
export const stateWords = (s: LinkState, now: number): string => {
  switch (s.phase) {
    case "up":
      return s.suspect ? t("connSuspect") : t("connUp");
    case "waiting": {
      if (!navigator.onLine) return t("connOffline");
      const left = Math.ceil(((s.retryAt ?? now) - now) / 1000);
      return t("connWaiting", { when: left > 0 ? t("inSeconds", { n: left }) : t("atOnce") });
    }
    case "stopped":
      return t("connStopped");
    case "dialing":
      return t("connDialing");
    case "version":
      return t("connVersion");
    case "kex":
      return t("connKex");
    case "auth":
      return t("connAuth");
    case "idle":
      return t("connIdle");
  }
};

export const proofWords = (s: LinkState, now: number): string => (s.proof ? t("proofAgo", { ago: ago(s.proof, now) }) : "");

const codes: Record<number, Key> = { 1012: "why1012", 1013: "why1013", 4104: "why4104", 4129: "why4129", 4401: "why4401", 4403: "why4403", 4404: "why4404", 4426: "why4426", 4502: "why4502" };

export const whyWords = (w: Why): string => {
  const text = w.text ?? "";
  switch (w.kind) {
    case "silent":
      return t("whySilent");
    case "auth":
      return t("whyAuth");
    case "hostKey":
      return t("whyHostKey");
    case "storage":
      return t("whyStorage", { text });
    case "unknownMachine":
      return t("whyUnknownMachine");
    case "ssh":
      return t("whySsh", { text });
    case "close": {
      const key = codes[w.code];
      if (key) return t(key, { text });
      if (w.code < 1002 || w.code == 1005 || w.code == 1006 || w.code == 1011) return t("why1006");
      return t("whyOther", { code: w.code, text });
    }
  }
};

/** Whether pairing again is what helps. */
export const needsPairing = (w: Why | undefined): boolean => !!w && (w.kind == "auth" || w.kind == "hostKey" || w.kind == "unknownMachine" || (w.kind == "close" && (w.code == 4401 || w.code == 4403)));

/** Whether a machine that does not answer yet is on its way, or cannot be had now. */
export const comes = (live: boolean, link: LinkState, why: string): boolean => live || (!why && link.phase != "waiting" && link.phase != "stopped");

const faults: Record<PairFault, Key> = {
  notLink: "faultNotLink", cutOff: "faultCutOff", damaged: "faultDamaged", version: "faultVersion", expired: "faultExpired", unknown: "faultUnknown",
  unreachable: "faultUnreachable", offline: "faultOffline", limit: "faultLimit", relay: "faultRelay", hostKey: "faultHostKey", proof: "faultProof",
  closed: "faultClosed", bound: "faultBound", failed: "faultFailed", insecure: "faultInsecure", storage: "faultStorage", ssh: "pairSsh",
};

export const faultWords = (fault: PairFault, values: Record<string, string | number>): string => t(faults[fault], values);
