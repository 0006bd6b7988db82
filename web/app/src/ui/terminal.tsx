// The terminal's screen: what is going on in words, the terminal, the keys, and
// the field that one types into.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { clock, useWords } from "../i18n/index.js";
import { connectionOf, known, refreshKnown } from "../machines.js";
import { go } from "../route.js";
import { prefs, setPrefs } from "../store/prefs.js";
import { useStore } from "../store/state.js";
import { bindField, type Field } from "../terminal/field.js";
import { MAX_PASTE } from "../terminal/paste.js";
import { endSession, sessionOf, type Session } from "../terminal/session.js";
import type { Program } from "../worker/messages.js";
import { StateLine, Trouble, useConnection } from "./connection.js";
import { KeyRow, noSticky, type Sticky } from "./keyrow.js";
import { Bar, Icon, Sheet } from "./parts.js";
import { sizeWords } from "./sessionwords.js";

export interface TerminalProps {
  id: string;
  program: Program;
}

const coarse = () => matchMedia("(pointer: coarse)").matches;
/** What comes before a secret: typing is hidden then. */
const SECRET = /(pass(word|phrase|code)|PIN|secret)[^\n]{0,60}:\s*$/i;

export const TerminalScreen = ({ id, program }: TerminalProps) => {
  const t = useWords();
  useConnection(id);
  const session = sessionOf(id, program);
  const s = useStore(session.state);
  const link = useStore(connectionOf(id).state);
  const p = useStore(prefs);
  const machine = useStore(known)?.find((m) => m.id == id);
  useEffect(() => void refreshKnown(), [id]);

  const holder = useRef<HTMLDivElement>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  const bound = useRef<Field>(undefined);
  const [sticky, setSticky] = useState<Sticky>(noSticky);
  const stickyNow = useRef(sticky);
  stickyNow.current = sticky;
  const [menu, setMenu] = useState(false);
  const [pasting, setPasting] = useState(false);
  const [composer, setComposer] = useState(false);
  const [hidden, setHidden] = useState(false);
  const [secret, setSecret] = useState(false);
  const showKeys = p.keys == "on" || (p.keys == "" && coarse());

  const used = () => {
    const { ctrl, alt } = stickyNow.current;
    if (ctrl == 1 || alt == 1) setSticky({ ctrl: ctrl == 1 ? 0 : ctrl, alt: alt == 1 ? 0 : alt });
  };

  useLayoutEffect(() => session.attach(holder.current!), [session]);

  useEffect(() => {
    if (composer) return;
    const el = field.current!;
    const f = bindField(el, {
      send: session.send,
      paste: (text) => session.paste(text),
      modes: () => ({ applicationCursor: session.term.modes.applicationCursorKeysMode }),
      sticky: () => ({ ctrl: !!stickyNow.current.ctrl, alt: !!stickyNow.current.alt }),
      used,
    });
    bound.current = f;
    const focus = () => session.focused(true);
    const blur = () => session.focused(false);
    el.addEventListener("focus", focus);
    el.addEventListener("blur", blur);
    session.onTap = () => el.focus({ preventScroll: true });
    if (!coarse()) el.focus({ preventScroll: true });
    return () => {
      session.onTap = () => {};
      el.removeEventListener("focus", focus);
      el.removeEventListener("blur", blur);
      f.dispose();
    };
  }, [session, composer]);

  // A password's prompt on the line of the cursor hides what is typed.
  useEffect(() => {
    const look = session.term.onCursorMove(() => setSecret(SECRET.test(session.prompt())));
    return () => look.dispose();
  }, [session]);

  const press = (key: string, m: { shift?: boolean }) => {
    if (key == "^C") session.send("\x03");
    else session.press(key, { ...m, ctrl: !!sticky.ctrl, alt: !!sticky.alt });
    used();
    bound.current?.reset();
  };

  const paste = async () => {
    const text = await navigator.clipboard?.readText?.().catch(() => undefined);
    // Refused, or not there: a field to paste into by hand.
    if (text === undefined) return setPasting(true);
    session.paste(text);
    bound.current?.reset();
  };

  const close = () => {
    endSession(session);
    go(program.kind == "attach" ? { at: "session", id, session: program.session } : { at: "machine", id }, true);
  };

  const name = program.kind == "shell" ? t("shell") : program.name;
  return (
    <main class="terminal">
      <Bar title={s.title || `${machine?.machine ?? ""} · ${name}`} sub={<StateLine id={id} />} back={program.kind == "attach" ? { at: "session", id, session: program.session } : { at: "machine", id }}>
        <button class="icon" aria-label={t("menu")} onClick={() => setMenu(true)}>
          <Icon name="menu" />
        </button>
      </Bar>
      <Trouble id={id} />
      {s.restored && link.phase != "up" && <p class="strip" role="status">{t("termRestored", { time: clock(s.restored) })}</p>}
      {s.again && s.phase == "open" && program.kind != "shell" && <Passing key={link.proof ? "again" : ""}>{t("termAgain", { name: program.name })}</Passing>}
      {s.phase == "opening" && link.phase == "up" && <p class="strip">{t("termConnecting")}</p>}
      {s.clipboard !== undefined && (
        <section class="strip ask" role="alertdialog" aria-label={t("clipboardAsk", { n: s.clipboard.length })}>
          <p>{t("clipboardAsk", { n: s.clipboard.length })}</p>
          <button onClick={() => void session.takeClipboard()}>{t("allow")}</button>
          <button class="quiet" onClick={() => session.dismiss("clipboard")}>
            {t("deny")}
          </button>
        </section>
      )}
      {s.unsent > 0 && (
        <section class="strip ask" role="alert" data-unsent={s.unsent}>
          <p>{t("inputDropped", { size: sizeWords(s.unsent) })}</p>
          <button class="quiet" onClick={() => session.readUnsent()}>
            {t("dismiss")}
          </button>
        </section>
      )}
      <div class="screen" ref={holder} data-phase={s.phase} />
      {s.scrolled && (
        <button class="to-end" aria-label={t("scrollToEnd")} onMouseDown={(e) => e.preventDefault()} onClick={() => session.toEnd()}>
          <Icon name="end" />
        </button>
      )}
      {s.hint && <p class="toast" role="status">{s.hint == "pasteTooLong" ? t("pasteTooLong", { size: `> ${MAX_PASTE >> 20} MB` }) : t(s.hint)}</p>}
      {s.phase == "ended" ? <Ended session={session} program={program} onClose={close} /> : null}
      {showKeys && <KeyRow sticky={sticky} setSticky={setSticky} press={press} paste={() => void paste()} />}
      <div class="typing">
        {composer ? (
          <Composer session={session} />
        ) : (
          <textarea
            ref={field}
            class={`field ${hidden || secret ? "secret" : ""}`}
            rows={1}
            aria-label={t(hidden || secret ? "fieldHidden" : "field")}
            autocapitalize="off"
            autocomplete="off"
            autocorrect="off"
            spellcheck={false}
            enterkeyhint="enter"
            data-sticky={sticky.ctrl || sticky.alt ? "" : undefined}
          />
        )}
        <button class="icon" aria-label={t(composer ? "composeStop" : "compose")} aria-pressed={composer} onMouseDown={(e) => e.preventDefault()} onClick={() => setComposer(!composer)}>
          <Icon name={composer ? "keys" : "pen"} />
        </button>
      </div>
      {menu && (
        <Sheet title={t("menu")} onClose={() => setMenu(false)}>
          <div class="row">
            <button class="quiet grow" onClick={() => session.font(session.fontSize - 1)}>
              {t("fontSmaller")}
            </button>
            <button class="quiet grow" onClick={() => session.font(session.fontSize + 1)}>
              {t("fontBigger")}
            </button>
          </div>
          <div class="choices" onClick={() => setMenu(false)}>
            <button onClick={() => session.showSheet()}>{t("copyTitle")}</button>
            <button onClick={() => setPasting(true)}>{t("pasteTitle")}</button>
            <button onClick={() => setPrefs({ keys: showKeys ? "off" : "on" })}>{t(showKeys ? "hideKeys" : "showKeys")}</button>
            <button onClick={() => setHidden(!hidden)}>{t(hidden ? "showTyping" : "hideTyping")}</button>
            <button onClick={() => setPrefs({ screenReader: !p.screenReader })}>{t(p.screenReader ? "screenReaderOff" : "screenReaderOn")}</button>
            {program.kind != "shell" && (
              <button
                onClick={() => {
                  endSession(session);
                  go(program.kind == "attach" ? { at: "raw", id, session: program.session, fit: !program.fit } : { at: "tmux", id, name: program.name, target: program.target, fit: !program.fit }, true);
                }}
              >
                {t(program.fit ? "fitNot" : "fit")}
              </button>
            )}
            <button class="danger" onClick={close}>
              {t("endTerminal")}
            </button>
          </div>
        </Sheet>
      )}
      {s.sheet == "copy" && <CopySheet session={session} onClose={() => session.dismiss("sheet")} />}
      {pasting && <PasteSheet session={session} onClose={() => setPasting(false)} />}
      {s.link && (
        <Sheet title={t("open")} onClose={() => session.dismiss("link")}>
          <p>{t("linkAsk")}</p>
          <p>
            <code class="break">{s.link}</code>
          </p>
          <a class="button" href={s.link} target="_blank" rel="noopener noreferrer" onClick={() => session.dismiss("link")}>
            {t("open")}
          </a>
        </Sheet>
      )}
      {s.paste !== undefined && (
        <Sheet title={t("pasteTitle")} onClose={() => session.dismiss("paste")}>
          <p>{t("pasteLines", { n: s.paste.split("\n").length })}</p>
          <pre class="preview">{s.paste.slice(0, 2000)}</pre>
          <button onClick={() => session.paste(s.paste!, true)}>{t("pasteTitle")}</button>
        </Sheet>
      )}
    </main>
  );
};

