// One session: what was said, what is asked, and where one answers.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { ago, useWords } from "../i18n/index.js";
import { known as machinesKnown, refreshKnown } from "../machines.js";
import { go, href } from "../route.js";
import { Conversation } from "../sessions/conversation.js";
import { readHits, readRows, type Dialog, type Hit, type Item, type Run, type Session } from "../sessions/model.js";
import { outboxOf } from "../sessions/outboxes.js";
import { oneLine, plain } from "../sessions/plain.js";
import { knownOf, request, watchSessions } from "../sessions/remote.js";
import { useNow, useStore } from "../store/state.js";
import { Composer, Unsent } from "./composer.js";
import { DialogCard, type Answering, type Verdict } from "./dialog.js";
import { ItemView, type Place } from "./items.js";
import { refusalWords } from "./newsession.js";
import { Out } from "./out.js";
import { Bar, Dot, Icon, Sheet } from "./parts.js";
import { EvidenceList, useLook } from "./sessionlist.js";
import { nameOf, sinceWords, statusMood, statusWords, waitingTool, whereOf } from "./sessionwords.js";

/** Looked at for so long, it is seen. */
const SEEN = 1000;
/** What became of an answer is said that long; what went wrong, longer. */
const STAYS = 5000;
const BAD_STAYS = 20_000;

