// Fewer pictures while a flood passes. The DOM renderer lays out every row of
// the screen for each frame, which takes more of a phone's one thread than
// reading what comes; nobody reads sixty screens a second.

import type { Terminal } from "@xterm/xterm";

/** Between two pictures of a flood, ms: half as long costs a third of the speed, twice looks like a stop. */
const EVERY = 100;

interface Renders {
  refreshRows(start: number, end: number, redrawOnly?: boolean): void;
  addRefreshCallback?(callback: FrameRequestCallback): number;
}
interface Core {
  _renderService?: Renders;
  _selectionService?: Selects;
  _syncTextArea?(): void;
}
interface Selects {
  readonly hasSelection: boolean;
  refresh(isLinuxMouseSelection?: boolean): void;
}

/**
 * Draws a terminal at most ten times a second while flooded() holds. xterm has
 * no setting for it (6.0.0): this stands before the methods that everything
 * to be drawn goes through, and where they are not found all stays as it was.
 *
 * They are four: rows that changed; the selection, for which every row is drawn
 * anew at each line that scrolls, although nothing is selected; the scroll bar,
 * which has a frame made for it; and xterm's own input field, which follows the
 * cursor.
 */
export const pace = (term: Pick<Terminal, "rows">, flooded: () => boolean): (() => void) => {
  const core = (term as unknown as { _core?: Core })._core;
  const renders = core?._renderService;
  const selects = core?._selectionService;
  if (typeof renders?.refreshRows != "function") return () => {};
  const draw = renders.refreshRows.bind(renders);
  const select = selects?.refresh?.bind(selects);
  const callBack = renders.addRefreshCallback?.bind(renders);
  const move = core?._syncTextArea?.bind(core);
  let timer: ReturnType<typeof setTimeout> | undefined;
  let [from, to] = [Infinity, -1];
  let callbacks: FrameRequestCallback[] = [];
  let selected = false;
  let moved = false;
  const later = () => !!timer || flooded();
  const flush = () => {
    timer = undefined;
    const [a, b] = [from, Math.min(to, term.rows - 1)];
    [from, to] = [Infinity, -1];
    for (const f of callbacks.splice(0)) callBack!(f);
    if (a <= b) draw(a, b);
    if (moved) move?.();
    moved = false;
  };
  renders.refreshRows = (start, end, redrawOnly) => {
    if (!later()) return draw(start, end, redrawOnly);
    [from, to] = [Math.min(from, start), Math.max(to, end)];
    timer ??= setTimeout(flush, EVERY);
  };
  if (selects && select)
    selects.refresh = (byMouse) => {
      // One that is taken away has to be drawn, too.
      const was = selected;
      selected = selects.hasSelection;
      if (was || selected || !later()) return select(byMouse);
      renders.refreshRows(0, term.rows - 1, true);
    };
  if (core && move)
    core._syncTextArea = () => {
      if (!later()) return move();
      moved = true;
      timer ??= setTimeout(flush, EVERY);
    };
  if (callBack)
    renders.addRefreshCallback = (f) => {
      if (!later()) return callBack(f);
      callbacks.push(f);
      timer ??= setTimeout(flush, EVERY);
      return 0; // nobody here takes one back
    };
  return () => clearTimeout(timer);
};
