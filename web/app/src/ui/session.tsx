// One session: what was said, what is asked, and where one answers.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ago, useWords } from "../i18n/index.js";
import { known as machinesKnown, refreshKnown } from "../machines.js";
import { go, href } from "../route.js";
import { Conversation } from "../sessions/conversation.js";
import { readHits, readRows, type Hit, type Run } from "../sessions/model.js";
import { oneLine, plain } from "../sessions/plain.js";
import { knownOf, request, watchSessions } from "../sessions/remote.js";
import { useNow, useStore } from "../store/state.js";
import { Composer } from "./composer.js";
import { DialogCard, type Verdict } from "./dialog.js";
import { ItemView, type Place } from "./items.js";
import { refusalWords } from "./newsession.js";
import { Bar, Dot, Icon, Sheet } from "./parts.js";
import { EvidenceList, useLook } from "./sessionlist.js";
import { nameOf, sinceWords, statusMood, statusWords, whereOf } from "./sessionwords.js";

/** Looked at for so long, it is seen. */
const SEEN = 1000;

export const SessionScreen = ({ id, session: sid, agent = "" }: { id: string; session: string; agent?: string }) => {
  const t = useWords();
  useEffect(() => watchSessions(id), [id]);
  useEffect(() => void refreshKnown(), [id]);
  const known = useStore(knownOf(id));
  const machine = useStore(machinesKnown)?.find((m) => m.id == id);
  const now = useNow(5000);
  const s = known.sessions.get(sid);
  const { live } = known;
  useLook(id, s ? [sid] : []);

  const [menu, setMenu] = useState(false);
  const [ending, setEnding] = useState(false);
  const [searching, setSearching] = useState(false);
  const [keys, setKeys] = useState(false);
  const [verdict, setVerdict] = useState<Verdict>();
  const [link, setLink] = useState("");
  const [focus, setFocus] = useState(0);

  // Seen here is seen on every device.
  useEffect(() => {
    if (!live || s?.status.state != "done") return;
    const timer = setTimeout(() => document.visibilityState == "visible" && void request(id, "seen", { session: sid }).catch(() => undefined), SEEN);
    return () => clearTimeout(timer);
  }, [live, s?.status.state]);

  // A question that went without an answer of this page was answered elsewhere.
  const dialog = s?.status.dialog;
  const before = useRef<string>(undefined);
  const cards = useRef(0);
  const answering = useRef(false);
  if (dialog && dialog.digest != before.current) cards.current++;
  useEffect(() => {
    const was = before.current;
    before.current = dialog?.digest;
    if (was && was != dialog?.digest && live && !answering.current && !document.querySelector(".dialog [disabled]")) setVerdict((v) => v ?? { words: t("answerElsewhere"), bad: false });
    if (!dialog) cards.current = 0;
  }, [dialog?.digest]);
  useEffect(() => {
    if (!verdict) return;
    const timer = setTimeout(() => setVerdict(undefined), 8000);
    return () => clearTimeout(timer);
  }, [verdict]);

  const press = (...names: string[]) => void request(id, "keys", { session: sid, keys: names }).catch((e) => setVerdict({ words: refusalWords(t, e), bad: true }));

  const title = s ? nameOf(s) : t("sessions");
  const sub = (
    <p class="state" role="status" data-state={s?.status.state}>
      {s && <Dot mood={live ? statusMood(s.status) : "off"} />}
      <span>
        {s ? [statusWords(s.status), sinceWords(s.status, now), machine?.machine, whereOf(s)].filter(Boolean).join(" · ") : machine?.machine}
      </span>
    </p>
  );
  const place: Place = { machine: id, session: sid, agent, openLink: setLink, openAgent: (a) => go({ at: "session", id, session: sid, agent: a }) };
  const busy = s?.status.state == "working" || s?.status.state == "background";

  return (
    <div class="terminal talk">
      <Bar title={agent ? `${t("subagent")} · ${title}` : title} sub={sub} back={agent ? { at: "session", id, session: sid } : { at: "home" }}>
        {s && (
          <a class="icon" href={href({ at: "raw", id, session: sid, fit: false })} aria-label={t("rawTerminal")}>
            <Icon name="screen" />
          </a>
        )}
        <button class="icon" aria-label={t("menu")} onClick={() => setMenu(true)}>
          <Icon name="menu" />
        </button>
      </Bar>
      {!live && (
        <p class="strip" role="status" data-live="false">
          {known.asOf === undefined ? t("listLoading", { machine: machine?.machine ?? "" }) : t("notLive", { ago: ago(known.asOf, now) })}
        </p>
      )}
      {live && !s && <p class="strip" role="alert">{t("sessionGone")}</p>}
      {s || !live ? <Talk key={`${sid} ${agent}`} place={place} live={live && !!s} has={!!agent || !!s?.conversation} changed={`${s?.status.state} ${s?.status.since} ${dialog?.digest}`} /> : <div class="grow" />}
      {verdict && (
        <p class={`strip ${verdict.bad ? "warn" : ""}`} role="alert" data-verdict>
          {verdict.words}
        </p>
      )}
      {dialog && !agent && <DialogCard key={dialog.digest} machine={id} session={sid} dialog={dialog} live={live} fresh={cards.current > 1} say={setVerdict} ownWords={() => setFocus(focus + 1)} />}
      {keys && live && (
        <div class="keyrow" role="toolbar" aria-label={t("keysOfSession")}>
          {([["Escape", "Esc"], ["Tab", "Tab"], ["BTab", "⇧Tab"], ["Up", "↑"], ["Down", "↓"], ["Left", "←"], ["Right", "→"], ["Enter", "⏎"], ["C-c", "^C"]] as const).map(([k, label]) => (
            <button key={k} aria-label={k} onMouseDown={(e) => e.preventDefault()} onClick={() => press(k)}>
              {label}
            </button>
          ))}
        </div>
      )}
      {s && !agent && s.status.state != "exited" && <Composer key={sid} machine={id} session={sid} name={nameOf(s)} live={live} password={s.status.kind == "password"} focus={focus} />}
      {menu && s && (
        <Sheet title={title} onClose={() => setMenu(false)}>
          <EvidenceList session={s} now={now} />
          <div class="choices" onClick={() => setMenu(false)}>
            {busy && <button onClick={() => press("Escape")}>Esc</button>}
            <button onClick={() => setKeys(!keys)}>{t(keys ? "hideKeys" : "showKeys")}</button>
            {(s.conversation || agent) && <button onClick={() => setSearching(true)}>{t("searchIn")}</button>}
            <button onClick={() => go({ at: "raw", id, session: sid, fit: true })}>{t("rawFit")}</button>
            <button onClick={() => void request(id, "refresh", { session: sid }).catch((e) => setVerdict({ words: refusalWords(t, e), bad: true }))}>{t("retry")}</button>
            <button class="danger" onClick={() => setEnding(true)}>
              {t("endSession")}
            </button>
          </div>
        </Sheet>
      )}
      {ending && s && (
        <Sheet title={t("endSession")} onClose={() => setEnding(false)}>
          <p>{t("endSure", { name: oneLine(s.name) })}</p>
          <button
            class="danger"
            disabled={!live}
            onClick={() => {
              setEnding(false);
              request(id, "end", { session: sid, confirm: s.name }).then(
                () => go({ at: "home" }, true),
                (e) => setVerdict({ words: refusalWords(t, e), bad: true }),
              );
            }}
          >
            {t("endGo", { name: oneLine(s.name) })}
          </button>
        </Sheet>
      )}
      {searching && <SearchSheet place={place} skew={known.skew} onClose={() => setSearching(false)} />}
      {link && (
        <Sheet title={t("open")} onClose={() => setLink("")}>
          <p>{t("openLinkAsk")}</p>
          <code>{link}</code>
          <a class="button" href={link} target="_blank" rel="noopener noreferrer" onClick={() => setLink("")}>
            {t("open")}
          </a>
        </Sheet>
      )}
    </div>
  );
};

