// The machines, and what the relay says about them.

import { useEffect, useState } from "preact/hooks";
import { ago, useWords } from "../i18n/index.js";
import { accounts, atFirst, known, refreshKnown, storageFault, tokenRefused } from "../machines.js";
import { ended, renewing } from "../push/start.js";
import { acknowledge, listMachines, listNotices, RelayError, type RelayMachine, type RelayNotice } from "../relay.js";
import { go, href } from "../route.js";
import { plain } from "../sessions/plain.js";
import { useNow, useStore } from "../store/state.js";
import { updateReady } from "../update.js";
import { Coded } from "./coded.js";
import { NewSession } from "./newsession.js";
import { Out } from "./out.js";
import { Bar, Dot, Icon } from "./parts.js";
import { SessionList } from "./sessionlist.js";
import type { Mood } from "./words.js";

interface Heard {
  relay: string;
  account: string;
  machines?: RelayMachine[];
  notices?: RelayNotice[];
  fault?: { code: number; text: string };
}

/** What each relay says, asked when the list is opened and when the page comes to the front. */
const useRelays = (paired: unknown): Heard[] => {
  const [heard, set] = useState<Heard[]>([]);
  useEffect(() => {
    let shown = true;
    const ask = async () => {
      if (document.visibilityState == "hidden") return;
      const all = await accounts().catch(() => []);
      const answers = await Promise.all(
        all.map(async ({ relay, account, token }): Promise<Heard> => {
          try {
            const [machines, notices] = await Promise.all([listMachines(relay, token), listNotices(relay, token).catch(() => [])]);
            return { relay, account, machines, notices };
          } catch (e) {
            if (e instanceof RelayError && e.code == 4401) await tokenRefused(token).catch(() => undefined);
            return { relay, account, fault: e instanceof RelayError ? { code: e.code, text: e.message } : { code: 1006, text: "" } };
          }
        }),
      );
      if (shown) set(answers);
    };
    void ask();
    document.addEventListener("visibilitychange", ask);
    addEventListener("online", ask);
    return () => {
      shown = false;
      document.removeEventListener("visibilitychange", ask);
      removeEventListener("online", ask);
    };
  }, [paired]);
  return heard;
};

const moods: Record<NonNullable<RelayMachine["state"]>, Mood> = { offline: "off", connected: "busy", reachable: "up", unreachable: "bad" };

