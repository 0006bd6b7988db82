// Every machine's sessions in one list: who waits is on top.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ago, useWords } from "../i18n/index.js";
import { connectionOf } from "../machines.js";
import { href } from "../route.js";
import type { Session } from "../sessions/model.js";
import { arrange, matches, type Group, type Row } from "../sessions/order.js";
import { knownOf, lookAt, request, watchSessions, type Known } from "../sessions/remote.js";
import { oneLine } from "../sessions/plain.js";
import type { MachineView } from "../store/db.js";
import { useNow } from "../store/state.js";
import type { LinkState } from "../worker/messages.js";
import { Dot, Icon } from "./parts.js";
import { askedOf, groupKeys, nameOf, sinceWords, sourceWords, statusMood, statusWords, whereOf } from "./sessionwords.js";
import { mood, needsPairing, stateWords, whyWords } from "./words.js";

export interface Heard {
  machine: MachineView;
  known: Known;
  link: LinkState;
}

/** What every machine says, drawn again at most once a frame however many changes come. */
export const useSessions = (machines: readonly MachineView[]): Heard[] => {
  const ids = machines.map((m) => m.id).join(" ");
  const [, again] = useState({});
  useEffect(() => {
    let frame = 0;
    const draw = () => (frame ||= requestAnimationFrame(() => ((frame = 0), again({}))));
    const undo = machines.flatMap((m) => [watchSessions(m.id), knownOf(m.id).subscribe(draw), connectionOf(m.id).sessionsState.subscribe(draw)]);
    draw();
    return () => {
      cancelAnimationFrame(frame);
      for (const f of undo) f();
    };
  }, [ids]);
  return machines.map((machine) => ({ machine, known: knownOf(machine.id).value, link: connectionOf(machine.id).sessionsState.value }));
};

/** Tells the machine that a person looks at these sessions, as long as they are shown. */
export const useLook = (machine: string, sessions: readonly string[]): void => {
  const ids = sessions.join(" ");
  useEffect(() => lookAt(machine, ids ? ids.split(" ") : []), [machine, ids]);
};

const Looking = ({ heard }: { heard: Heard }) => {
  useLook(heard.machine.id, [...heard.known.sessions.keys()]);
  return null;
};

/** Asks every machine again: its connection, and each session's status. */
export const probe = async (machines: readonly MachineView[]): Promise<void> => {
  await Promise.all(
    machines.map(async ({ id }) => {
      const c = connectionOf(id);
      const { phase } = c.sessionsState.value;
      if (phase == "stopped" || phase == "waiting") return c.retry();
      c.wake();
      await Promise.race([request(id, "refresh").catch(() => undefined), new Promise((r) => setTimeout(r, 8000))]);
    }),
  );
};

export const SessionList = ({ machines, chosen }: { machines: readonly MachineView[]; chosen?: string | undefined }) => {
  const t = useWords();
  const all = useSessions(machines);
  const now = useNow(10_000);
  const [query, setQuery] = useState("");
  const [busy, setBusy] = useState(false);
  const [only, setOnly] = useState("");
  const rows = useMemo(
    () => all.flatMap(({ machine, known }): Row[] => [...known.sessions.values()].map((session) => ({ machine: machine.id, name: machine.machine, session, live: known.live }))),
    [all.map((h) => h.known)].flat(),
  );
  const shown = rows.filter((r) => (!only || r.machine == only) && (!query || matches(r, query)));
  const order = arrange(shown);
  const waiting = rows.filter((r) => r.session.status.state == "waiting").length;
  const loading = all.filter((h) => !h.known.live && h.known.asOf === undefined && h.link.phase != "waiting" && h.link.phase != "stopped" && !h.known.fault);

  const refresh = async () => {
    if (busy) return;
    setBusy(true);
    await probe(machines);
    setBusy(false);
  };
  const pull = usePull(() => void refresh());

  const group = (g: Group) => (
    <section key={g} class={`group ${g}`} aria-label={t(groupKeys[g])}>
      <h2>
        {t(groupKeys[g])} <span class="count">{order.get(g)!.length}</span>
      </h2>
      <ul class="list">
        {order.get(g)!.map((r) => (
          <SessionRow key={`${r.machine} ${r.session.id}`} row={r} now={now} several={machines.length > 1} chosen={chosen == `${r.machine} ${r.session.id}`} />
        ))}
      </ul>
    </section>
  );

  return (
    <div ref={pull.ref} class="sessions">
      <div class="pull" aria-hidden="true" style={{ height: `${busy ? 0 : pull.by}px` }}>
        <Icon name="refresh" />
      </div>
      {all.map((h) => (
        <Looking key={h.machine.id} heard={h} />
      ))}
      <div class="row search">
        <input type="search" class="grow" value={query} onInput={(e) => setQuery(e.currentTarget.value)} placeholder={t("search")} aria-label={t("search")} autocapitalize="off" autocomplete="off" spellcheck={false} />
        <button class={`icon ${busy ? "turning" : ""}`} aria-label={t("refresh")} aria-busy={busy} onClick={() => void refresh()}>
          <Icon name="refresh" />
        </button>
      </div>
      {machines.length > 1 && (
        <div class="chips" role="group" aria-label={t("filterBy")}>
          {[{ id: "", machine: t("allMachines") }, ...machines].map((m) => (
            <button key={m.id} class="chip" aria-pressed={only == m.id} onClick={() => setOnly(m.id)}>
              {m.machine}
            </button>
          ))}
        </div>
      )}
      <p class="sr" role="status">
        {t("groupWaiting")}: {waiting}
      </p>
      {order.has("waiting") && group("waiting")}
      {all.map((h) => (
        <MachineState key={h.machine.id} heard={h} now={now} />
      ))}
      {loading.map((h) => (
        <p key={h.machine.id} class="dim">
          {t("listLoading", { machine: h.machine.machine })}
        </p>
      ))}
      {[...order.keys()].filter((g) => g != "waiting").map(group)}
      {!shown.length && !loading.length && <p class="dim">{t(query || only ? "noMatch" : "noSessions")}</p>}
    </div>
  );
};