/** The conversation, or the scrollback where there is none. */
const Talk = ({ place, live, has, changed }: { place: Place; live: boolean; has: boolean; changed: string }) => {
  const t = useWords();
  const ref = useRef<Conversation>(undefined);
  const c = (ref.current ??= new Conversation(place.machine, place.session, place.agent, () => knownOf(place.machine).value.skew));
  const shown = useStore(c.shown);
  useEffect(() => {
    if (!live || !has) return;
    void c.open();
    return () => c.close();
  }, [live, has]);
  const none = !has || shown.fault;
  return (
    <Scroller label={t(none ? "screenLabel" : "conversationLabel")} count={shown.items.length} above={shown.above} last={shown.items.at(-1)} older={() => void c.older()}>
      {none ? (
        <Scrollback place={place} live={live} changed={changed} said={!!shown.fault} />
      ) : (
        <>
          {shown.before === "" && <p class="mark">{t("beginning")}</p>}
          {shown.loading && <p class="mark">{t(shown.items.length ? "loadingOlder" : "loading")}</p>}
          {shown.unreadable > 0 && <p class="mark">{t("unreadable", { n: shown.unreadable })}</p>}
          {shown.items.map((i) => (
            <ItemView key={i.id} item={i} place={place} />
          ))}
        </>
      )}
    </Scroller>
  );
};

