// A terminal on the page: xterm.js joined to a terminal of the Worker, with an
// input of our own, since xterm's loses letters of soft keyboards, ignores
// fingers and lets a paste break out of its brackets.
//
// It outlives the view: going back to the list and coming again shows the same
// terminal. What a caller will get wrong: attach needs an element that is in the
// document, and whoever shows the terminal ends it, too.

import { FitAddon } from "@xterm/addon-fit";
import { SerializeAddon } from "@xterm/addon-serialize";
import { UnicodeGraphemesAddon } from "@xterm/addon-unicode-graphemes";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { connectionOf, known, onLose, type RemoteTerminal } from "../machines.js";
import { MAX_FONT, MIN_FONT, prefs, setPrefs } from "../store/prefs.js";
import { createStore, type Store } from "../store/state.js";
import type { Ending, Program } from "../worker/messages.js";
import { keptName, keyOf } from "./kept.js";
import { MAX_PASTE, linesThatRun, pasteBytes } from "./paste.js";
import { keyBytes, type Modifiers } from "./keys.js";
import { OVER } from "./over.js";
import { pace } from "./pace.js";
import { dark, dimmed, light } from "./theme.js";
import { bindTouch, type Touch } from "./touch.js";
import { wholes } from "./whole.js";

export interface SessionState {
  phase: "opening" | "open" | "ended";
  ending: Ending | undefined;
  /** It was attached again after the connection had broken. */
  again: boolean;
  title: string;
  /** A program wants to write to the clipboard. */
  clipboard: string | undefined;
  /** An address that was tapped. */
  link: string | undefined;
  /** A paste that would run line by line. */
  paste: string | undefined;
  /** A sheet that a gesture asked for. */
  sheet: "copy" | undefined;
  /** A sentence's key, shown for a moment. */
  hint: "" | "notSent" | "scrollOwn" | "clipboardRefused" | "pasteTooLong";
  scrolled: boolean;
  /** Bytes that were typed or pasted and not sent, since that was last dismissed. */
  unsent: number;
  /** What is shown was kept from before a reload; wall clock, ms. */
  restored: number | undefined;
}

/** So many lines can be scrolled back: 2,000 of 80 columns are 4 MB; what is longer belongs in tmux. */
const SCROLLBACK = 2000;
/** So much is kept for a page that the system throws away: the screen and a bit. */
const KEPT_LINES = 200;
const KEPT_BYTES = 256 << 10;
/** A program's clipboard text; more is no text that a person copies. */
const MAX_CLIPBOARD = 100_000;
/**
 * More than this waiting to be shown, or in a span of so many ms, is a flood: a
 * screen of text is 10 KB, and a program that redraws one thirty times a second
 * sends half as much.
 */
const FLOOD = 64 << 10;
const SPAN = 100;
/** So much shown is said at a time, where more is to come: saying it wakes the Worker, which costs a tenth of reading as much. */
const SAID = 32 << 10;
/** Resizes wait until the keyboard has stopped moving: each is a SIGWINCH for the program. */
const SETTLE = 120;

const coarse = () => matchMedia("(pointer: coarse)").matches;
/** WebKit draws garbage with WebGL, and phones select only in the DOM. */
const webglHere = () => !coarse() && !/AppleWebKit(?!.*Chrom)/.test(navigator.userAgent);
const defaultFont = () => (coarse() ? 13 : 14);