/** A machine that tells nothing now: how old is what is shown, and why. */
const MachineState = ({ heard: { machine, known, link }, now }: { heard: Heard; now: number }) => {
  const t = useWords();
  if (known.live) return null;
  // A first connection is no trouble; the list says that it is being asked.
  if (!link.why && !known.fault && known.asOf === undefined) return null;
  const trouble = !!link.why || !!known.fault;
  return (
    <section class={`note ${link.phase == "stopped" ? "bad" : ""}`} role="status" data-machine={machine.machine} data-live="false">
      <p>
        <Dot mood={trouble ? mood(link) : "busy"} /> {link.phase == "up" && !trouble ? <span>{t("listLoading", { machine: machine.machine })}</span> : <><strong>{machine.machine}</strong> <span>{stateWords(link, now)}</span></>}
        <small> {known.asOf === undefined ? t("neverSeen") : t("asOf", { ago: ago(known.asOf, now) })}</small>
      </p>
      {link.why && <p>{whyWords(link.why)}</p>}
      {known.fault && <p>{known.fault.code == "version" ? t("sessionsVersion") : t("sessionsNone", { text: oneLine(known.fault.text) })}</p>}
      {(link.phase == "waiting" || link.phase == "stopped") && (
        <div class="row">
          <button class="quiet" onClick={() => connectionOf(machine.id).retry()}>
            {t("retry")}
          </button>
          {needsPairing(link.why) && (
            <a class="button" href={href({ at: "pair" })}>
              {t("pairMachine")}
            </a>
          )}
        </div>
      )}
    </section>
  );
};

const SessionRow = ({ row: { machine, name, session: s, live }, now, several, chosen }: { row: Row; now: number; several: boolean; chosen: boolean }) => {
  const t = useWords();
  const [why, setWhy] = useState(false);
  const waits = s.status.state == "waiting";
  const asks = waits && s.status.dialog ? askedOf(s.status.dialog) : "";
  return (
    <li class={live ? "" : "stale"} data-session={s.id} data-state={s.status.state}>
      <div class="session">
        <a href={href({ at: "session", id: machine, session: s.id })} aria-current={chosen ? "true" : undefined}>
          <Dot mood={live ? statusMood(s.status) : "off"} />
          <span class="grow">
            <strong>{nameOf(s)}</strong>
            {waits && s.status.dialog && <span class="asked">{oneLine(s.status.dialog.title) || asks}</span>}
            {asks && s.status.dialog!.title && <code class="asks">{asks.slice(0, 300)}</code>}
            <small>
              {statusWords(s.status)}
              {s.status.since !== undefined && ` · ${sinceWords(s.status, now)}`}
            </small>
            <small>{[several ? name : "", whereOf(s)].filter(Boolean).join(" · ")}</small>
          </span>
        </a>
        <button class="icon why" aria-expanded={why} aria-label={`${t("why")}: ${nameOf(s)}`} onClick={() => setWhy(!why)}>
          <Icon name="info" />
        </button>
      </div>
      {why && <EvidenceList session={s} now={now} />}
    </li>
  );
};

export const EvidenceList = ({ session: s, now }: { session: Session; now: number }) => {
  const t = useWords();
  return (
    <div class="evidence">
      <h3>{t("whyState")}</h3>
      <ul>
        {s.status.evidence.map((e, i) => (
          <li key={i}>
            <span>{oneLine(e.detail)}</span> <small>{e.at === undefined ? sourceWords(e.source) : t("evidenceAt", { source: sourceWords(e.source), ago: ago(e.at, now) })}</small>
          </li>
        ))}
      </ul>
      {s.status.confirmed !== undefined && <small>{t("confirmedAgo", { ago: ago(s.status.confirmed, now) })}</small>}
    </div>
  );
};

/** A finger that pulls the list down from its top: how far, and at 72 px what it asks for. */
const PULL = 72;
const usePull = (act: () => void) => {
  const ref = useRef<HTMLDivElement>(null);
  const [by, set] = useState(0);
  const doing = useRef(act);
  doing.current = act;
  useEffect(() => {
    const el = ref.current!;
    let from: number | undefined;
    let far = 0;
    const top = () => (el.closest(".pane")?.scrollTop ?? 0) + scrollY;
    const start = (e: TouchEvent) => (from = e.touches.length == 1 && top() <= 0 ? e.touches[0]!.clientY : undefined);
    const move = (e: TouchEvent) => {
      if (from === undefined) return;
      far = top() > 0 ? 0 : Math.max(0, Math.min((e.touches[0]!.clientY - from) / 2, PULL + 16));
      set(far);
    };
    const end = () => {
      if (far >= PULL) doing.current();
      from = undefined;
      far = 0;
      set(0);
    };
    el.addEventListener("touchstart", start, { passive: true });
    el.addEventListener("touchmove", move, { passive: true });
    el.addEventListener("touchend", end);
    el.addEventListener("touchcancel", end);
    return () => {
      el.removeEventListener("touchstart", start);
      el.removeEventListener("touchmove", move);
      el.removeEventListener("touchend", end);
      el.removeEventListener("touchcancel", end);
    };
  }, []);
  return { ref, by };
};
