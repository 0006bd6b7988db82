// Where a reply is written, and what became of those that were sent. What is
// written is kept as a draft until it is sent, and then by the outbox. A password
// has a field of its own and is kept nowhere.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ago, useWords } from "../i18n/index.js";
import { toBase64 } from "../pairing/bytes.js";
import { sends } from "../sessions/enter.js";
import { draft, keepDraft } from "../sessions/kept.js";
import { newKey } from "../sessions/key.js";
import { isObject, Refused, text as textOf } from "../sessions/model.js";
import { safeAgain, type Outbox, type Reply } from "../sessions/outbox.js";
import { outboxOf } from "../sessions/outboxes.js";
import { oneLine } from "../sessions/plain.js";
import { request } from "../sessions/remote.js";
import { useStore } from "../store/state.js";
import { Icon } from "./parts.js";

const keyboardHere = () => !matchMedia("(pointer: coarse)").matches;
const PIECE = 384 << 10;
const MAX_FILE = 32 << 20;
/** A draft is written after so long without a key. */
const WRITE = 300;

export const Composer = ({ machine, session, name, live, password, focus }: { machine: string; session: string; name: string; live: boolean; password: boolean; focus: number }) => {
  const t = useWords();
  const [text, setText] = useState("");
  const [secret, setSecret] = useState("");
  const box = outboxOf(machine, session);
  const [files, setFiles] = useState<{ id: string; words: string }[]>([]);
  const [quick, setQuick] = useState(false);
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const touched = useRef(false);
  /** The draft, where it is not written yet. */
  const unwritten = useRef<string | undefined>(undefined);
  const write = () => {
    if (unwritten.current !== undefined) void keepDraft(machine, session, unwritten.current);
    unwritten.current = undefined;
  };

  useEffect(() => {
    let shown = true;
    void draft(machine, session).then((d) => shown && !touched.current && setText(d));
    return () => {
      shown = false;
    };
  }, [machine, session]);
  useEffect(() => {
    if (unwritten.current === undefined) return;
    const timer = setTimeout(write, WRITE);
    return () => clearTimeout(timer);
  }, [text]);
  // A page that is left, hidden or closed has no such time.
  useEffect(() => {
    document.addEventListener("visibilitychange", write);
    addEventListener("pagehide", write);
    return () => {
      document.removeEventListener("visibilitychange", write);
      removeEventListener("pagehide", write);
      write();
    };
  }, [machine, session]);
  // What was typed for one prompt is for no other, and for no field that shows it.
  useEffect(() => setSecret(""), [password]);
  useEffect(() => {
    if (focus) field.current?.focus();
  }, [focus]);
  useLayoutEffect(() => {
    const el = field.current;
    if (!el) return;
    el.style.height = "auto";
    el.style.height = `${el.scrollHeight + 2}px`;
  }, [text, password]);

  const edit = (s: string) => {
    touched.current = true;
    unwritten.current = s;
    setText(s);
  };

  const send = () => {
    if (!live || !(password ? secret : text.trim())) return;
    void box.send(password ? secret : text, password);
    if (password) setSecret("");
    else {
      edit("");
      // It goes when the message is kept.
      unwritten.current = undefined;
    }
    field.current?.focus();
  };

  const insert = (s: string) => {
    const el = field.current;
    const was = el?.value ?? text;
    const at = el?.selectionStart ?? was.length;
    const before = was.slice(0, at);
    const gap = before && !/\s$/.test(before) ? " " : "";
    edit(before + gap + s + " " + was.slice(at));
  };

  const upload = async (file: File) => {
    const id = newKey();
    const say = (words: string) => setFiles((all) => [...all.filter((f) => f.id != id), ...(words ? [{ id, words }] : [])]);
    const shown = oneLine(file.name) || "file";
    if (file.size > MAX_FILE) return say(t("uploadTooLarge", { name: shown }));
    try {
      say(t("uploading", { name: shown, percent: 0 }));
      const r = await request(machine, "upload", { name: file.name.slice(0, 80) || "file", size: file.size });
      const name = isObject(r) ? textOf(r["upload"], 256) : "";
      let path = "";
      for (let at = 0; at == 0 || at < file.size; at += PIECE) {
        const piece = new Uint8Array(await file.slice(at, at + PIECE).arrayBuffer());
        const got = await request(machine, "piece", { upload: name, offset: at, data: toBase64(piece) });
        if (isObject(got)) path = textOf(got["path"], 4096);
        say(t("uploading", { name: shown, percent: Math.floor((100 * Math.min(at + PIECE, file.size)) / Math.max(file.size, 1)) }));
      }
      say("");
      if (path) insert(path);
    } catch (e) {
      say(t("uploadFailed", { name: shown, text: oneLine(e instanceof Refused && e.code == "offline" ? t("offlineText") : String((e as Error).message)) }));
    }
  };

  const paste = (e: ClipboardEvent) => {
    const all = [...(e.clipboardData?.files ?? [])];
    if (!all.length) return;
    e.preventDefault();
    for (const f of all) void upload(f);
  };

  return (
    <div class="replying">
      <Replies
        box={box}
        live={live}
        edit={(said) => {
          edit(text ? `${said}\n${text}` : said);
          write();
        }}
      />
      {files.map((f) => (
        <p key={f.id} class="receipt" role="status">
          <small>{f.words}</small>
        </p>
      ))}
      {quick && (
        <div class="quickrow" role="group" aria-label={t("quick")}>
          {(["quickYes", "quickTests", "quickSum", "quickStop"] as const).map((k) => (
            <button key={k} class="quiet small" onClick={() => (edit(text ? `${text} ${t(k)}` : t(k)), setQuick(false), field.current?.focus())}>
              {t(k)}
            </button>
          ))}
        </div>
      )}
      {!live && <small class="dim">{t("messageOffline")}</small>}
      <div class="typing">
        <input ref={picker} type="file" multiple hidden onChange={(e) => ([...(e.currentTarget.files ?? [])].forEach((f) => void upload(f)), (e.currentTarget.value = ""))} />
        <button class="icon" aria-label={t("attach")} disabled={!live} onClick={() => picker.current!.click()}>
          <Icon name="clip" />
        </button>
        <button class="icon" aria-label={t("quick")} aria-expanded={quick} onClick={() => setQuick(!quick)}>
          <Icon name="quick" />
        </button>
        {password ? (
          <input class="grow" type="password" value={secret} autocomplete="off" aria-label={t("passwordFor")} placeholder={t("passwordFor")} onInput={(e) => setSecret(e.currentTarget.value)} onKeyDown={(e) => sends(e, true) && (e.preventDefault(), send())} />
        ) : (
          <textarea
            ref={field}
            class="message"
            rows={1}
            value={text}
            aria-label={t("messageTo", { name })}
            placeholder={t("message")}
            enterkeyhint="enter"
            onInput={(e) => edit(e.currentTarget.value)}
            onPaste={paste}
            onKeyDown={(e) => sends(e, keyboardHere()) && (e.preventDefault(), send())}
          />
        )}
        <button class="icon go" aria-label={t("sendMessage")} disabled={!live || !(password ? secret : text.trim())} onClick={send}>
          <Icon name="send" />
        </button>
      </div>
    </div>
  );
};

