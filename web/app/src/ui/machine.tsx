// One machine: its connection, what can be opened on it, and its settings.

import { useEffect, useState } from "preact/hooks";
import { ago, useWords } from "../i18n/index.js";
import { forget, known, refreshKnown, restart } from "../machines.js";
import { wanted } from "../push/start.js";
import { go, href } from "../route.js";
import { changeMachine, type MachineView } from "../store/db.js";
import { useNow, useStore } from "../store/state.js";
import { StateLine, Trouble, useConnection } from "./connection.js";
import { Out } from "./out.js";
import { Bar, Fact, Icon, Sheet } from "./parts.js";
import { SessionList } from "./sessionlist.js";
import { terminalPartSoon } from "./terminalpart.js";
import { proofWords } from "./words.js";
import { LIST_SESSIONS, parseSessions, tmuxNameOk, type TmuxSession } from "../worker/tmux.js";

export const MachineScreen = ({ id }: { id: string }) => {
  const t = useWords();
  const all = useStore(known);
  const m = all?.find((x) => x.id == id);
  useEffect(() => void refreshKnown(), [id]);
  if (!m)
    return (
      <>
        <Bar title={t("machines")} back={{ at: "home" }} />
        <main class="page">{all && <p class="note bad">{t("whyUnknownMachine")}</p>}</main>
      </>
    );
  return <Known m={m} />;
};

const Known = ({ m }: { m: MachineView }) => {
  const t = useWords();
  const connection = useConnection(m.id);
  const state = useStore(connection.state);
  const now = useNow(5000);
  const [sessions, setSessions] = useState<TmuxSession[]>();
  const [name, setName] = useState("");
  const [forgetting, setForgetting] = useState(false);
  const shell = m.service == "sshd" || m.shell;
  const up = state.phase == "up";

  useEffect(() => {
    if (!up || !shell) return;
    let shown = true;
    void connection.run(LIST_SESSIONS).then((r) => shown && setSessions(parseSessions(r.text)));
    return () => {
      shown = false;
    };
  }, [up, shell, connection]);

  // After the connection, which comes first.
  useEffect(() => (up && shell ? terminalPartSoon() : undefined), [up, shell]);

  const choose = async (service: "ssh" | "sshd") => {
    await changeMachine(m.id, { service });
    restart(m.id);
    await refreshKnown();
  };

  return (
    <>
      <Bar title={m.machine} sub={<StateLine id={m.id} />} back={{ at: "home" }} />
      <main class="page">
        {m.out ? <Out machine={m} now={now} gone={() => go({ at: "home" }, true)} retry={state.phase == "stopped" ? () => connection.retry() : undefined} /> : <Trouble id={m.id} />}
        {!m.out && <SessionList machines={[m]} />}
        {!shell && <p class="note">{t("noShell")}</p>}
        {shell && (up || !m.out) && (
          <>
            <p>
              <a class="button wide" href={href({ at: "shell", id: m.id })}>
                {t("newShell")}
              </a>
            </p>
            <h2>{t("tmuxSessions")}</h2>
            <ul class="list">
              {sessions?.map((s) => (
                <li key={s.id}>
                  <a href={href({ at: "tmux", id: m.id, name: s.name, target: s.id, fit: false })}>
                    <span class="grow">
                      <strong>{s.name}</strong>
                      {!!s.attached && <small>{t("attachedN", { n: s.attached })}</small>}
                    </span>
                    <Icon name="next" />
                  </a>
                </li>
              ))}
            </ul>
            {sessions?.length === 0 && <p class="dim">{t("noTmux")}</p>}
            <form
              class="row"
              onSubmit={(e) => {
                e.preventDefault();
                if (tmuxNameOk(name)) go({ at: "tmux", id: m.id, name, target: undefined, fit: false });
              }}
            >
              <input class="grow" value={name} onInput={(e) => setName(e.currentTarget.value)} placeholder={t("tmuxName")} aria-label={t("newTmux")} maxLength={64} autocapitalize="off" autocomplete="off" spellcheck={false} />
              <button class="second" disabled={!tmuxNameOk(name)}>{t("open")}</button>
            </form>
            {name && !tmuxNameOk(name) && <p class="dim">{t("tmuxNameBad")}</p>}
            <p class="dim">{t("tmuxWhy")}</p>
          </>
        )}
        <details>
          <summary>{t("details")}</summary>
          <dl>
            <Fact name={t("path")}>
              {t("pathRelay", { relay: new URL(m.relay).host })} {proofWords(state, now)}
            </Fact>
            {up && <Fact name={t("encryption")}>{t(state.postQuantum ? "postQuantum" : "notPostQuantum")}</Fact>}
            {state.server && <Fact name={t("server")}>{state.server}</Fact>}
            <Fact name={t("userLabel")}>{m.user}</Fact>
            <Fact name={t("pairedAt")}>{ago(m.pairedAt, now)}</Fact>
          </dl>
          {m.sshd && (
            <fieldset>
              <legend>{t("terminalThrough")}</legend>
              <label>
                <input type="radio" name="service" checked={m.service == "ssh"} onChange={() => void choose("ssh")} /> {t("throughBuiltIn")}
              </label>
              <label>
                <input type="radio" name="service" checked={m.service == "sshd"} disabled={!m.sshd.hostKeys.length} onChange={() => void choose("sshd")} /> {t("throughSshd")}
              </label>
              {m.sshd.note && <p class="dim">{m.sshd.note}</p>}
            </fieldset>
          )}
          <button class="quiet danger" onClick={() => setForgetting(true)}>
            {t("forget")}
          </button>
        </details>
      </main>
      {forgetting && (
        <Sheet title={t("forget")} onClose={() => setForgetting(false)}>
          <p>{t("forgetSure", { machine: m.machine })}</p>
          <button
            class="danger"
            onClick={() => {
              go({ at: "home" }, true);
              const told = wanted.value ? import("../push/device.js").then((d) => d.leave(m.id)) : Promise.resolve();
              void told.catch(() => undefined).then(() => forget(m.id));
            }}
          >
            {t("forget")}
          </button>
        </Sheet>
      )}
    </>
  );
};