export class Session {
  readonly state: Store<SessionState> = createStore<SessionState>({ phase: "opening", ending: undefined, again: false, title: "", clipboard: undefined, link: undefined, paste: undefined, sheet: undefined, hint: "", scrolled: false, unsent: 0, restored: undefined });
  readonly term: Terminal;
  /** Called when the person taps the terminal: the field takes the focus. */
  onTap: () => void = () => {};
  private readonly root = document.createElement("div");
  private readonly fitter = new FitAddon();
  private readonly serializer = new SerializeAddon();
  private readonly encoder = new TextEncoder();
  private remote: RemoteTerminal | undefined;
  private settle: ReturnType<typeof setTimeout> | undefined;
  private hintTimer: ReturnType<typeof setTimeout> | undefined;
  private fontAtPinch = 0;
  private readonly undo: (() => void)[] = [];
  private touch: Touch | undefined;
  private sent = { cols: 0, rows: 0 };
  /** A program is on the screen, whether or not it can be reached. */
  private shown = false;
  /** Bytes that came and are not on the screen. */
  private behind = 0;
  /** What came in the present span, which began then, and in the one before. */
  private span = { at: 0, came: 0, before: 0 };
  private readonly whole = wholes();

  constructor(
    readonly machine: string,
    readonly program: Program,
    private readonly key: string,
  ) {
    this.root.className = "xterm-root";
    this.term = new Terminal({
      allowProposedApi: true, // unicode versions are one
      cursorBlink: false,
      cursorInactiveStyle: "block", // the focus is in our field
      fontFamily: 'ui-monospace, "SF Mono", "Cascadia Mono", "Roboto Mono", "DejaVu Sans Mono", "Noto Sans Mono CJK JP", monospace',
      fontSize: prefs.value.fontSize || defaultFont(),
      scrollback: SCROLLBACK,
      screenReaderMode: prefs.value.screenReader,
      macOptionIsMeta: false,
      minimumContrastRatio: 4.5,
      theme: dimmed(prefs.value.theme) ? dark : light,
      linkHandler: { activate: (_, uri) => this.openLink(uri), allowNonHttpProtocols: false },
    });
    this.term.loadAddon(this.fitter);
    this.term.loadAddon(this.serializer);
    this.term.loadAddon(new UnicodeGraphemesAddon());
    this.term.loadAddon(new WebLinksAddon((_, uri) => this.openLink(uri)));
    this.listen();
  }

  private patch(change: Partial<SessionState>): void {
    this.state.set((s) => ({ ...s, ...change }));
  }