/** beside: a session is shown beside it, which is what the page is about then. */
export const Home = ({ chosen, start, beside }: { chosen?: string | undefined; start?: boolean | undefined; beside?: boolean }) => {
  const Main = beside ? "div" : "main";
  const t = useWords();
  const machines = useStore(known) ?? atFirst;
  const inside = machines?.filter((m) => !m.out);
  const fault = useStore(storageFault);
  const heard = useRelays(machines);
  const callers = useStore(ended);
  const renewed = useStore(renewing);
  const now = useNow(10_000);
  const [starting, setStarting] = useState(!!start);
  useEffect(() => void refreshKnown(), []);
  useEffect(() => void (start && go({ at: "home" }, true)), []);

  const updated = useStore(updateReady);
  const [read, setRead] = useState<readonly string[]>([]);
  const [unread, setUnread] = useState("");
  const acknowledged = async (h: Heard, id: string) => {
    setUnread("");
    try {
      const a = (await accounts()).find((x) => x.relay == h.relay && x.account == h.account);
      if (a) await acknowledge(a.relay, a.token, id);
      setRead((all) => [...all, id]);
    } catch (e) {
      setUnread(t("noticeFailed", { text: e instanceof Error ? e.message : String(e) }));
    }
  };

  const says = (relay: string, account: string) => heard.find((h) => h.relay == relay && h.account == account);
  const words = (m: RelayMachine | undefined): string => {
    switch (m?.state) {
      case "offline":
        return t("stateOffline");
      case "connected":
        return t("stateConnected");
      case "reachable":
        return t("stateReachable", { ago: ago(Date.parse(m.provenAt ?? ""), now) });
      case "unreachable":
        return t("stateUnreachable", { reason: m.reason });
      default:
        return "";
    }
  };
  const strangers = heard.flatMap((h) => (h.machines ?? []).filter((m) => !machines?.some((k) => k.relay == h.relay && k.account == h.account && k.machine == m.machine)).map((m) => ({ ...m, relay: h.relay })));

  return (
    <>
      <Bar title={t("sessions")}>
        {!!inside?.length && (
          <button class="icon" aria-label={t("newSession")} onClick={() => setStarting(true)}>
            <Icon name="plus" />
          </button>
        )}
      </Bar>
      <Main class="page">
        {fault && <p class="note bad" role="alert">{t("whyStorage", { text: fault })}</p>}
        {machines?.map((m) => m.out && <Out key={m.id} machine={m} now={now} />)}
        {renewed.length > 0 && (
          <p class="note" role="status" data-renewing>
            {t("notifyRenewed", { machines: renewed.join(", ") })} <a href={href({ at: "notifications" })}>{t("notifications")}</a>
          </p>
        )}
        {callers.map((c) => (
          <p class="note bad" role="status" key={c.machine}>
            <strong>{c.machine}</strong> {t("notifyEnded", { text: c.why })} <a href={href({ at: "notifications" })}>{t("notifications")}</a>
          </p>
        ))}
        {heard.flatMap((h) =>
          (h.notices ?? [])
            .filter((n) => !read.includes(n.id))
            .map((n) => (
              <section class="note" role="status" key={h.relay + n.id} data-notice={n.id}>
                <p class="pre">{plain(n.text.slice(0, 4096))}</p>
                <div class="row">
                  <small class="grow">
                    {t("notice", { relay: new URL(h.relay).host })} · {ago(Date.parse(n.at), now)}
                  </small>
                  <button class="quiet small" onClick={() => void acknowledged(h, n.id)}>
                    {t("noticeRead")}
                  </button>
                </div>
                {unread && <p role="alert">{unread}</p>}
              </section>
            )),
        )}
        {!machines && <p>{t("loading")}</p>}
        {machines?.length === 0 && !fault && (
          <section class="empty">
            <p>{t("noMachines")}</p>
            <p>
              <Coded>{t("noMachinesHow")}</Coded>
            </p>
            <a class="button" href={href({ at: "pair" })}>
              {t("pairMachine")}
            </a>
          </section>
        )}
        {!!inside?.length && <SessionList machines={inside} chosen={chosen} />}
        {heard.map(
          (h) =>
            h.fault &&
            // The machines themselves say it.
            !(h.fault.code == 4401 && machines?.some((m) => m.out && m.relay == h.relay && m.account == h.account)) && (
              <p class="note bad" role="status" key={h.relay + h.account}>
                {h.fault.code == 4401 ? t("relayRefuses", { relay: new URL(h.relay).host, text: h.fault.text }) : t("relaySilent", { relay: new URL(h.relay).host })}
              </p>
            ),
        )}
        {!!machines?.length && <h2>{t("machines")}</h2>}
        <ul class="list">
          {machines?.map((m) => {
            const said = says(m.relay, m.account)?.machines?.find((x) => x.machine == m.machine);
            return (
              <li key={m.id}>
                <a href={href({ at: "machine", id: m.id })}>
                  <Dot mood={said?.state ? moods[said.state] : "off"} />
                  <span class="grow">
                    <strong>{m.machine}</strong>
                    <small>{words(said) || new URL(m.relay).host}</small>
                  </span>
                  <Icon name="next" />
                </a>
              </li>
            );
          })}
          {strangers.map((m) => (
            <li key={m.relay + m.machine}>
              <a href={href({ at: "pair" })}>
                <Dot mood="off" />
                <span class="grow">
                  <strong>{m.machine}</strong>
                  <small>{t("notPaired")}</small>
                </span>
                <span class="tag">{t("pairThis")}</span>
              </a>
            </li>
          ))}
        </ul>
        {updated && (
          <p class="note" role="status" data-update>
            {t("updateReady")}
          </p>
        )}
        <nav class="foot">
          {!!machines?.length && <a href={href({ at: "pair" })}>{t("pairMachine")}</a>}
          {!!machines?.length && <a href={href({ at: "devices" })}>{t("devices")}</a>}
          {!!machines?.length && <a href={href({ at: "notifications" })}>{t("notifications")}</a>}
          <a href={href({ at: "about" })}>{t("about")}</a>
        </nav>
      </Main>
      {starting && !!inside?.length && <NewSession machines={inside} onClose={() => setStarting(false)} />}
    </>
  );
};
