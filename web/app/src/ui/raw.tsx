// The terminal of a session, by the command that its machine gives: without
// resizing it for others, unless the person wants it fitted.

import { useEffect, useState } from "preact/hooks";
import { useWords } from "../i18n/index.js";
import { isObject, list } from "../sessions/model.js";
import { knownOf, request, watchSessions } from "../sessions/remote.js";
import { useStore } from "../store/state.js";
import type { Program } from "../worker/messages.js";
import { refusalWords } from "./newsession.js";
import { Bar } from "./parts.js";
import { useLook } from "./sessionlist.js";
import { nameOf } from "./sessionwords.js";
import { TerminalScreen } from "./terminal.js";

const MAX_ARGS = 64;

export const RawScreen = ({ id, session, fit }: { id: string; session: string; fit: boolean }) => {
  const t = useWords();
  useEffect(() => watchSessions(id), [id]);
  const known = useStore(knownOf(id));
  const [program, set] = useState<Program>();
  const [fault, setFault] = useState("");
  const s = known.sessions.get(session);
  useLook(id, s ? [session] : []);
  useEffect(() => {
    if (!known.live || program) return;
    request(id, "attach", { session }).then(
      (r) => {
        const args = isObject(r) ? list(r[fit ? "fit" : "args"], MAX_ARGS).filter((a): a is string => typeof a == "string" && a.length <= 4096) : [];
        if (args.length) set({ kind: "attach", session, name: s ? nameOf(s) : session, args, fit });
      },
      (e) => setFault(refusalWords(t, e)),
    );
  }, [known.live]);
  if (program) return <TerminalScreen id={id} program={program} />;
  return (
    <>
      <Bar title={s ? nameOf(s) : t("rawTerminal")} back={{ at: "session", id, session }} />
      <p class="plain" role="status">{fault || t("termConnecting")}</p>
    </>
  );
};
