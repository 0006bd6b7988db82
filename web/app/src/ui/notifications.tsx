// Whether and how this device is called, and what came of it at every machine.

import { useEffect, useState } from "preact/hooks";
import { ago, useWords } from "../i18n/index.js";
import { known, refreshKnown } from "../machines.js";
import { askMachine, atMachine, hindrance, isOn, test, turnOff, turnOn } from "../push/device.js";
import { keepPushLanguage, shownAt } from "../push/kept.js";
import { renewing } from "../push/start.js";
import { Refused } from "../sessions/model.js";
import { knownOf, watchSessions } from "../sessions/remote.js";
import type { MachineView } from "../store/db.js";
import { useNow, useStore } from "../store/state.js";
import { Bar, Dot } from "./parts.js";

export const Notifications = () => {
  const t = useWords();
  const machines = useStore(known)?.filter((m) => !m.out);
  const renewed = useStore(renewing);
  const [on, set] = useState<boolean>();
  const [busy, setBusy] = useState(false);
  const [fault, setFault] = useState("");
  const [hinders, setHinders] = useState(hindrance);
  useEffect(() => {
    void refreshKnown();
    void isOn().then(set);
    void keepPushLanguage(document.documentElement.lang).catch(() => undefined);
    // The person may have been in the browser's settings meanwhile.
    const look = () => setHinders(hindrance());
    document.addEventListener("visibilitychange", look);
    return () => document.removeEventListener("visibilitychange", look);
  }, []);

  const change = async (want: boolean) => {
    setBusy(true);
    setFault("");
    try {
      await (want ? turnOn : turnOff)(machines ?? []);
    } catch (e) {
      if (!(e instanceof Refused && e.code == "denied")) setFault(e instanceof Error ? e.message : String(e));
    }
    setHinders(hindrance());
    set(await isOn());
    setBusy(false);
  };

  return (
    <>
      <Bar title={t("notifications")} back={{ at: "home" }} />
      <main class="page">
        <p>{t("notifyWhat")}</p>
        {hinders && (
          <p class="note bad" role="status">
            {t(hinders == "denied" ? "notifyDenied" : hinders == "home" ? "notifyHome" : "notifyNone")}
          </p>
        )}
        {!hinders && on !== undefined && (
          <div class="row" data-push={on ? "on" : "off"}>
            <Dot mood={on ? "up" : "off"} />
            <span class="grow" role="status">{t(on ? "notifyIsOn" : "notifyIsOff")}</span>
            <button disabled={busy || !machines} class={on ? "quiet" : ""} onClick={() => void change(!on)}>
              {t(on ? "notifyOff" : "notifyOn")}
            </button>
          </div>
        )}
        {on && renewed.length > 0 && (
          <p class="note" role="status" data-renewing>
            {t("notifyRenewed", { machines: renewed.join(", ") })}
          </p>
        )}
        {fault && (
          <p class="note bad" role="alert">
            {t("notifyFailed", { text: fault })}
          </p>
        )}
        {on && !hinders && (
          <ul class="list">
            {machines?.map((m) => (
              <AtMachineRow key={m.id} machine={m} busy={busy} again={() => void change(true)} />
            ))}
          </ul>
        )}
      </main>
    </>
  );
};

const AtMachineRow = ({ machine: m, busy, again }: { machine: MachineView; busy: boolean; again: () => void }) => {
  const t = useWords();
  const now = useNow(10_000);
  useEffect(() => watchSessions(m.id), [m.id]);
  const { live, features } = useStore(knownOf(m.id));
  const s = useStore(atMachine(m.id));
  const [shown, setShown] = useState<number>();
  const [testing, setTesting] = useState(false);
  const [said, setSaid] = useState<{ words: string; bad: boolean }>();
  useEffect(() => {
    if (live) void askMachine(m.id).catch(() => undefined);
  }, [live]);
  useEffect(() => void shownAt(m.id).then(setShown, () => undefined), [now, said]);

  const tryIt = async () => {
    setTesting(true);
    try {
      await test(m.id);
      setSaid({ words: t("notifyTested"), bad: false });
    } catch (e) {
      setSaid({ words: t("notifyTestFailed", { text: e instanceof Error ? e.message : String(e) }), bad: true });
    }
    setTesting(false);
  };

  const old = live && !features.includes("push-subscribe");
  const words = old ? t("notifyOld") : s?.ended ? t("notifyEnded", { text: s.why }) : s?.on ? t("notifyGiven") : t("notifyLater");
  return (
    <li class="item" data-machine={m.machine} data-push={old ? "old" : s?.ended ? "ended" : s?.on ? "on" : "later"}>
      <Dot mood={s?.ended || old ? "bad" : s?.on ? "up" : "busy"} />
      <span class="grow">
        <strong>{m.machine}</strong>
        <small>{words}</small>
        {s && <small>{s.delivered === undefined ? t("notifyNever") : t("notifyDelivered", { ago: ago(s.delivered, now) })}</small>}
        {s && !s.ended && s.failed !== undefined && <small>{t("notifyLost", { ago: ago(s.failed, now), text: s.why })}</small>}
        {shown !== undefined && <small>{t("notifyShown", { ago: ago(shown, now) })}</small>}
        {said && (
          <small role="status" class={said.bad ? "bad" : ""}>
            {said.words}
          </small>
        )}
      </span>
      {s?.ended ? (
        <button class="quiet" disabled={busy} onClick={again}>
          {t("notifyAgain")}
        </button>
      ) : (
        s?.on && (
          <button class="quiet" disabled={testing || !live} onClick={() => void tryIt()}>
            {t("notifyTest")}
          </button>
        )
      )}
    </li>
  );
};