/** Says something for a while. */
const Passing = ({ children }: { children: string }) => {
  const [shown, set] = useState(true);
  useEffect(() => {
    const timer = setTimeout(() => set(false), 6000);
    return () => clearTimeout(timer);
  }, []);
  return shown ? <p class="strip" role="status">{children}</p> : null;
};

const Ended = ({ session, program, onClose }: { session: Session; program: Program; onClose: () => void }) => {
  const t = useWords();
  const e = session.state.value.ending;
  if (!e) return null;
  const words =
    e.how == "exit"
      ? e.signal
        ? t("termEndedSignal", { signal: e.signal })
        : t("termEndedExit", { code: e.code ?? "?" })
      : e.how == "lost"
        ? t("termEndedLost")
        : e.how == "gone"
          ? t("termEndedGone", { name: program.kind == "shell" ? "" : program.name })
          : t("termEndedRefused", { text: e.text });
  return (
    <section class="strip ask" role="status" data-ended={e.how}>
      <p>{words}</p>
      <button onClick={() => session.again()}>{t("openAgain")}</button>
      <button class="quiet" onClick={onClose}>
        {t("close")}
      </button>
    </section>
  );
};

/** Text that is finished before it is sent: several lines, dictation, a language with an input method. */
const Composer = ({ session }: { session: Session }) => {
  const t = useWords();
  const [text, setText] = useState("");
  const send = (enter: boolean) => {
    if (!text && !enter) return;
    session.paste(text, true);
    if (enter) session.send("\r");
    setText("");
  };
  return (
    <div class="composer">
      <textarea rows={3} value={text} onInput={(e) => setText(e.currentTarget.value)} aria-label={t("compose")} autoFocus />
      <div class="row">
        <button class="quiet grow" disabled={!text} onMouseDown={(e) => e.preventDefault()} onClick={() => send(false)}>
          {t("send")}
        </button>
        <button class="grow" onMouseDown={(e) => e.preventDefault()} onClick={() => send(true)}>
          {t("sendEnter")}
        </button>
      </div>
    </div>
  );
};

