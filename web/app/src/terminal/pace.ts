// Fewer pictures while a flood passes. The DOM renderer lays out every row of
// the screen for each frame, which takes more of a phone's one thread than
// reading what comes; nobody reads sixty screens a second.

import type { Terminal } from "@xterm/xterm";

/** Between two pictures of a flood, ms: half as long costs a third of the speed, twice looks like a stop. */
const EVERY = 100;

interface Renders {
  refreshRows(start: number, end: number, redrawOnly?: boolean): void;
}

/**
 * Draws a terminal at most ten times a second while flooded() holds. xterm has
 * no setting for it (6.0.0): this stands before the one method that everything
 * to be drawn goes through, and where that is not found all stays as it was.
 */
export const pace = (term: Terminal, flooded: () => boolean): (() => void) => {
  const renders = (term as unknown as { _core?: { _renderService?: Renders } })._core?._renderService;
  if (typeof renders?.refreshRows != "function") return () => {};
  const draw = renders.refreshRows.bind(renders);
  let timer: ReturnType<typeof setTimeout> | undefined;
  let [from, to] = [Infinity, -1];
  const flush = () => {
    timer = undefined;
    const [a, b] = [from, Math.min(to, term.rows - 1)];
    [from, to] = [Infinity, -1];
    if (a <= b) draw(a, b);
  };
  renders.refreshRows = (start, end, redrawOnly) => {
    if (!timer && !flooded()) return draw(start, end, redrawOnly);
    [from, to] = [Math.min(from, start), Math.max(to, end)];
    timer ??= setTimeout(flush, EVERY);
  };
  return () => clearTimeout(timer);
};
