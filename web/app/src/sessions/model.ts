// The words of the sessions protocol (docs/sessions.md) as this page holds them,
// and how they are read from a machine. A machine may be wrong or hostile: every
// list and text has a bound, what does not fit is left out, and nothing is
// trusted to be more than text.

export type State = "waiting" | "working" | "background" | "done" | "idle" | "exited" | "unknown";
export type Kind = "permission" | "question" | "reply" | "password" | "limit";
export type Role = "approve" | "approveAlways" | "deny" | "text";

export interface Evidence {
  source: string;
  detail: string;
  /** Times are ms of this device's clock; undefined where the machine gave none. */
  at: number | undefined;
}

export interface Option {
  id: string;
  label: string;
  role: Role | undefined;
  detail: string;
  selected: boolean;
}

export interface Dialog {
  digest: string;
  title: string;
  text: string;
  options: Option[];
}

export interface Status {
  state: State;
  kind: Kind | undefined;
  exitCode: number | undefined;
  since: number | undefined;
  confirmed: number | undefined;
  evidence: Evidence[];
  dialog: Dialog | undefined;
}

export interface Session {
  id: string;
  name: string;
  window: string;
  index: string;
  title: string;
  tool: string;
  dir: string;
  cols: number;
  rows: number;
  attached: number;
  conversation: boolean;
  status: Status;
}

/** A machine that has more panes than this is lying. */
export const MAX_SESSIONS = 10_000;
const MAX_OPTIONS = 32;
const MAX_EVIDENCE = 8;
// In UTF-16 units, which is never more than the bytes that docs/sessions.md bounds.
const NAME = 256;
const TITLE = 1 << 10;
const TEXT = 8 << 10;

type Obj = Record<string, unknown>;
export const isObject = (v: unknown): v is Obj => typeof v == "object" && v !== null && !Array.isArray(v);
export const text = (v: unknown, max: number): string => (typeof v == "string" ? v.slice(0, max) : "");
export const list = (v: unknown, max: number): unknown[] => (Array.isArray(v) ? v.slice(0, max) : []);
export const count = (v: unknown): number => (typeof v == "number" && Number.isSafeInteger(v) && v > 0 ? v : 0);
const among = <T extends string>(v: unknown, all: readonly T[]): T | undefined => all.find((x) => x === v);

const states: readonly State[] = ["waiting", "working", "background", "done", "idle", "exited", "unknown"];
const kinds: readonly Kind[] = ["permission", "question", "reply", "password", "limit"];
const roles: readonly Role[] = ["approve", "approveAlways", "deny", "text"];

/** ms of this device's clock; skew is how far the machine's is behind it. */
const time = (v: unknown, skew: number): number | undefined => {
  const at = typeof v == "string" && v.length < 64 ? Date.parse(v) : NaN;
  // Go's zero time means that there is none.
  return at > 0 ? at + skew : undefined;
};

export const idOk = (id: unknown): id is string => typeof id == "string" && /^[\w:%-]{1,64}$/.test(id);

export const readDialog = (v: unknown): Dialog | undefined => {
  if (!isObject(v) || typeof v["digest"] != "string" || !/^[\w-]{1,64}$/.test(v["digest"])) return undefined;
  return {
    digest: v["digest"],
    title: text(v["title"], TITLE),
    text: text(v["text"], TEXT),
    options: list(v["options"], MAX_OPTIONS).flatMap((o) =>
      isObject(o) && typeof o["id"] == "string" && o["id"] ? [{ id: text(o["id"], 64), label: text(o["label"], TITLE), role: among(o["role"], roles), detail: text(o["detail"], TITLE), selected: o["selected"] === true }] : [],
    ),
  };
};

const readStatus = (v: unknown, skew: number): Status => {
  const s = isObject(v) ? v : {};
  // A state that this page does not know is no state that it may claim.
  const state = among(s["state"], states) ?? "unknown";
  return {
    state,
    kind: state == "waiting" ? among(s["kind"], kinds) : undefined,
    exitCode: typeof s["exitCode"] == "number" ? s["exitCode"] : undefined,
    since: time(s["since"], skew),
    confirmed: time(s["confirmed"], skew),
    evidence: list(s["evidence"], MAX_EVIDENCE).flatMap((e) => (isObject(e) ? [{ source: text(e["source"], 32), detail: text(e["detail"], NAME), at: time(e["at"], skew) }] : [])),
    dialog: readDialog(s["dialog"]),
  };
};

