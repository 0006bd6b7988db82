// The keys that a soft keyboard lacks. Pressing one leaves the focus, and with it
// the keyboard, where it is.

import { useRef } from "preact/hooks";
import { useWords, type Key } from "../i18n/index.js";
import type { Modifiers } from "../terminal/keys.js";

/** off, for the next key, or until it is tapped again. */
export type Stick = 0 | 1 | 2;
export interface Sticky {
  ctrl: Stick;
  alt: Stick;
}

export const noSticky: Sticky = { ctrl: 0, alt: 0 };

interface KeyRowProps {
  sticky: Sticky;
  setSticky(s: Sticky): void;
  press(key: string, m: Modifiers): void;
  paste(): void;
}

/** A held arrow repeats as a keyboard's does; ms. */
const REPEAT_AFTER = 400;
const REPEAT_EVERY = 60;

const keys: { key: string; label: string; name: Key; shift?: boolean; ctrl?: boolean; repeat?: boolean }[] = [
  { key: "ArrowLeft", label: "←", name: "keyLeft", repeat: true },
  { key: "ArrowUp", label: "↑", name: "keyUp", repeat: true },
  { key: "ArrowDown", label: "↓", name: "keyDown", repeat: true },
  { key: "ArrowRight", label: "→", name: "keyRight", repeat: true },
  { key: "Enter", label: "⏎", name: "keyEnter" },
];
const more: typeof keys = [
  { key: "Home", label: "Home", name: "keyHome" },
  { key: "End", label: "End", name: "keyEnd" },
  { key: "PageUp", label: "PgUp", name: "keyPgUp", repeat: true },
  { key: "PageDown", label: "PgDn", name: "keyPgDn", repeat: true },
];

export const KeyRow = ({ sticky, setSticky, press, paste }: KeyRowProps) => {
  const t = useWords();
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const stop = () => clearTimeout(timer.current);
  const again = (f: () => void) => {
    f();
    timer.current = setTimeout(() => again(f), REPEAT_EVERY);
  };
  const stick = (which: "ctrl" | "alt") => setSticky({ ...sticky, [which]: ((sticky[which] + 1) % 3) as Stick });
  // The browser moves the focus at pointerdown or mousedown, before any click.
  const stay = (e: Event) => e.preventDefault();
  const button = (label: string, name: string, act: () => void, repeat = false, extra = {}) => (
    <button
      type="button"
      tabIndex={-1}
      aria-label={name}
      onMouseDown={stay}
      onPointerDown={(e) => {
        stay(e);
        stop();
        if (repeat) timer.current = setTimeout(() => again(act), REPEAT_AFTER);
      }}
      onPointerUp={stop}
      onPointerLeave={stop}
      onPointerCancel={stop}
      onContextMenu={stay}
      onClick={act}
      {...extra}
    >
      {label}
    </button>
  );
  const sticking = (which: "ctrl" | "alt", label: string) => {
    const s = sticky[which];
    return button(label, s ? `${label}, ${t(s == 1 ? "sticky" : "locked")}` : label, () => stick(which), false, { "aria-pressed": s > 0, "data-stick": s });
  };
  const named = (k: (typeof keys)[number]) => button(k.label, t(k.name), () => press(k.key, {}), k.repeat);
  return (
    <div class="keyrow" role="toolbar" aria-label={t("keyRow")}>
      {button(t("keyEsc"), t("keyEsc"), () => press("Escape", {}))}
      {button(t("keyTab"), t("keyTab"), () => press("Tab", {}))}
      {button(t("keyShiftTab"), t("keyShiftTabName"), () => press("Tab", { shift: true }))}
      {sticking("ctrl", t("keyCtrl"))}
      {sticking("alt", t("keyAlt"))}
      {keys.map(named)}
      {button("^C", t("keyCtrlC"), () => press("^C", {}))}
      {button(t("keyPaste"), t("keyPaste"), paste)}
      {more.map(named)}
    </div>
  );
};