export const SessionScreen = ({ id, session: sid, agent = "" }: { id: string; session: string; agent?: string }) => {
  const t = useWords();
  useEffect(() => watchSessions(id), [id]);
  useEffect(() => void refreshKnown(), [id]);
  const known = useStore(knownOf(id));
  const all = useStore(machinesKnown);
  const machine = all?.find((m) => m.id == id);
  const several = (all?.length ?? 0) > 1;
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
  const open = s?.status.dialog?.digest == verdict?.gone ? undefined : s?.status.dialog;
  const [held, hold] = useState<Dialog>();
  const dialog = held ?? open;
  const before = useRef<string>(undefined);
  /** What was asked when the screen was opened; a card that comes later takes no tap at once. */
  const first = useRef(dialog?.digest);
  /** Digests that this page has answered, or may have. */
  const mine = useRef(new Set<string>());
  useEffect(() => {
    const was = before.current;
    before.current = dialog?.digest;
    if (was && was != dialog?.digest && live && !mine.current.has(was)) setVerdict({ words: t("answerElsewhere"), bad: false });
  }, [dialog?.digest]);
  const answering: Answering = {
    began(d) {
      mine.current.add(d.digest);
      setVerdict(undefined);
      hold(d);
    },
    over(d, ours, v) {
      if (!ours) mine.current.delete(d.digest);
      hold(undefined);
      setVerdict(v);
    },
    ownWords() {
      setVerdict((v) => ({ ...v, words: t("answerOwnWords"), bad: false }));
      setFocus((n) => n + 1);
    },
  };
  useEffect(() => {
    if (!verdict) return;
    const timer = setTimeout(() => setVerdict(undefined), verdict.bad ? BAD_STAYS : STAYS);
    return () => clearTimeout(timer);
  }, [verdict]);

  const press = (...names: string[]) => void request(id, "keys", { session: sid, keys: names }).catch((e) => setVerdict({ words: refusalWords(t, e), bad: true }));

  const title = s ? nameOf(s) : t("sessions");
  const sub = (
    <p class="state" role="status" data-state={s?.status.state}>
      {s && <Dot mood={live ? statusMood(s.status) : "off"} />}
      <span>
        {s ? [statusWords(s.status), sinceWords(s.status, now), several ? machine?.machine : ""].filter(Boolean).join(" · ") : machine?.machine}
      </span>
    </p>
  );
  // The same one from one drawing to the next: items are drawn again only when they change.
  const place = useMemo<Place>(() => ({ machine: id, session: sid, agent, openLink: setLink, openAgent: (a) => go({ at: "session", id, session: sid, agent: a }) }), [id, sid, agent]);
  const talk = useMemo(() => new Conversation(id, sid, agent, () => knownOf(id).value.skew), [id, sid, agent]);
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
      <main class="talkmain">
        {machine?.out && <Out machine={machine} now={now} gone={() => go({ at: "home" }, true)} />}
        {!live && !machine?.out && (
          <p class="strip" role="status" data-live="false">
            {known.asOf === undefined ? t("listLoading", { machine: machine?.machine ?? "" }) : t("notLive", { ago: ago(known.asOf, now) })}
          </p>
        )}
        {live && !s && <p class="strip" role="alert">{t("sessionGone")}</p>}
        {(s || !live) && !machine?.out ? <Talk key={`${sid} ${agent}`} place={place} of={talk} live={live && !!s} busy={busy || s?.status.state == "waiting"} has={!!agent || !!s?.conversation} dialog={live ? dialog : undefined} changed={s} /> : <div class="grow" />}
        <div role="status">
          {verdict && (
            <p class={`strip ask ${verdict.bad ? "warn" : ""}`} data-verdict>
              <span class="grow">{verdict.words}</span>
              {verdict.look && <a href={href({ at: "raw", id, session: sid, fit: false })}>{t("rawTerminal")}</a>}
            </p>
          )}
        </div>
        {dialog && !agent && <DialogCard key={dialog.digest} machine={id} session={sid} dialog={dialog} live={live} fresh={dialog.digest != first.current} on={answering} />}
        {keys && live && (
          <div class="keyrow" role="toolbar" aria-label={t("keysOfSession")}>
            {([["Escape", "Esc"], ["Tab", "Tab"], ["BTab", "⇧Tab"], ["Up", "↑"], ["Down", "↓"], ["Left", "←"], ["Right", "→"], ["Enter", "⏎"], ["C-c", "^C"]] as const).map(([k, label]) => (
              <button key={k} aria-label={label.length > 1 ? undefined : k} onMouseDown={(e) => e.preventDefault()} onClick={() => press(k)}>
                {label}
              </button>
            ))}
          </div>
        )}
        {!agent && (s ? s.status.state == "exited" : live) && <Unsent box={outboxOf(id, sid)} live={live} />}
        {s && !agent && s.status.state != "exited" && <Composer key={sid} machine={id} session={sid} name={nameOf(s)} live={live} password={s.status.kind == "password"} focus={focus} />}
      </main>
      {menu && s && (
        <Sheet title={title} onClose={() => setMenu(false)}>
          <p class="dim">{[machine?.machine, whereOf(s)].filter(Boolean).join(" · ")}</p>
          <EvidenceList session={s} now={now} />
          <div class="choices" onClick={() => setMenu(false)}>
            {busy && <button onClick={() => press("Escape")}>Esc</button>}
            <button onClick={() => setKeys(!keys)}>{t(keys ? "hideKeys" : "showKeys")}</button>
            {(s.conversation || agent) && <button onClick={() => setSearching(true)}>{t("searchIn")}</button>}
            <button onClick={() => go({ at: "raw", id, session: sid, fit: true })}>{t("rawFit")}</button>
            <button onClick={() => void request(id, "refresh", { session: sid }).catch((e) => setVerdict({ words: refusalWords(t, e), bad: true }))}>{t("askAgain")}</button>
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
      {searching && <SearchSheet place={place} skew={known.skew} find={(i) => (setSearching(false), void talk.find(i))} onClose={() => setSearching(false)} />}
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
const Talk = ({ place, of: c, live, busy, has, dialog, changed }: { place: Place; of: Conversation; live: boolean; busy: boolean; has: boolean; dialog: Dialog | undefined; changed: Session | undefined }) => {
  const t = useWords();
  const shown = useStore(c.shown);
  useEffect(() => {
    if (!live || !has) return;
    void c.open();
    return () => c.close();
  }, [live, has]);
  const none = !has || shown.fault;
  const waits = waitingTool(shown.items, dialog, !place.agent);
  return (
    <Scroller
      label={t(none ? "screenLabel" : "conversationLabel")}
      count={shown.items.length}
      above={shown.above}
      last={shown.items.at(-1)}
      mark={shown.mark}
      older={() => void c.older()}
      newest={shown.apart ? () => void c.newest() : undefined}
    >
      {none ? (
        <Scrollback place={place} live={live} changed={changed} said={!!shown.fault} />
      ) : (
        <>
          {/* Always as high, so that nothing below moves when it changes. */}
          <p class="mark top">{shown.loading ? t(shown.items.length ? "loadingOlder" : "loading") : shown.before === "" ? t("beginning") : ""}</p>
          {shown.unreadable > 0 && <p class="mark">{t("unreadable", { n: shown.unreadable })}</p>}
          <div class="items" data-busy={busy}>
            {shown.items.map((i) => (
              <div key={i.id} data-item={i.id} data-waits={waits == i.id ? "" : undefined} class={shown.mark == i.id ? "found" : ""} tabIndex={shown.mark == i.id ? -1 : undefined}>
                <ItemView item={i} place={place} />
              </div>
            ))}
          </div>
          {shown.apart && <p class="mark">{t("apart")}</p>}
        </>
      )}
    </Scroller>
  );
};

/** Keeps to the end while one is there, and holds its place when something comes above. */
const NEAR = 48;
/** So close to the top, what came before is fetched. */
const EARLY = 400;
const Scroller = ({
  label, count, above, last, mark, older, newest, children,
}: {
  label: string; count: number; above: number; last: unknown; mark: string; older: () => void; newest: (() => void) | undefined; children: any;
}) => {
  const t = useWords();
  const ref = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const [below, setBelow] = useState(false);
  const was = useRef({ height: 0, above: 0 });

  useLayoutEffect(() => {
    const el = ref.current!;
    if (above != was.current.above) el.scrollTop += el.scrollHeight - was.current.height;
    else if (atEnd.current && !newest) el.scrollTop = el.scrollHeight;
    else if (count) setBelow(true);
    was.current = { height: el.scrollHeight, above };
    // A page that does not fill the screen cannot be scrolled to its top.
    if (count && el.scrollHeight - el.clientHeight < EARLY) older();
  }, [count, above, last]);
  // What a search has found.
  useLayoutEffect(() => {
    const el = mark && ref.current!.querySelector<HTMLElement>(`[data-item="${CSS.escape(mark)}"]`);
    if (!el) return;
    atEnd.current = false;
    setBelow(true);
    el.scrollIntoView({ block: "center" });
    el.focus({ preventScroll: true });
  }, [mark]);
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

  // The browser may tell of a scroll after the element has gone.
  const scrolled = ({ currentTarget: el }: { currentTarget: HTMLElement }) => {
    atEnd.current = !newest && el.scrollHeight - el.scrollTop - el.clientHeight < NEAR;
    if (atEnd.current) setBelow(false);
    was.current.height = el.scrollHeight;
    if (el.scrollTop < EARLY) older();
  };
  const toEnd = () => {
    atEnd.current = true;
    setBelow(false);
    if (newest) newest();
    else ref.current!.scrollTop = ref.current!.scrollHeight;
  };
  return (
    <div class="talkbox">
      <div class="scroller" ref={ref} onScroll={scrolled} tabIndex={0} role="log" aria-label={label}>
        <div class="inner">{children}</div>
      </div>
      {below && (
        <button class="quiet small tonew" onClick={toEnd}>
          {t("toNewest")} ↓
        </button>
      )}
    </div>
  );
};

/** What a change may still print is asked for twice: at once, and when it has settled. */
const LATER = 1200;
/** Changes that come faster are waited out: a screen a second is what a person can read. */
const APART = 1000;
const Scrollback = ({ place, live, changed, said }: { place: Place; live: boolean; changed: Session | undefined; said: boolean }) => {
  const t = useWords();
  const [rows, set] = useState<Run[][]>([]);
  const asked = useRef(0);
  const load = () => {
    asked.current = Date.now();
    void request(place.machine, "scrollback", { session: place.session, lines: 300 }).then(
      (r) => set(readRows(r).rows),
      () => undefined,
    );
  };
  useEffect(() => {
    if (!live) return;
    const first = setTimeout(load, Math.max(0, asked.current + APART - Date.now()));
    const settled = setTimeout(load, LATER + APART);
    return () => {
      clearTimeout(first);
      clearTimeout(settled);
    };
  }, [live, changed]);
  // Below the last thing that stands there a terminal is empty.
  const end = rows.findLastIndex((r) => r.some((x) => x.text.trim() || x.bg || x.reverse)) + 1;
  return (
    <>
      {said && <p class="mark">{t("noTranscript")}</p>}
      <div class="rows" tabIndex={0} role="region" aria-label={t("screenLabel")}>
        {rows.slice(0, end).map((r, i) => (
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
        {t("askAgain")}
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

const SearchSheet = ({ place, skew, find, onClose }: { place: Place; skew: number; find: (i: Item) => void; onClose: () => void }) => {
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
            <button onClick={() => find(h.item)}>
              <small>{[h.item.kind == "user" ? t("you") : h.item.tool ? oneLine(h.item.tool.name) : "", h.item.time !== undefined ? ago(h.item.time) : ""].filter(Boolean).join(" · ")}</small>
              <span class="pre">{plain(h.snippet)}</span>
            </button>
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