/** Keeps to the end while one is there, and holds its place when something comes above. */
const NEAR = 48;
const Scroller = ({ label, count, above, last, older, children }: { label: string; count: number; above: number; last: unknown; older: () => void; children: any }) => {
  const t = useWords();
  const ref = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const [below, setBelow] = useState(false);
  const was = useRef({ height: 0, above: 0 });

  useLayoutEffect(() => {
    const el = ref.current!;
    if (above != was.current.above) el.scrollTop += el.scrollHeight - was.current.height;
    else if (atEnd.current) el.scrollTop = el.scrollHeight;
    else if (count) setBelow(true);
    was.current = { height: el.scrollHeight, above };
  }, [count, above, last]);
  // A picture that loads, a card that opens or a keyboard moves the end.
  useEffect(() => {
    const el = ref.current!;
    const o = new ResizeObserver(() => {
      if (atEnd.current) el.scrollTop = el.scrollHeight;
      was.current.height = el.scrollHeight;
    });
    o.observe(el);
    o.observe(el.firstElementChild!);
    return () => o.disconnect();
  }, []);

  const scrolled = () => {
    const el = ref.current!;
    atEnd.current = el.scrollHeight - el.scrollTop - el.clientHeight < NEAR;
    if (atEnd.current) setBelow(false);
    was.current.height = el.scrollHeight;
    if (el.scrollTop < 400) older();
  };
  return (
    <div class="talkbox">
      <div class="scroller" ref={ref} onScroll={scrolled} tabIndex={0} role="log" aria-label={label}>
        <div class="inner">{children}</div>
      </div>
      {below && (
        <button class="quiet small tonew" onClick={() => ((ref.current!.scrollTop = ref.current!.scrollHeight), setBelow(false))}>
          {t("newBelow")} ↓
        </button>
      )}
    </div>
  );
};