/** undefined for what has no id. */
export const readSession = (v: unknown, skew = 0): Session | undefined => {
  if (!isObject(v) || !idOk(v["id"])) return undefined;
  return {
    id: v["id"],
    name: text(v["name"], NAME),
    window: text(v["window"], NAME),
    index: text(v["index"], 32),
    title: text(v["title"], NAME),
    tool: text(v["tool"], NAME),
    dir: text(v["dir"], 4096),
    cols: count(v["cols"]),
    rows: count(v["rows"]),
    attached: count(v["attached"]),
    conversation: v["conversation"] === true,
    status: readStatus(v["status"], skew),
  };
};

// Conversations (docs/conversation.md).

export interface Body {
  text: string;
  blob: string;
  bytes: number;
}
export interface Picture {
  mediaType: string;
  bytes: number;
  blob: string;
  name: string;
}
export interface Hunk {
  oldStart: number;
  newStart: number;
  lines: string[];
}
export interface Diff {
  path: string;
  op: string;
  to: string;
  added: number;
  removed: number;
  cut: boolean;
  hunks: Hunk[];
}
export interface Tool {
  name: string;
  title: string;
  status: string;
  input: Body;
  output: Body;
  diff: Diff[];
  exitCode: number | undefined;
  agent: string;
  tookMs: number;
}
export interface Asked {
  header: string;
  text: string;
  options: { label: string; detail: string }[];
  answer: string;
}
export interface Item extends Body {
  id: string;
  kind: string;
  time: number | undefined;
  cursor: string;
  message: string;
  control: boolean;
  model: string;
  pending: boolean;
  tool: Tool | undefined;
  questions: Asked[];
  images: Picture[];
}
export interface Page {
  items: Item[];
  before: string;
  after: string;
  title: string;
  unreadable: number;
}
export interface Change extends Page {
  reset: boolean;
  gone: boolean;
}

const MAX_ITEMS = 500;
/** A body has 16 KiB; so long a text is still shown, what is longer is cut by the machine. */
const BODY = 32 << 10;
const CURSOR = 1 << 10;
const DIFF_LINES = 400;

const readBody = (v: unknown): Body => {
  const b = isObject(v) ? v : {};
  return { text: text(b["text"], BODY), blob: text(b["blob"], CURSOR), bytes: count(b["bytes"]) };
};

const readPicture = (v: unknown): Picture[] => (isObject(v) ? [{ mediaType: text(v["mediaType"], 64), bytes: count(v["bytes"]), blob: text(v["blob"], CURSOR), name: text(v["name"], TITLE) }] : []);

const readDiff = (v: unknown): Diff[] => {
  if (!isObject(v)) return [];
  let left = DIFF_LINES;
  return [
    {
      path: text(v["path"], 4096), op: text(v["op"], 16), to: text(v["to"], 4096), added: count(v["added"]), removed: count(v["removed"]), cut: v["cut"] === true,
      hunks: list(v["hunks"], DIFF_LINES).flatMap((h) => {
        if (!isObject(h)) return [];
        const lines = list(h["lines"], left).map((l) => text(l, BODY));
        left -= lines.length;
        return [{ oldStart: count(h["oldStart"]), newStart: count(h["newStart"]), lines }];
      }),
    },
  ];
};

const readTool = (v: unknown): Tool | undefined => {
  if (!isObject(v)) return undefined;
  return {
    name: text(v["name"], NAME), title: text(v["title"], TITLE), status: text(v["status"], 32), input: readBody(v["input"]), output: readBody(v["output"]),
    diff: list(v["diff"], 64).flatMap(readDiff), exitCode: typeof v["exitCode"] == "number" ? v["exitCode"] : undefined, agent: text(v["agent"], CURSOR), tookMs: count(v["tookMs"]),
  };
};

