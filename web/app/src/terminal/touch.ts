// Fingers on the terminal: one scrolls, two change the size of the text, one that
// rests opens the sheet from which text is copied. xterm has none of these.

export interface TouchOptions {
  /** One row's height; CSS px. */
  row(): number;
  /** Scrolls by rows; negative is towards older text. */
  scroll(rows: number): void;
  /** The text's size changes by this factor since the fingers came down. */
  pinchStart(): void;
  pinch(factor: number): void;
  tap(): void;
  hold(): void;
}

/** A finger that moves less is still; CSS px. Less calls trembling a drag, more makes the first row jump. */
const SLOP = 8;
/** As long as the platforms' own long press; ms. */
const HOLD = 500;
/** Of the speed that is left after each frame of 16 ms: a flick of a screen's height runs three screens. */
const FRICTION = 0.95;
/** Rows a second at which a flick has ended. */
const STOP = 2;

export interface Touch {
  /** Ends a flick that is still running. */
  still(): void;
  dispose(): void;
}

export const bindTouch = (el: HTMLElement, o: TouchOptions): Touch => {
  let start: { x: number; y: number; at: number } | undefined;
  let last = { y: 0, at: 0 };
  let moved = false;
  let holding = false;
  let held: ReturnType<typeof setTimeout> | undefined;
  let rest = 0; // part of a row not scrolled yet
  let speed = 0; // rows a second
  let frame = 0;
  let distance = 0; // between two fingers when they came down

  const apart = (e: TouchEvent) => Math.hypot(e.touches[0]!.clientX - e.touches[1]!.clientX, e.touches[0]!.clientY - e.touches[1]!.clientY);
  const by = (rows: number) => {
    rest += rows;
    const whole = Math.trunc(rest);
    if (whole) {
      rest -= whole;
      o.scroll(whole);
    }
  };
  const glide = (before: number) => {
    frame = requestAnimationFrame((t) => {
      const dt = Math.min(t - before, 100) / 1000;
      by(speed * dt);
      speed *= FRICTION ** (dt / 0.016);
      if (Math.abs(speed) > STOP) glide(t);
    });
  };
  const still = () => {
    cancelAnimationFrame(frame);
    clearTimeout(held);
    speed = 0;
  };

  const down = (e: TouchEvent) => {
    still();
    if (e.touches.length == 2) {
      start = undefined;
      distance = apart(e);
      o.pinchStart();
      return;
    }
    const { clientX: x, clientY: y } = e.touches[0]!;
    start = { x, y, at: e.timeStamp };
    last = { y, at: e.timeStamp };
    moved = false;
    rest = 0;
    held = setTimeout(hold, HOLD);
  };
  const hold = () => {
    clearTimeout(held);
    if (!start || moved) return;
    start = undefined;
    holding = true;
    o.hold();
  };
  // The platform's own long press takes the finger away, and may be sooner.
  const menu = (e: Event) => {
    if (!start) return;
    e.preventDefault();
    hold();
  };
  const move = (e: TouchEvent) => {
    // The page stays where it is: no pull to refresh, no scrolling of the page.
    if (e.cancelable) e.preventDefault();
    if (e.touches.length == 2 && distance) return o.pinch(apart(e) / distance);
    if (!start) return;
    const { clientX: x, clientY: y } = e.touches[0]!;
    if (!moved && Math.hypot(x - start.x, y - start.y) < SLOP) return;
    if (!moved) {
      moved = true;
      clearTimeout(held);
    }
    const rows = (last.y - y) / o.row();
    const dt = Math.max(e.timeStamp - last.at, 1) / 1000;
    speed = 0.6 * (rows / dt) + 0.4 * speed;
    last = { y, at: e.timeStamp };
    by(rows);
  };
  const up = (e: TouchEvent) => {
    clearTimeout(held);
    // The finger's click would fall on what the hold has opened, and close it.
    if (holding && e.cancelable) e.preventDefault();
    if (e.touches.length) return;
    holding = false;
    distance = 0;
    if (!start) return;
    if (!moved) {
      o.tap();
    } else if (e.timeStamp - last.at < 60 && Math.abs(speed) > STOP) glide(performance.now());
    start = undefined;
  };

  el.addEventListener("touchstart", down, { passive: true });
  el.addEventListener("touchmove", move, { passive: false });
  el.addEventListener("touchend", up);
  el.addEventListener("touchcancel", up);
  el.addEventListener("contextmenu", menu);
  const dispose = () => {
    still();
    el.removeEventListener("contextmenu", menu);
    el.removeEventListener("touchstart", down);
    el.removeEventListener("touchmove", move);
    el.removeEventListener("touchend", up);
    el.removeEventListener("touchcancel", up);
  };  return { still, dispose };
};
