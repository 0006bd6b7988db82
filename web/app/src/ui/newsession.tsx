// A new session: a machine, a directory, and a command of the machine's list.

import { useEffect, useState } from "preact/hooks";
import { useWords } from "../i18n/index.js";
import { connectionOf } from "../machines.js";
import { go } from "../route.js";
import { idOk, isObject, list, text, Refused } from "../sessions/model.js";
import { oneLine } from "../sessions/plain.js";
import { knownOf, request } from "../sessions/remote.js";
import type { MachineView } from "../store/db.js";
import { useStore } from "../store/state.js";
import type { LinkState } from "../worker/messages.js";
import { Sheet } from "./parts.js";
import { comes, whyWords } from "./words.js";

export const refusalWords = (t: ReturnType<typeof useWords>, e: unknown): string => {
  if (e instanceof Refused && e.code == "offline") return t("offlineText");
  return t("failedText", { text: oneLine(e instanceof Error ? e.message : String(e)) });
};

export const NewSession = ({ machines, onClose }: { machines: readonly MachineView[]; onClose: () => void }) => {
  const t = useWords();
  const [id, setId] = useState((machines.find((m) => knownOf(m.id).value.live) ?? machines[0]!).id);
  const live = useStore(knownOf(id), (k) => k.live);
  const fault = useStore(knownOf(id), (k) => k.fault);
  const link = useStore(connectionOf(id).sessionsState);
  const machine = machines.find((m) => m.id == id);
  const [commands, setCommands] = useState<{ name: string; label: string }[]>([]);
  const [dirs, setDirs] = useState<string[]>([]);
  const [dir, setDir] = useState("~");
  const [command, setCommand] = useState("");
  const [refused, setRefused] = useState("");
  const [busy, setBusy] = useState(false);

  useEffect(() => {
    let shown = true;
    setCommands([]);
    setRefused("");
    if (!live) return;
    request(id, "commands").then(
      (r) => {
        if (!shown || !isObject(r)) return;
        const all = list(r["commands"], 64).flatMap((c) => (isObject(c) && typeof c["name"] == "string" ? [{ name: text(c["name"], 256), label: text(c["label"], 256) }] : []));
        setCommands(all);
        setCommand(all[0]?.name ?? "");
        setDirs(list(r["dirs"], 64).map((d) => text(d, 4096)).filter(Boolean));
      },
      (e) => shown && setRefused(refusalWords(t, e)),
    );
    return () => {
      shown = false;
    };
  }, [id, live]);

  const start = async () => {
    setBusy(true);
    setRefused("");
    try {
      const r = await request(id, "new", { dir, command });
      const session = isObject(r) ? r["session"] : undefined;
      onClose();
      if (idOk(session)) go({ at: "session", id, session });
    } catch (e) {
      setRefused(refusalWords(t, e));
      setBusy(false);
    }
  };

  return (
    <Sheet title={t("newSession")} onClose={onClose}>
      <form
        class="form"
        onSubmit={(e) => {
          e.preventDefault();
          void start();
        }}
      >
        {machines.length > 1 && (
          <label>
            {t("newOn")}
            <select value={id} onChange={(e) => setId(e.currentTarget.value)}>
              {machines.map((m) => (
                <option key={m.id} value={m.id}>
                  {m.machine}
                </option>
              ))}
            </select>
          </label>
        )}
        {(!live || (!commands.length && !refused)) && <Wait name={machine?.machine ?? ""} live={live} link={link} why={fault ? oneLine(fault.text) : ""} />}
        <label>
          {t("newDir")}
          <input value={dir} onInput={(e) => setDir(e.currentTarget.value)} list="dirs" autocapitalize="off" autocomplete="off" spellcheck={false} />
        </label>
        <datalist id="dirs">
          {dirs.map((d) => (
            <option key={d} value={d} />
          ))}
        </datalist>
        <label>
          {t("newCommand")}
          <select value={command} onChange={(e) => setCommand(e.currentTarget.value)}>
            {commands.map((c) => (
              <option key={c.name} value={c.name}>
                {oneLine(c.label || c.name)}
              </option>
            ))}
          </select>
        </label>
        {refused && <p class="note bad" role="alert">{refused}</p>}
        <button disabled={!live || !command || !dir || busy}>{t("newStart")}</button>
      </form>
    </Sheet>
  );
};

const Wait = ({ name, live, link, why }: { name: string; live: boolean; link: LinkState; why: string }) => {
  const t = useWords();
  if (comes(live, link, why))
    return (
      <p class="busy" role="status">
        {t(live || link.phase == "up" ? "listLoading" : "newConnecting", { machine: name })}
      </p>
    );
  return (
    <p class="note bad" role="status">
      {t("offlineText")} {why || (link.why && whyWords(link.why))}
    </p>
  );
};
