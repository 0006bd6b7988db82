// The state of a machine's connection, in words: one line, and all of it.

import { useEffect } from "preact/hooks";
import { useWords } from "../i18n/index.js";
import { connectionOf } from "../machines.js";
import { href } from "../route.js";
import { useNow, useStore } from "../store/state.js";
import { Dot, Fact } from "./parts.js";
import { mood, needsPairing, proofWords, stateWords, whyWords } from "./words.js";

/** Looks at the machine as long as the component is shown. */
export const useConnection = (id: string) => {
  const connection = connectionOf(id);
  useEffect(() => connection.look(), [connection]);
  return connection;
};

export const StateLine = ({ id }: { id: string }) => {
  useWords();
  const s = useStore(connectionOf(id).state);
  const now = useNow(1000);
  return (
    <p class="state" role="status" data-phase={s.phase}>
      <Dot mood={mood(s)} />
      <span>{stateWords(s, now)}</span>
      {s.phase != "up" || s.suspect || now - (s.proof ?? 0) > 20_000 ? <small>{proofWords(s, now)}</small> : null}
    </p>
  );
};

/** Why there is no connection, and what helps. */
export const Trouble = ({ id }: { id: string }) => {
  const t = useWords();
  const connection = connectionOf(id);
  const s = useStore(connection.state);
  const { why } = s;
  if (!why || s.phase == "up") return null;
  return (
    <section class={`note ${s.phase == "stopped" ? "bad" : ""}`} role="alert" data-why={why.kind} data-code={why.code}>
      <p>{whyWords(why)}</p>
      {why.kind == "hostKey" && why.shown && (
        <dl>
          <Fact name={t("whyHostKeyPinned")}>
            {why.pinned?.map((p) => (
              <code key={p}>{p}</code>
            ))}
          </Fact>
          <Fact name={t("whyHostKeyShown")}>
            <code>{why.shown}</code>
          </Fact>
        </dl>
      )}
      <div class="row">
        {(s.phase == "waiting" || s.phase == "stopped") && why.kind != "unknownMachine" && (
          <button class="quiet" onClick={() => connection.retry()}>
            {t("retry")}
          </button>
        )}
        {needsPairing(why) && (
          <a class="button" href={href({ at: "pair" })}>
            {t("pairMachine")}
          </a>
        )}
      </div>
    </section>
  );
};