/** Enough to know a text by; all of it would push the question above it off a small screen. */
const beginning = (text: string): string => {
  const all = [...text];
  return all.length > 60 ? `${all.slice(0, 59).join("")}…` : text;
};

const receipt = (t: ReturnType<typeof useWords>, r: Reply): string => {
  switch (r.state) {
    case "sending":
      return t("receiptSending");
    case "sent":
      return t("receiptSent");
    case "typed":
      return t("receiptTyped");
    case "accepted":
      return t("receiptAccepted", { evidence: r.words });
    case "unconfirmed":
      return t("receiptUnconfirmed", { reason: r.words });
    case "lost":
      return `${r.found ? t("receiptFound", { ago: ago(r.at) }) : t("receiptLost")} ${r.text ? t(safeAgain(r) ? "sendAgainSafe" : "sendAgainLook") : ""}`;
    case "composer":
      return t("receiptComposer", { text: beginning(r.words) });
    case "failed":
      return t("receiptFailed", { text: r.code == "offline" ? t("offlineText") : r.words });
  }
};

/** What was sent to a session that takes nothing any more is still there to be read. */
export const Unsent = ({ box, live }: { box: Outbox; live: boolean }) =>
  useStore(box.shown).length ? (
    <div class="replying">
      <Replies box={box} live={live} />
    </div>
  ) : null;

/** What became of the messages that were sent; edit, where there is a field, takes the text of one back into it. */
const Replies = ({ box, live, edit }: { box: Outbox; live: boolean; edit?: (text: string) => void }) => {
  const t = useWords();
  return (
    <>
      {useStore(box.shown).map((r) => (
        <div key={r.key} class="receipt" role="status" data-receipt={r.state}>
          {r.text && <p class="pre said">{edit ? r.text.slice(0, 200) : r.text}</p>}
          <small>{receipt(t, r)}</small>
          {(r.state == "lost" || r.state == "failed" || r.state == "composer" || r.state == "unconfirmed") && (
            <div class="row">
              {edit && safeAgain(r) && (
                <button class="quiet small" disabled={!live} onClick={() => void box.again(r.key)}>
                  {t("sendAgain")}
                </button>
              )}
              {edit && r.state == "composer" && (
                <button class="quiet small" disabled={!live} onClick={() => void box.again(r.key, true)}>
                  {t("typeBehind")}
                </button>
              )}
              {edit && r.text && (r.state != "lost" ? r.state != "unconfirmed" : !safeAgain(r)) && (
                <button class="quiet small" onClick={() => (edit(r.text), box.drop(r.key))}>
                  {t("putBack")}
                </button>
              )}
              <button class="quiet small" onClick={() => box.drop(r.key)}>
                {t("dismiss")}
              </button>
            </div>
          )}
        </div>
      ))}
    </>
  );
};
