// What a session does, in words.

import { ago, t, type Key } from "../i18n/index.js";
import { oneLine, plain } from "../sessions/plain.js";
import type { Group } from "../sessions/order.js";
import type { Dialog, Item, Session, Status } from "../sessions/model.js";
import type { Mood } from "./words.js";

const kinds: Record<string, Key> = { permission: "kindPermission", question: "kindQuestion", reply: "kindReply", password: "kindPassword", limit: "kindLimit" };
const states: Record<string, Key> = { waiting: "stateWaiting", working: "stateWorking", background: "stateBackground", done: "stateDone", idle: "stateIdle", exited: "stateExited", unknown: "stateUnknown" };
const sources: Record<string, Key> = { process: "sourceProcess", registry: "sourceRegistry", hook: "sourceHook", osc: "sourceOsc", transcript: "sourceTranscript", screen: "sourceScreen", terminal: "sourceTerminal" };
export const groupKeys: Record<Group, Key> = { waiting: "groupWaiting", working: "groupWorking", done: "groupDone", background: "groupBackground", idle: "groupIdle", rest: "groupRest" };

export const sourceWords = (source: string): string => (Object.hasOwn(sources, source) ? t(sources[source]!) : oneLine(source));

export const statusWords = (s: Status): string => {
  if (s.state == "waiting" && s.kind) return t(kinds[s.kind]!);
  if (s.state == "exited" && s.exitCode !== undefined) return t("stateExitedCode", { code: s.exitCode });
  return t(states[s.state]!);
};

export const sinceWords = (s: Status, now: number): string => (s.since === undefined ? "" : ago(s.since, now));

/** Colour beside the words. */
export const statusMood = (s: Status): Mood => (s.state == "waiting" ? "bad" : s.state == "working" || s.state == "background" ? "busy" : s.state == "done" ? "up" : "off");

/** A title that names the program and nothing else. */
const NAMELESS = /^[^\p{L}]*(claude( code)?|(openai )?codex|gemini( cli)?|opencode|aider)[^\p{L}]*$/iu;
const titleOf = (s: Session): string => {
  const title = s.conversation ? oneLine(s.title) : "";
  return NAMELESS.test(title) ? "" : title;
};

/** What a person calls it: a tool's name of its conversation, else the tmux session's. A shell's title is most often the computer's name. */
export const nameOf = (s: Session): string => titleOf(s) || oneLine(s.name) || s.id;

/** The last two parts of a directory. */
export const shortDir = (dir: string): string => {
  const parts = oneLine(dir).split("/").filter(Boolean);
  return parts.length > 2 ? `…/${parts.slice(-2).join("/")}` : oneLine(dir);
};

/** The tool, the directory. */
export const whereOf = (s: Session): string => [titleOf(s) && oneLine(s.name), oneLine(s.tool), shortDir(s.dir)].filter(Boolean).join(" · ");

export const sizeWords = (bytes: number): string => (bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** What a dialog is about, without the question itself where that stands in it again. */
export const askedOf = (d: Dialog): string => {
  const title = oneLine(d.title);
  return plain(d.text)
    .split("\n")
    .filter((l) => !title || oneLine(l) != title)
    .join("\n")
    .trim();
};

/** Half of it, and two commands that begin alike are taken for each other; twice, and a dialog that is cut is not found. */
const ALIKE = 60;
const squeezed = (s: string): string => oneLine(s).replace(/\s+/g, "").slice(0, ALIKE);

/**
 * Which of the tools that have no result yet waits for the person: the one that
 * the dialog is about, else the last one where all of a session's are here.
 * "" for none.
 */
export const waitingTool = (items: readonly Item[], d: Dialog | undefined, all: boolean): string => {
  if (!d) return "";
  const open = items.filter((i) => i.tool?.status == "running");
  const asks = oneLine(`${d.title} ${d.text}`).replace(/\s+/g, "");
  const about = open.findLast((i) => [i.tool!.title, i.tool!.input.text].some((s) => squeezed(s).length > 2 && asks.includes(squeezed(s))));
  return (about ?? (all ? open.at(-1) : undefined))?.id ?? "";
};