  private listen(): void {
    const { term } = this;
    // What the terminal itself answers: reports of its position and colours, and
    // the mouse. Typing goes through our field.
    term.onData((data) => this.bytes(data));
    term.onBinary((data) => this.remote?.input(Uint8Array.from(data, (c) => c.charCodeAt(0))));
    term.onTitleChange((title) => this.patch({ title: title.replace(/[\p{Cc}\p{Cf}]/gu, "").slice(0, 80) }));
    term.onScroll(() => this.scrolled());
    // A program asks for the clipboard: a person decides. Reading is never
    // answered: it would hand over what another app has put there.
    term.parser.registerOscHandler(52, (data) => {
      const [, text = ""] = data.split(";", 2);
      if (text == "?" || !text || text.length > MAX_CLIPBOARD * 2) return true;
      try {
        const decoded = new TextDecoder().decode(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)));
        if (decoded && decoded.length <= MAX_CLIPBOARD) this.patch({ clipboard: decoded });
      } catch {
        // Not base64: a program's mistake, and nothing to ask about.
      }
      return true;
    });
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const recolour = () => {
      term.options.theme = dimmed(prefs.value.theme) ? dark : light;
      term.options.screenReaderMode = prefs.value.screenReader;
    };
    scheme.addEventListener("change", recolour);
    this.undo.push(() => scheme.removeEventListener("change", recolour), prefs.subscribe(recolour));
    // The system may throw a hidden page away without a further word.
    const hidden = () => document.visibilityState == "hidden" && this.keep();
    document.addEventListener("visibilitychange", hidden);
    addEventListener("pagehide", hidden);
    this.undo.push(() => {
      document.removeEventListener("visibilitychange", hidden);
      removeEventListener("pagehide", hidden);
    });
  }

  /** Shows the terminal in el until the returned function is called. */
  attach(el: HTMLElement): () => void {
    el.append(this.root);
    if (!this.term.element) {
      this.term.open(this.root);
      const textarea = this.term.textarea!;
      // Its own input stays empty: the keyboard belongs to our field.
      textarea.tabIndex = -1;
      textarea.inputMode = "none";
      textarea.readOnly = true;
      textarea.setAttribute("aria-hidden", "true");
      textarea.addEventListener("focus", (e) => e.isTrusted && this.onTap());
      // Draws the cursor at all: xterm waits for its first focus with that.
      this.focused(true);
      this.term.attachCustomKeyEventHandler(() => false);
      this.undo.push(pace(this.term, () => this.flooded()));
      this.restore();
      if (webglHere()) void this.webgl();
      this.touch = bindTouch(this.root, {
        row: () => this.term.element!.clientHeight / this.term.rows,
        scroll: (rows) => this.scroll(rows),
        pinchStart: () => (this.fontAtPinch = this.term.options.fontSize!),
        pinch: (factor) => this.font(this.fontAtPinch * factor),
        tap: () => this.onTap(),
        hold: () => this.patch({ sheet: "copy" }),
      });
      this.undo.push(this.touch.dispose);
    }
    this.fit();
    if (!this.remote && this.state.value.phase == "opening") this.start();
    const observer = new ResizeObserver(() => {
      clearTimeout(this.settle);
      this.settle = setTimeout(() => this.fit(), SETTLE);
    });
    observer.observe(el);
    return () => {
      observer.disconnect();
      clearTimeout(this.settle);
      this.root.remove();
    };
  }

  private start(): void {
    this.sent = { cols: this.term.cols, rows: this.term.rows };
    this.whole.clear();
    /** Bytes that are on the screen, and of which the Worker was not told. */
    let unsaid = 0;
    // Not this.remote: what the program before this one printed may still wait to be shown.
    const remote: RemoteTerminal = connectionOf(this.machine).open(this.program, this.term.cols, this.term.rows, {
      opened: (again) => {
        // A size that changed while there was no connection was told to the Worker.
        this.patch({ phase: "open", again, ending: undefined, restored: undefined });
        this.shown = true;
        this.remember("");
      },
      detached: () => {
        this.whole.clear();
        this.patch({ phase: "opening" });
      },
      data: (data) => {
        const { length } = data;
        this.count(length);
        this.behind += length;
        this.term.write(this.whole.next(data), () => {
          this.behind -= length;
          unsaid += length;
          if (this.behind > 0 && unsaid < SAID) return;
          remote.consumed(unsaid);
          unsaid = 0;
        });
      },
      dropped: (bytes) => this.patch({ unsent: this.state.value.unsent + bytes }),
      ended: (ending) => {
        this.remote = undefined;
        this.shown = false;
        sessionStorage.removeItem(keptName(this.key));
        this.patch({ phase: "ended", ending, clipboard: undefined });
        this.term.write(OVER);
      },
    });
    this.remote = remote;
  }

  private count(bytes: number): void {
    const now = performance.now();
    const { at, came } = this.span;
    if (now - at >= SPAN) this.span = { at: now, came: 0, before: now - at < 2 * SPAN ? came : 0 };
    this.span.came += bytes;
  }

  private flooded(): boolean {
    const { at, came, before } = this.span;
    return this.behind > FLOOD || (performance.now() - at < SPAN && Math.max(came, before) > FLOOD);
  }

  /** A new program in this terminal, after the old one has ended. */
  again(): void {
    this.patch({ phase: "opening", ending: undefined, again: false, restored: undefined });
    this.start();
  }

  private async webgl(): Promise<void> {
    const { WebglAddon } = await import("@xterm/addon-webgl");
    try {
      const addon = new WebglAddon();
      // A lost context shows nothing at all: the DOM renderer takes over.
      addon.onContextLoss(() => addon.dispose());
      this.term.loadAddon(addon);
    } catch {
      // No WebGL here: the DOM renderer is what there is.
    }
  }

  /** Our field has the focus, or lost it: the cursor shows that, and programs that asked are told. */
  focused(on: boolean): void {
    this.term.textarea?.dispatchEvent(new FocusEvent(on ? "focus" : "blur"));
  }

  /** As many columns and rows as fit; the program is told when that changed. */
  fit(): void {
    const size = this.fitter.proposeDimensions();
    if (!size || !Number.isFinite(size.cols) || !Number.isFinite(size.rows)) return;
    const [cols, rows] = [Math.max(size.cols, 10), Math.max(size.rows, 2)];
    if (cols != this.term.cols || rows != this.term.rows) this.term.resize(cols, rows);
    if (cols == this.sent.cols && rows == this.sent.rows) return;
    this.sent = { cols, rows };
    this.remote?.resize(cols, rows);
  }

  font(size: number): void {
    const rounded = Math.round(Math.min(Math.max(size, MIN_FONT), MAX_FONT));
    if (rounded == this.term.options.fontSize) return;
    this.term.options.fontSize = rounded;
    setPrefs({ fontSize: rounded });
    clearTimeout(this.settle);
    this.settle = setTimeout(() => this.fit(), SETTLE);
  }

  get fontSize(): number {
    return this.term.options.fontSize!;
  }

  hint(hint: SessionState["hint"]): void {
    this.patch({ hint });
    clearTimeout(this.hintTimer);
    this.hintTimer = setTimeout(() => this.patch({ hint: "" }), 4000);
  }

  private bytes(text: string): boolean {
    if (!this.remote || this.state.value.phase != "open") return false;
    if (connectionOf(this.machine).state.value.phase != "up") return false;
    this.remote.input(this.encoder.encode(text));
    return true;
  }

  /** Sends what was typed; says so when nobody takes it. */
  send = (text: string): boolean => {
    if (this.bytes(text)) {
      this.term.scrollToBottom();
      return true;
    }
    this.hint("notSent");
    return false;
  };

  press(key: string, m: Modifiers): void {
    const bytes = keyBytes(key, m, { applicationCursor: this.term.modes.applicationCursorKeysMode });
    if (bytes !== undefined) this.send(bytes);
  }

  /** Pastes, after asking where lines would run at once. */
  paste(text: string, sure = false): void {
    const bracketed = this.term.modes.bracketedPasteMode;
    if (text.length > MAX_PASTE) return this.hint("pasteTooLong");
    if (!sure && linesThatRun(text, bracketed)) return this.patch({ paste: text });
    this.patch({ paste: undefined });
    this.send(pasteBytes(text, bracketed));
  }

  /** The person has read how much was not sent. */
  readUnsent(): void {
    this.patch({ unsent: 0 });
  }

  dismiss(what: "clipboard" | "link" | "paste" | "sheet"): void {
    this.patch({ [what]: undefined });
  }

  showSheet(): void {
    this.patch({ sheet: "copy" });
  }

  async takeClipboard(): Promise<void> {
    const text = this.state.value.clipboard;
    this.patch({ clipboard: undefined });
    if (text) await navigator.clipboard.writeText(text).catch(() => this.hint("clipboardRefused"));
  }

  private openLink(uri: string): void {
    if (/^https?:\/\//i.test(uri) && URL.canParse(uri)) this.patch({ link: new URL(uri).href });
  }

  private scrolled(): void {
    const { viewportY, baseY } = this.term.buffer.active;
    const scrolled = viewportY < baseY;
    if (scrolled != this.state.value.scrolled) this.patch({ scrolled });
  }

  /** A finger scrolls: through what was printed, or in a program that shows pages of its own, as its mouse wheel. */
  scroll(rows: number): void {
    const { term } = this;
    if (term.modes.mouseTrackingMode != "none") {
      // A wheel's turn at the middle of the screen, in the encoding of SGR mice.
      const button = rows < 0 ? 64 : 65;
      const at = `${Math.ceil(term.cols / 2)};${Math.ceil(term.rows / 2)}`;
      this.bytes(`\x1b[<${button};${at}M`.repeat(Math.min(Math.abs(rows), term.rows)));
    } else if (term.buffer.active.type == "alternate") {
      this.hint("scrollOwn");
    } else {
      term.scrollLines(rows);
      this.scrolled();
    }
  }

  toEnd(): void {
    this.touch?.still();
    this.term.scrollToBottom();
    this.scrolled();
  }

  /** The text on the screen, or all that can be scrolled to. */
  text(all: boolean): string {
    const b = this.term.buffer.active;
    const [from, to] = all ? [0, b.length] : [b.viewportY, Math.min(b.viewportY + this.term.rows, b.length)];
    const lines: string[] = [];
    for (let i = from; i < to; i++) {
      const line = b.getLine(i);
      if (!line) continue;
      const text = line.translateToString(true);
      if (line.isWrapped && lines.length) lines[lines.length - 1] += text;
      else lines.push(text);
    }
    return lines.join("\n").trimEnd();
  }

  /** The line of the cursor up to it: tells a password's prompt. */
  prompt(): string {
    const b = this.term.buffer.active;
    return b.getLine(b.baseY + b.cursorY)?.translateToString(false, 0, b.cursorX) ?? "";
  }

  /** Keeps what is on the screen for this tab: it ends with the tab, and with the program. */
  private keep(): void {
    if (!this.shown || known.value?.find((m) => m.id == this.machine)?.out) return;
    const screen = this.serializer.serialize({ scrollback: KEPT_LINES, excludeModes: true, excludeAltBuffer: true });
    if (screen.length <= KEPT_BYTES) this.remember(screen);
  }

  private remember(screen: string): void {
    try {
      sessionStorage.setItem(keptName(this.key), JSON.stringify({ at: Date.now(), screen }));
    } catch {
      // No room: after a reload the screen is empty until the machine draws it.
    }
  }

  private restore(): void {
    try {
      const kept = JSON.parse(sessionStorage.getItem(keptName(this.key)) ?? "null");
      if (!kept || typeof kept.screen != "string" || typeof kept.at != "number") return;
      if (kept.screen) this.term.write(kept.screen + "\r\n");
      this.patch({ restored: kept.at });
      // The shell that ran here ended with the page that held it.
      if (this.program.kind == "shell") this.patch({ phase: "ended", ending: { how: "lost" } });
    } catch {
      // Nothing readable was kept.
    }
  }

  /** Nothing of what it showed is left. */
  wipe(): void {
    this.shown = false;
    this.whole.clear();
    this.patch({ title: "", clipboard: undefined, link: undefined, paste: undefined, sheet: undefined, restored: undefined });
    // After what is still being written to it.
    this.term.write("", () => this.term.reset());
  }

  dispose(): void {
    sessionStorage.removeItem(keptName(this.key));
    clearTimeout(this.settle);
    clearTimeout(this.hintTimer);
    for (const f of this.undo) f();
    this.remote?.end();
    this.remote = undefined;
    this.term.dispose();
    this.root.remove();
  }
}

const sessions = new Map<string, Session>();

/** The terminal of this machine and program, made where there is none. */
export const sessionOf = (machine: string, program: Program): Session => {
  const key = keyOf(machine, program);
  let s = sessions.get(key);
  if (!s) sessions.set(key, (s = new Session(machine, program, key)));
  return s;
};

// Screens of a machine that lets this device in no more go, unless the one for
// terminals still does: its own sshd is asked about keys for itself.
onLose((id) => {
  for (const s of sessions.values()) if (s.machine == id && connectionOf(id).state.value.phase != "up") s.wipe();
});

export const endSession = (s: Session): void => {
  for (const [key, x] of sessions) if (x == s) sessions.delete(key);
  s.dispose();
};