const CopySheet = ({ session, onClose }: { session: Session; onClose: () => void }) => {
  const t = useWords();
  const [copied, set] = useState(false);
  const ref = useRef<HTMLPreElement>(null);
  const [text] = useState(() => session.text(true));
  useLayoutEffect(() => {
    ref.current!.scrollTop = ref.current!.scrollHeight;
  }, []);
  const copy = (what: string) => void navigator.clipboard?.writeText(what).then(() => set(true), () => session.hint("clipboardRefused"));
  return (
    <Sheet title={t("copyTitle")} onClose={onClose}>
      <pre class="selectable" ref={ref} tabIndex={0}>
        {text}
      </pre>
      <div class="row">
        <button class="quiet grow" onClick={() => copy(session.text(false))}>
          {t("copyScreen")}
        </button>
        <button class="grow" onClick={() => copy(text)}>
          {t(copied ? "copied" : "copyAll")}
        </button>
      </div>
    </Sheet>
  );
};

const PasteSheet = ({ session, onClose }: { session: Session; onClose: () => void }) => {
  const t = useWords();
  const [text, set] = useState("");
  return (
    <Sheet title={t("pasteTitle")} onClose={onClose}>
      <textarea rows={6} value={text} onInput={(e) => set(e.currentTarget.value)} aria-label={t("pasteHere")} placeholder={t("pasteHere")} autoFocus />
      <button
        disabled={!text}
        onClick={() => {
          onClose();
          session.paste(text);
        }}
      >
        {t("pasteTitle")}
      </button>
    </Sheet>
  );
};