/** What a change may still print is asked for twice: at once, and when it has settled. */
const LATER = 1200;
const Scrollback = ({ place, live, changed, said }: { place: Place; live: boolean; changed: string; said: boolean }) => {
  const t = useWords();
  const [rows, set] = useState<Run[][]>([]);
  const load = () =>
    void request(place.machine, "scrollback", { session: place.session, lines: 300 }).then(
      (r) => set(readRows(r).rows),
      () => undefined,
    );
  useEffect(() => {
    if (!live) return;
    load();
    const timer = setTimeout(load, LATER);
    return () => clearTimeout(timer);
  }, [live, changed]);
  return (
    <>
      {said && <p class="mark">{t("noTranscript")}</p>}
      <div class="rows">
        {rows.map((r, i) => (
          <div key={i}>
            {r.map((x, k) => (
              <span key={k} style={cellStyle(x, k ? r[k - 1]! : undefined)}>
                {plain(x.text)}
              </span>
            ))}
            {"\u200b"}
          </div>
        ))}
      </div>
      <button class="quiet small" disabled={!live} onClick={load}>
        {t("retry")}
      </button>
    </>
  );
};

const cellStyle = (x: Run, before: Run | undefined): Record<string, string> => {
  const gap = x.col - (before ? before.col + before.width : 0);
  const [fg, bg] = x.reverse ? [x.bg || "bg", x.fg || "fg"] : [x.fg, x.bg];
  return {
    width: `${x.width}ch`,
    ...(gap > 0 && { marginLeft: `${gap}ch` }),
    ...(fg && { color: colourOf(fg) }),
    ...(bg && { background: colourOf(bg) }),
    ...(x.bold && { fontWeight: "700" }),
    ...(x.dim && { opacity: "0.7" }),
    ...(x.italic && { fontStyle: "italic" }),
    ...(x.underline && { textDecoration: "underline" }),
  };
};

/** xterm's palette: 16 colours of the theme, a cube, and greys. */
const colourOf = (c: string): string => {
  if (c[0] == "#") return c;
  if (c == "fg") return "var(--text)";
  if (c == "bg") return "var(--term)";
  const n = +c;
  if (n < 16) return `var(--ansi${n % 8})`;
  if (n > 231) return `rgb(${Array(3).fill(8 + (n - 232) * 10).join(" ")})`;
  const step = (k: number) => (k ? 55 + 40 * k : 0);
  return `rgb(${step(Math.floor((n - 16) / 36))} ${step(Math.floor((n - 16) / 6) % 6)} ${step((n - 16) % 6)})`;
};

const SearchSheet = ({ place, skew, onClose }: { place: Place; skew: number; onClose: () => void }) => {
  const t = useWords();
  const [query, setQuery] = useState("");
  const [hits, setHits] = useState<Hit[]>();
  const [before, setBefore] = useState("");
  const [fault, setFault] = useState("");
  const search = async (from: string) => {
    setFault("");
    try {
      const r = readHits(await request(place.machine, "search", { session: place.session, ...(place.agent && { agent: place.agent }), query: query.slice(0, 80), ...(from && { before: from }) }), skew);
      setHits((h) => (from ? [...(h ?? []), ...r.hits] : r.hits));
      setBefore(r.before);
    } catch (e) {
      setFault(refusalWords(t, e));
    }
  };
  return (
    <Sheet title={t("searchIn")} onClose={onClose}>
      <form class="row" onSubmit={(e) => (e.preventDefault(), void (query && search("")))}>
        <input type="search" class="grow" value={query} onInput={(e) => setQuery(e.currentTarget.value)} aria-label={t("searchIn")} maxLength={80} autoFocus />
        <button disabled={!query}>{t("searchGo")}</button>
      </form>
      {fault && <p class="note bad" role="alert">{fault}</p>}
      {hits && !hits.length && !before && <p class="dim">{t("searchNothing")}</p>}
      <ul class="hits">
        {hits?.map((h) => (
          <li key={h.item.id}>
            {h.item.time !== undefined && <small>{ago(h.item.time)}</small>}
            <p class="pre">{plain(h.snippet)}</p>
          </li>
        ))}
      </ul>
      {before && (
        <button class="quiet" onClick={() => void search(before)}>
          {t("searchMore")}
        </button>
      )}
    </Sheet>
  );
};
