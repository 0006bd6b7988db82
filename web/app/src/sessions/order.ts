// Which sessions come first: who waits for the person, then what works, what is
// finished and was not seen, what goes on in the background, and the rest.

import type { Session, State } from "./model.js";

export interface Row {
  /** This browser's id of the machine, and the machine's name. */
  machine: string;
  name: string;
  session: Session;
  live: boolean;
}

export const groups = ["waiting", "working", "done", "background", "idle", "rest"] as const;
export type Group = (typeof groups)[number];

export const groupOf = (state: State): Group => (state == "exited" || state == "unknown" ? "rest" : state);

/** In the order of the screen: in each group the one that changed last is first; who waits longest is first of those. */
export const arrange = (rows: readonly Row[]): Map<Group, Row[]> => {
  const out = new Map<Group, Row[]>();
  for (const g of groups) {
    const of = rows.filter((r) => groupOf(r.session.status.state) == g);
    const since = (r: Row) => r.session.status.since ?? 0;
    of.sort((a, b) => (g == "waiting" ? since(a) - since(b) : since(b) - since(a)) || a.name.localeCompare(b.name) || a.session.id.localeCompare(b.session.id));
    if (of.length) out.set(g, of);
  }
  return out;
};

const folded = (s: string) => s.normalize("NFKC").toLocaleLowerCase();

/** Every word is in what the row shows. */
export const matches = (r: Row, query: string): boolean => {
  const s = r.session;
  const all = folded([r.name, s.name, s.window, s.title, s.tool, s.dir, s.status.dialog?.title, s.status.dialog?.text].join(" "));
  return folded(query).split(/\s+/).every((w) => all.includes(w));
};
