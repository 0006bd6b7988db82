// Where a reply is written. What is written is kept as a draft until it is sent;
// every reply has a key, so that sending it again types nothing twice. A password
// has a field of its own and is kept nowhere.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useWords } from "../i18n/index.js";
import { toBase64 } from "../pairing/bytes.js";
import { sends } from "../sessions/enter.js";
import { draft, keepDraft } from "../sessions/kept.js";
import { isObject, readOutcome, Refused, text as textOf } from "../sessions/model.js";
import { oneLine } from "../sessions/plain.js";
import { newKey, request } from "../sessions/remote.js";
import { Icon } from "./parts.js";

const keyboardHere = () => !matchMedia("(pointer: coarse)").matches;
const PIECE = 384 << 10;
const MAX_FILE = 32 << 20;
/** A draft is written after so long without a key. */
const WRITE = 300;

interface Reply {
  key: string;
  text: string;
  state: "sending" | "sent" | "typed" | "accepted" | "unconfirmed" | "lost" | "failed" | "composer";
  words: string;
}

export const Composer = ({ machine, session, name, live, password, focus }: { machine: string; session: string; name: string; live: boolean; password: boolean; focus: number }) => {
  const t = useWords();
  const [text, setText] = useState("");
  const [secret, setSecret] = useState("");
  const [replies, setReplies] = useState<Reply[]>([]);
  const [files, setFiles] = useState<{ id: string; words: string }[]>([]);
  const [quick, setQuick] = useState(false);
  const field = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const touched = useRef(false);

  useEffect(() => {
    let shown = true;
    void draft(machine, session).then((d) => shown && !touched.current && setText(d));
    return () => {
      shown = false;
    };
  }, [machine, session]);
  useEffect(() => {
    if (!touched.current) return;
    const timer = setTimeout(() => void keepDraft(machine, session, text), WRITE);
    return () => clearTimeout(timer);
  }, [text]);
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
    setText(s);
  };
  const mark = (key: string, change: Partial<Reply>) => setReplies((all) => all.map((r) => (r.key == key ? { ...r, ...change } : r)));
  const drop = (key: string) => setReplies((all) => all.filter((r) => r.key != key));

  const deliver = async (r: Reply, append = false) => {
    mark(r.key, { state: "sending", words: "" });
    try {
      const out = readOutcome(await request(machine, "reply", { session, key: r.key, text: r.text, ...(append && { append: true }), ...(password && { secret: true }) }, { receipt: (s) => mark(r.key, { state: s == "typed" ? "typed" : "sent" }) }));
      mark(r.key, { state: out.state, words: oneLine(out.state == "accepted" ? out.evidence : out.reason) });
      if (out.state == "accepted") setTimeout(() => drop(r.key), 5000);
    } catch (e) {
      const why = e instanceof Refused ? e : new Refused("failed", String(e));
      if (why.code == "lost") mark(r.key, { state: "lost" });
      else if (why.code == "composer") mark(r.key, { state: "composer", words: oneLine(why.text) });
      else mark(r.key, { state: "failed", words: why.code == "offline" ? t("offlineText") : oneLine(why.message) });
    }
  };

  const send = () => {
    if (!live || !(password ? secret : text.trim())) return;
    const r: Reply = { key: newKey(), text: password ? secret : text, state: "sending", words: "" };
    setReplies((all) => [...all.filter((x) => x.state != "accepted"), password ? { ...r, text: "" } : r]);
    if (password) setSecret("");
    else {
      edit("");
      void keepDraft(machine, session, "");
    }
    void deliver(r);
    field.current?.focus();
  };

  const insert = (s: string) => {
    const el = field.current;
    const at = el?.selectionStart ?? text.length;
    setText((was) => {
      const before = was.slice(0, at);
      const gap = before && !/\s$/.test(before) ? " " : "";
      return before + gap + s + " " + was.slice(at);
    });
    touched.current = true;
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

  const words = (r: Reply): string => {
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
        return `${t("receiptLost")} ${t("sendAgainSafe")}`;
      case "composer":
        return t("receiptComposer", { text: r.words });
      case "failed":
        return t("receiptFailed", { text: r.words });
    }
  };

  return (
    <div class="replying">
      {replies.map((r) => (
        <div key={r.key} class="receipt" role="status" data-receipt={r.state}>
          {r.text && <p class="pre said">{r.text.slice(0, 200)}</p>}
          <small>{words(r)}</small>
          {(r.state == "lost" || r.state == "failed" || r.state == "composer" || r.state == "unconfirmed") && (
            <div class="row">
              {(r.state == "lost" || r.state == "failed") && r.text && (
                <button class="quiet small" disabled={!live} onClick={() => void deliver(r)}>
                  {t("sendAgain")}
                </button>
              )}
              {r.state == "composer" && (
                <button class="quiet small" disabled={!live} onClick={() => void deliver(r, true)}>
                  {t("typeBehind")}
                </button>
              )}
              {(r.state == "failed" || r.state == "composer") && r.text && (
                <button class="quiet small" onClick={() => (drop(r.key), edit(text ? `${r.text}\n${text}` : r.text))}>
                  {t("putBack")}
                </button>
              )}
              <button class="quiet small" onClick={() => drop(r.key)}>
                {t("dismiss")}
              </button>
            </div>
          )}
        </div>
      ))}
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
