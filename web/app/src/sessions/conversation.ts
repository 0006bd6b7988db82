// One conversation as it is shown: the newest page, what comes after it, and the
// pages above when somebody scrolls there.

import { createStore, type Store } from "../store/state.js";
import { readChange, readPage, Refused, type Item } from "./model.js";
import { request as ask } from "./remote.js";

export interface Shown {
  items: readonly Item[];
  /** Of the page above; "" at the beginning, undefined until the first page is here. */
  before: string | undefined;
  loading: boolean;
  /** Why there is none: "not-found" and "unclear" mean that the scrollback serves. */
  fault: Refused | undefined;
  unreadable: number;
  /** Counts how often items were put above, so that the screen can hold its place. */
  above: number;
  /** What a search has found; its id. */
  mark: string;
  /** The items end somewhere above the newest: what comes is not shown until newest(). */
  apart: boolean;
}

const PAGE = 50;
/** So many pages up a found item is fetched with all that lies between; further up it is shown by itself. */
const NEAR = 6;
/** So many are kept on the screen; from a phone's memory the oldest go first. */
const MAX_SHOWN = 2000;

/** New ones behind, changed ones in their place. */
export const merge = (items: readonly Item[], news: readonly Item[]): Item[] => {
  const at = new Map(items.map((x, i) => [x.id, i]));
  const out = [...items];
  for (const n of news) {
    const i = at.get(n.id);
    if (i === undefined) {
      at.set(n.id, out.length);
      out.push(n);
    } else out[i] = n;
  }
  return out;
};

export class Conversation {
  readonly shown: Store<Shown> = createStore<Shown>({ items: [], before: undefined, loading: false, fault: undefined, unreadable: 0, above: 0, mark: "", apart: false });
  private after = "";
  private follow = 0;
  /** Counts openings: an answer to an older one changes nothing. */
  private opened = 0;

  constructor(
    private readonly machine: string,
    private readonly session: string,
    private readonly agent: string,
    private readonly skew: () => number,
    private readonly request: typeof ask = ask,
  ) {}

  private params(more: Record<string, unknown>): Record<string, unknown> {
    return { session: this.session, ...(this.agent && { agent: this.agent }), ...more };
  }

  private patch(change: Partial<Shown>): void {
    this.shown.set((s) => ({ ...s, ...change }));
  }

  /** The connection is there: what was gained meanwhile, then what comes. */
  async open(): Promise<void> {
    const mine = ++this.opened;
    if (this.after) {
      if (await this.listen(mine)) return;
      // The cursor does not fit any more: from the end again.
      if (mine != this.opened) return;
    }
    this.patch({ loading: true, fault: undefined });
    try {
      const page = readPage(await this.request(this.machine, "conversation", this.params({ limit: PAGE })), this.skew());
      if (mine != this.opened) return;
      this.after = page.after;
      this.patch({ items: page.items, before: page.before, loading: false, unreadable: page.unreadable, mark: "", apart: false });
      await this.listen(mine);
    } catch (e) {
      if (mine == this.opened) this.patch({ loading: false, fault: e instanceof Refused ? e : new Refused("failed", String(e)) });
    }
  }

  private async listen(mine: number): Promise<boolean> {
    const call = this.request(this.machine, "follow", this.params({ ...(this.after && { from: this.after }) }), {
      items: (result) => {
        if (mine != this.opened) return;
        const c = readChange(result, this.skew());
        if (c.after) this.after = c.after;
        const s = this.shown.value;
        if (s.apart) return;
        if (c.reset) this.patch({ items: c.items, before: c.before });
        else {
          let items = merge(s.items, c.items);
          let before = s.before;
          if (items.length > MAX_SHOWN) {
            items = items.slice(-MAX_SHOWN);
            before = items[0]!.cursor;
          }
          this.patch({ items, before });
        }
      },
      over: () => {
        if (mine == this.opened) this.follow = 0;
      },
    });
    try {
      await call;
      if (mine == this.opened) this.follow = call.number;
      return true;
    } catch {
      return false;
    }
  }

  async older(): Promise<void> {
    const { before, loading } = this.shown.value;
    if (!before || loading) return;
    this.patch({ loading: true });
    try {
      const page = readPage(await this.request(this.machine, "conversation", this.params({ before, limit: PAGE })), this.skew());
      const s = this.shown.value;
      if (s.before != before) return;
      const there = new Set(s.items.map((i) => i.id));
      this.patch({ items: [...page.items.filter((i) => !there.has(i.id)), ...s.items], before: page.before, above: s.above + 1, unreadable: s.unreadable + page.unreadable });
    } catch {
      // It is asked again when the person scrolls again.
    } finally {
      this.patch({ loading: false });
    }
  }

  /** Has an item of a search shown and marked, with what came before it. */
  async find(item: Item): Promise<void> {
    const there = () => this.shown.value.items.some((i) => i.id == item.id);
    this.patch({ mark: "" });
    for (let n = 0; n < NEAR && !there() && this.shown.value.before && !this.shown.value.loading; n++) await this.older();
    if (!there()) {
      const mine = this.opened;
      this.patch({ loading: true });
      try {
        const page = readPage(await this.request(this.machine, "conversation", this.params({ before: item.cursor, limit: PAGE })), this.skew());
        if (mine != this.opened) return;
        this.patch({ items: merge(page.items, [item]), before: page.before, apart: true });
      } catch {
        // The file was replaced meanwhile: the item by itself is what there is.
        if (mine == this.opened) this.patch({ items: [item], before: "", apart: true });
      } finally {
        this.patch({ loading: false });
      }
    }
    this.patch({ mark: item.id });
  }

  /** Back from a found item to the end of the conversation. */
  async newest(): Promise<void> {
    this.close();
    this.after = "";
    this.patch({ items: [], before: undefined, mark: "", apart: false });
    await this.open();
  }

  close(): void {
    this.opened++;
    if (this.follow) void this.request(this.machine, "unfollow", { follow: this.follow }).catch(() => undefined);
    this.follow = 0;
  }
}