const readAsked = (v: unknown): Asked[] =>
  isObject(v)
    ? [{ header: text(v["header"], TITLE), text: text(v["text"], BODY), answer: text(v["answer"], BODY), options: list(v["options"], MAX_OPTIONS).flatMap((o) => (isObject(o) ? [{ label: text(o["label"], TITLE), detail: text(o["detail"], TITLE) }] : [])) }]
    : [];

export const readItem = (v: unknown, skew = 0): Item[] => {
  if (!isObject(v) || typeof v["id"] != "string" || !v["id"]) return [];
  return [
    {
      ...readBody(v), id: text(v["id"], TITLE), kind: text(v["kind"], 32), time: time(v["time"], skew), cursor: text(v["cursor"], CURSOR), message: text(v["message"], TITLE),
      control: v["control"] === true, model: text(v["model"], NAME), pending: v["pending"] === true, tool: readTool(v["tool"]),
      questions: list(v["questions"], 16).flatMap(readAsked), images: list(v["images"], 64).flatMap(readPicture),
    },
  ];
};

export const readPage = (v: unknown, skew = 0): Page => {
  const p = isObject(v) ? v : {};
  return { items: list(p["items"], MAX_ITEMS).flatMap((i) => readItem(i, skew)), before: text(p["before"], CURSOR), after: text(p["after"], CURSOR), title: text(p["title"], TITLE), unreadable: count(p["unreadable"]) };
};

export const readChange = (v: unknown, skew = 0): Change => ({ ...readPage(v, skew), reset: isObject(v) && v["reset"] === true, gone: isObject(v) && v["gone"] === true });

export interface Hit {
  item: Item;
  snippet: string;
}
export const readHits = (v: unknown, skew = 0): { hits: Hit[]; before: string } => {
  const p = isObject(v) ? v : {};
  return {
    hits: list(p["hits"], 200).flatMap((h) => {
      const item = isObject(h) ? readItem(h["item"], skew)[0] : undefined;
      return item ? [{ item, snippet: text((h as Obj)["snippet"], TITLE) }] : [];
    }),
    before: text(p["before"], CURSOR),
  };
};

/** A piece of a row of a terminal, at its column. */
export interface Run {
  text: string;
  col: number;
  width: number;
  fg: string;
  bg: string;
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
  reverse: boolean;
}
const MAX_ROWS = 2000;
const colour = (v: unknown): string => (typeof v == "string" && /^(\d{1,3}|#[0-9a-f]{6})$/i.test(v) ? v : "");

export const readRows = (v: unknown): { rows: Run[][]; more: boolean } => {
  const p = isObject(v) ? v : {};
  return {
    rows: list(p["lines"], MAX_ROWS).map((l) =>
      list(isObject(l) ? l["runs"] : undefined, 512).flatMap((r): Run[] =>
        isObject(r) && r["hidden"] !== true
          ? [{
              text: text(r["text"], 4096), col: Math.min(count(r["col"]), 2000), width: Math.min(count(r["width"]), 2000), fg: colour(r["fg"]), bg: colour(r["bg"]), bold: r["bold"] === true, dim: r["dim"] === true,
              italic: r["italic"] === true, underline: !!r["underline"], reverse: r["reverse"] === true,
            }]
          : [],
      ),
    ),
    more: p["more"] === true,
  };
};

// Replies.

export type Stage = "sent" | "typed" | "accepted" | "unconfirmed";
export interface Outcome {
  state: "accepted" | "unconfirmed";
  evidence: string;
  reason: string;
  dialog: Dialog | undefined;
}
export const readOutcome = (v: unknown): Outcome => {
  const o = isObject(v) ? v : {};
  return { state: o["state"] === "accepted" ? "accepted" : "unconfirmed", evidence: text(o["evidence"], TITLE), reason: text(o["reason"], TITLE), dialog: readDialog(o["dialog"]) };
};

/** A refusal, or "lost": the connection ended first, and the machine may have done it. */
export class Refused extends Error {
  override name = "Refused";
  constructor(
    readonly code: string,
    message: string,
    readonly dialog?: Dialog,
    /** What stands in the input box, with "composer". */
    readonly text = "",
  ) {
    super(message);
  }
}
export const readRefusal = (v: Obj): Refused => new Refused(text(v["code"], 64) || "failed", text(v["message"], TITLE), readDialog(v["dialog"]), text(v["text"], BODY));
