// Small pieces that every screen uses.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useWords } from "../i18n/index.js";
import { href, type Route } from "../route.js";
import type { Mood } from "./words.js";

export const Bar = ({ title, sub, back, children }: { title: string; sub?: ComponentChildren; back?: Route; children?: ComponentChildren }) => {
  const t = useWords();
  return (
    <header class="bar">
      {back && (
        <a class="icon" href={href(back)} aria-label={t("back")}>
          <Icon name="back" />
        </a>
      )}
      <div class="titles">
        <h1>{title}</h1>
        {sub}
      </div>
      {children}
    </header>
  );
};

/** Colour beside words, never instead of them. */
export const Dot = ({ mood }: { mood: Mood }) => <span class={`dot ${mood}`} aria-hidden="true" />;

const paths = {
  back: "M15 5l-7 7 7 7",
  menu: "M12 5.5v.01M12 12v.01M12 18.5v.01",
  next: "M9 5l7 7-7 7",
  plus: "M12 5v14M5 12h14",
  pen: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  keys: "M3 7h18v10H3zM7 11v.01M11 11v.01M15 11v.01M8 14h8",
  eye: "M2 12s4-6 10-6 10 6 10 6-4 6-10 6S2 12 2 12zM12 9.5v5M9.5 12h5",
  end: "M12 5v14M6 13l6 6 6-6",
  refresh: "M20 11a8 8 0 1 0-2.3 6M20 4v7h-7",
  info: "M12 3a9 9 0 1 0 .01 0M12 11v5M12 7.8v.01",
  send: "M4 12l16-8-6 16-3-7z",
  clip: "M8 12l6-6a3 3 0 0 1 4 4l-8 8a5 5 0 0 1-7-7l7-7",
  screen: "M3 5h18v14H3zM7 10l3 2.5L7 15M12 15h4",
  quick: "M13 3L5 14h6l-1 7 8-11h-6z",
  search: "M11 4a7 7 0 1 0 .01 0M16 16l4 4",
} as const;

export const Icon = ({ name }: { name: keyof typeof paths }) => (
  <svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true" fill="none" stroke="currentColor" stroke-width={name == "menu" ? 3 : 2} stroke-linecap="round" stroke-linejoin="round">
    <path d={paths[name]} />
  </svg>
);

/** A dialog over everything; the browser keeps the focus within and closes it by Esc. */
export const Sheet = ({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) => {
  const t = useWords();
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const d = ref.current!;
    d.showModal();
    return () => d.close();
  }, []);
  return (
    <dialog ref={ref} class="sheet" aria-label={title} onCancel={(e) => (e.preventDefault(), onClose())} onClick={(e) => e.target == ref.current && onClose()}>
      <div class="sheet-body">
        <div class="sheet-head">
          <h2>{title}</h2>
          <button class="quiet" onClick={onClose}>
            {t("close")}
          </button>
        </div>
        {children}
      </div>
    </dialog>
  );
};

export const Fact = ({ name, children }: { name: string; children: ComponentChildren }) => (
  <div class="fact">
    <dt>{name}</dt>
    <dd>{children}</dd>
  </div>
);
