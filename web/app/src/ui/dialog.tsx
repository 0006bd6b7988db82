// What a session asks, as a card with the program's own options. The card is
// bound to the very question that it shows: the machine compares its digest with
// the screen before it presses a key.

import { useEffect, useState } from "preact/hooks";
import { useWords } from "../i18n/index.js";
import { readOutcome, Refused, type Dialog, type Option, type Stage } from "../sessions/model.js";
import { oneLine, plain } from "../sessions/plain.js";
import { newKey, request } from "../sessions/remote.js";

/** A card that takes the place of another one takes no tap for so long: the finger was on its way to the other. */
const SETTLE = 700;

export interface Verdict {
  words: string;
  bad: boolean;
}

export const DialogCard = ({ machine, session, dialog, live, fresh, say, ownWords }: { machine: string; session: string; dialog: Dialog; live: boolean; fresh: boolean; say: (v: Verdict) => void; ownWords: () => void }) => {
  const t = useWords();
  const [ready, setReady] = useState(!fresh);
  const [busy, setBusy] = useState<"" | "sending" | Stage>("");
  useEffect(() => {
    const timer = setTimeout(() => setReady(true), SETTLE);
    return () => clearTimeout(timer);
  }, []);

  const answer = async (o: Option) => {
    if (busy || !ready || !live) return;
    setBusy("sending");
    try {
      const out = readOutcome(await request(machine, "approve", { session, digest: dialog.digest, option: o.id, key: newKey() }, { receipt: setBusy }));
      if (out.state == "unconfirmed") say({ words: t("answerUnconfirmed", { reason: oneLine(out.reason) }), bad: true });
      if (o.role == "text") ownWords();
    } catch (e) {
      const code = e instanceof Refused ? e.code : "";
      const words =
        code == "dialog-changed" ? t((e as Refused).dialog ? "answerChanged" : "answerGone") : code == "lost" ? t("answerLost") : code == "offline" ? t("offlineText") : t("answerFailed", { text: oneLine(String((e as Error).message)) });
      say({ words, bad: true });
    } finally {
      setBusy("");
    }
  };

  return (
    <section class="dialog" role="group" aria-label={oneLine(dialog.title) || t("answerTitle")} data-digest={dialog.digest}>
      {dialog.title && <h2>{plain(dialog.title)}</h2>}
      {dialog.text && <pre tabIndex={0}>{plain(dialog.text)}</pre>}
      {!dialog.options.length && <p class="dim">{t("answerInTerminal")}</p>}
      <div class="options">
        {dialog.options.map((o) => (
          <button key={o.id} class={o.role == "deny" ? "second danger" : o.role == "approve" ? "" : "second"} disabled={!live || !!busy || !ready} onClick={() => void answer(o)} data-option={o.id}>
            <span>{oneLine(o.label)}</span>
            {o.detail && <small>{oneLine(o.detail)}</small>}
          </button>
        ))}
      </div>
      {busy && <p class="dim" role="status">{t(busy == "typed" ? "answerTyped" : "answering")}</p>}
    </section>
  );
};
