// What a session asks, as a card with the program's own options. The card is
// bound to the very question that it shows: the machine compares its digest with
// the screen before it presses a key.

import { useEffect, useState } from "preact/hooks";
import { useWords } from "../i18n/index.js";
import { newKey } from "../sessions/key.js";
import { readOutcome, Refused, type Dialog, type Option, type Stage } from "../sessions/model.js";
import { oneLine, plain } from "../sessions/plain.js";
import { request } from "../sessions/remote.js";
import { askedOf } from "./sessionwords.js";

/** A card that appears under a finger takes no tap for so long: the finger was on its way to something else. */
const SETTLE = 700;

export interface Verdict {
  words: string;
  bad: boolean;
  /** What became of it can be seen in the terminal. */
  look?: boolean;
  /** The digest of the question that was taken: it is gone, also while the machine has not said so yet. */
  gone?: string;
}

export interface Answering {
  /** An answer is on its way; the card stays until it is known what became of it. */
  began(d: Dialog): void;
  /** Taken or perhaps taken, or not: then the dialog is still this device's to answer. */
  over(d: Dialog, mine: boolean, v: Verdict): void;
  /** The person chose to answer in own words. */
  ownWords(): void;
}

export const DialogCard = ({ machine, session, dialog, live, fresh, on }: { machine: string; session: string; dialog: Dialog; live: boolean; fresh: boolean; on: Answering }) => {
  const t = useWords();
  const [ready, setReady] = useState(!fresh);
  const [busy, setBusy] = useState<{ option: string; stage: "sending" | Stage }>();
  useEffect(() => {
    const timer = setTimeout(() => setReady(true), SETTLE);
    return () => clearTimeout(timer);
  }, []);

  const answer = async (o: Option) => {
    if (busy || !ready || !live) return;
    setBusy({ option: o.id, stage: "sending" });
    on.began(dialog);
    try {
      const out = readOutcome(await request(machine, "approve", { session, digest: dialog.digest, option: o.id, key: newKey() }, { receipt: (stage) => setBusy({ option: o.id, stage }) }));
      // The session's next state comes after the answer, when its screen has settled.
      if (out.state == "accepted") on.over(dialog, true, { words: t("answerTaken", { answer: oneLine(o.label) }), bad: false, gone: dialog.digest });
      else on.over(dialog, true, { words: t("answerUnconfirmed", { reason: oneLine(out.reason) }), bad: true, look: true });
      if (o.role == "text") on.ownWords();
    } catch (e) {
      const code = e instanceof Refused ? e.code : "";
      const words =
        code == "dialog-changed" ? t((e as Refused).dialog ? "answerChanged" : "answerGone") : code == "lost" ? t("answerLost") : code == "offline" ? t("offlineText") : t("answerFailed", { text: oneLine(String((e as Error).message)) });
      on.over(dialog, code == "lost" || code == "dialog-changed", { words, bad: true });
    } finally {
      setBusy(undefined);
    }
  };

  const text = askedOf(dialog);
  return (
    <section class="dialog" role="group" aria-label={oneLine(dialog.title) || t("answerTitle")} aria-busy={!!busy} data-digest={dialog.digest} data-answering={busy?.stage}>
      {dialog.title && <h2>{plain(dialog.title)}</h2>}
      {text && (
        <pre tabIndex={0} role="region" aria-label={t("asksText")}>
          {text}
        </pre>
      )}
      {!dialog.options.length && <p class="dim">{t("answerInTerminal")}</p>}
      <div class="options">
        {dialog.options.map((o) => (
          <button
            key={o.id}
            class={`${o.role == "deny" ? "second danger" : o.role == "approve" ? "" : "second"} ${busy?.option == o.id ? "chosen" : ""}`}
            disabled={!live || !!busy || !ready}
            onClick={() => void answer(o)}
            data-option={o.id}
          >
            <span>{oneLine(o.label)}</span>
            {o.detail && <small>{oneLine(o.detail)}</small>}
          </button>
        ))}
      </div>
      <p class="dim stage" role="status">
        {busy && t(stages[busy.stage])}
      </p>
    </section>
  );
};

const stages = { sending: "answering", sent: "answerSent", typed: "answerTyped", accepted: "answerTyped", unconfirmed: "answerTyped" } as const;
