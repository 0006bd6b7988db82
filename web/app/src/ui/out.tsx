// A machine that lets this device in no more: that it is so, what is left of it
// here, and how that goes.

import { useEffect, useState } from "preact/hooks";
import { ago, useWords } from "../i18n/index.js";
import { forget } from "../machines.js";
import { href } from "../route.js";
import { writtenFor } from "../sessions/kept.js";
import { plain } from "../sessions/plain.js";
import type { MachineView } from "../store/db.js";
import { Sheet } from "./parts.js";

export const Out = ({ machine: m, now, gone, retry }: { machine: MachineView; now: number; gone?: () => void; retry?: (() => void) | undefined }) => {
  const t = useWords();
  const [texts, setTexts] = useState<readonly string[]>([]);
  const [sure, setSure] = useState(false);
  useEffect(() => {
    let shown = true;
    void writtenFor(m.id).then((all) => shown && setTexts(all));
    return () => {
      shown = false;
    };
  }, [m.id]);
  if (!m.out) return null;
  return (
    <section class="note bad" role="status" data-out={m.machine}>
      <p>
        <strong>{m.machine}</strong> {t(m.out.by == "relay" ? "outRelay" : "outMachine", { ago: ago(m.out.at, now) })}
      </p>
      <p>{t("outGone")}</p>
      {texts.length > 0 && (
        <details>
          <summary>{t("outWritten", { n: texts.length })}</summary>
          {texts.map((text, i) => (
            <p key={i} class="pre said selectable">
              {plain(text)}
            </p>
          ))}
        </details>
      )}
      <div class="row">
        <a class="button" href={href({ at: "pair" })}>
          {t("pairAgain")}
        </a>
        {retry && (
          <button class="quiet" onClick={retry}>
            {t("retry")}
          </button>
        )}
        <button class="quiet danger" onClick={() => setSure(true)}>
          {t("outRemove")}
        </button>
      </div>
      {sure && (
        <Sheet title={t("outRemove")} onClose={() => setSure(false)}>
          <p>{t(texts.length ? "outRemoveSureTexts" : "outRemoveSure", { machine: m.machine, n: texts.length })}</p>
          <button
            class="danger"
            onClick={() => {
              setSure(false);
              gone?.();
              void forget(m.id);
            }}
          >
            {t("outRemove")}
          </button>
        </Sheet>
      )}
    </section>
  );
};
