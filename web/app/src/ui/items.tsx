// The items of a conversation. All text comes from a machine and is shown as
// text; what is long is folded, what was cut is fetched when asked for.

import { memo } from "./memo.js";
import { useEffect, useState } from "preact/hooks";
import { clock, useWords, type Key } from "../i18n/index.js";
import { fromBase64 } from "../pairing/bytes.js";
import { isObject, type Body, type Diff, type Item, type Picture } from "../sessions/model.js";
import { oneLine, plain } from "../sessions/plain.js";
import { request } from "../sessions/remote.js";
import { Markdown } from "./markdown.js";
import { sizeWords } from "./sessionwords.js";

/** Where an item is from, and what it can ask for. */
export interface Place {
  machine: string;
  session: string;
  agent: string;
  openLink(href: string): void;
  openAgent(agent: string): void;
}

/** A picture of a transcript; more is none that a phone shows. */
const MAX_PICTURE = 16 << 20;
/** A text that was cut, when all of it is asked for. */
const MAX_WHOLE = 2 << 20;
const PIECE = 256 << 10;
/** Only what browsers decode as pictures and cannot hold a script when drawn by an img; SVG is left out all the same. */
const pictures = ["image/png", "image/jpeg", "image/gif", "image/webp"];

const fetchBlob = async (p: Place, blob: string, max: number): Promise<Uint8Array<ArrayBuffer>> => {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let offset = 0;
  for (;;) {
    const r = await request(p.machine, "blob", { session: p.session, ...(p.agent && { agent: p.agent }), blob, offset, bytes: PIECE });
    const data = isObject(r) && typeof r["data"] == "string" ? fromBase64(r["data"]) : undefined;
    if (!data) throw new Error("no data");
    parts.push(data);
    offset += data.length;
    if ((r as { end?: unknown }).end === true || !data.length) break;
    if (offset > max) break;
  }
  const out = new Uint8Array(offset);
  let at = 0;
  for (const x of parts) {
    out.set(x, at);
    at += x.length;
  }
  return out;
};

const Text = ({ body, place, label }: { body: Body; place: Place; label?: string }) => {
  const t = useWords();
  const [whole, set] = useState<string>();
  const [fault, setFault] = useState("");
  if (!body.text && !body.blob) return null;
  return (
    <>
      {label && <h4>{label}</h4>}
      <pre tabIndex={0} role="region" aria-label={label ?? t("textLabel")}>{plain(whole ?? body.text)}</pre>
      {body.blob && whole === undefined && (
        <button
          class="quiet small"
          onClick={() =>
            void fetchBlob(place, body.blob, MAX_WHOLE).then(
              (b) => set(new TextDecoder().decode(b)),
              (e) => setFault(t("failedText", { text: oneLine(String(e.message ?? e)) })),
            )
          }
        >
          {t("showAll", { size: sizeWords(body.bytes) })}
        </button>
      )}
      {fault && <p class="dim" role="status">{fault}</p>}
    </>
  );
};

const PictureView = ({ picture: p, place }: { picture: Picture; place: Place }) => {
  const t = useWords();
  const [url, set] = useState("");
  const [fault, setFault] = useState(false);
  useEffect(() => () => URL.revokeObjectURL(url), [url]);
  if (!p.blob || !pictures.includes(p.mediaType)) return <p class="dim">[{oneLine(p.name || p.mediaType)}]</p>;
  if (fault) return <p class="dim" role="status">{t("pictureFailed")}</p>;
  if (url) return <img class="picture" src={url} alt={oneLine(p.name) || t("showPicture", { size: sizeWords(p.bytes) })} onError={() => setFault(true)} />;
  return (
    <button
      class="quiet small"
      onClick={() =>
        void fetchBlob(place, p.blob, MAX_PICTURE).then(
          (b) => set(URL.createObjectURL(new Blob([b], { type: p.mediaType }))),
          () => setFault(true),
        )
      }
    >
      {t("showPicture", { size: sizeWords(p.bytes) })}
    </button>
  );
};

const DiffView = ({ diff: d }: { diff: Diff }) => {
  const t = useWords();
  return (
    <div class="diff">
      <p class="file">
        <bdi>{oneLine(d.path)}</bdi>
        {d.to && <bdi> → {oneLine(d.to)}</bdi>} <span class="add">+{d.added}</span> <span class="del">−{d.removed}</span>
      </p>
      <pre tabIndex={0} role="region" aria-label={oneLine(d.path)}>
        {d.hunks.map((h, i) => (
          <span key={i}>
            {i > 0 && <span class="gap">⋯</span>}
            {h.lines.map((l, k) => (
              <span key={k} class={l[0] == "+" ? "add" : l[0] == "-" ? "del" : ""}>
                {plain(l)}
              </span>
            ))}
          </span>
        ))}
      </pre>
      {d.cut && <p class="dim">{t("diffCut")}</p>}
    </div>
  );
};

const statuses: Record<string, Key> = { running: "toolRunning", ok: "toolOk", failed: "toolFailed", rejected: "toolRejected", cancelled: "toolCancelled" };

const ToolView = ({ item, place }: { item: Item; place: Place }) => {
  const t = useWords();
  const tool = item.tool!;
  const [open, setOpen] = useState(false);
  const status = Object.hasOwn(statuses, tool.status) ? statuses[tool.status] : undefined;
  const changed = tool.diff.length > 0;
  const fold = (
    <details class={`tool ${status ? tool.status : ""}`} open={open} onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>
        <span class="grow">
          <strong>{oneLine(tool.name)}</strong> <code class="in">{oneLine(tool.title)}</code>
        </span>
        <small>
          {tool.exitCode ? `${tool.exitCode} · ` : ""}
          {tool.status == "running" ? (
            <>
              <span class="whilebusy">{t("toolRunning")}</span>
              <span class="whileidle">{t("toolNoResult")}</span>
              <span class="whilewaits">{t("toolWaits")}</span>
            </>
          ) : status ? (
            t(status)
          ) : (
            oneLine(tool.status)
          )}
        </small>
      </summary>
      {open && (
        <div class="body">
          {changed ? tool.diff.map((d, i) => <DiffView key={i} diff={d} />) : <Text body={tool.input} place={place} label={t("toolInput")} />}
          <Text body={tool.output} place={place} label={t("toolOutput")} />
          {item.images.map((p, i) => (
            <PictureView key={i} picture={p} place={place} />
          ))}
        </div>
      )}
    </details>
  );
  if (!tool.agent) return fold;
  return (
    <div class="sub">
      {fold}
      <button class="quiet small" onClick={() => place.openAgent(tool.agent)}>
        {t("openSubagent")}
      </button>
    </div>
  );
};

const Folded = ({ title, body, place }: { title: string; body: Body; place: Place }) => {
  const [open, setOpen] = useState(false);
  return (
    <details class="tool" open={open} onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>{title}</summary>
      {open && (
        <div class="body">
          <Markdown text={body.text} open={place.openLink} />
        </div>
      )}
    </details>
  );
};

const View = ({ item: i, place }: { item: Item; place: Place }) => {
  const t = useWords();
  const images = i.images.map((p, k) => <PictureView key={k} picture={p} place={place} />);
  switch (i.kind) {
    case "user":
    case "queued":
      return (
        <article class={`turn user ${i.pending ? "pending" : ""}`} aria-label={t("you")}>
          <header>
            {t("you")} {i.time !== undefined && <time>{clock(i.time)}</time>} {i.kind == "queued" && <span class="tag">{t("queuedTag")}</span>}
          </header>
          <Long body={i} place={place} />
          {images}
        </article>
      );
    case "text":
      return (
        <article class="turn">
          <Markdown text={i.text} open={place.openLink} />
          {i.blob && <Text body={{ ...i, text: "" }} place={place} />}
          {images}
        </article>
      );
    case "thinking":
      return <Folded title={t("thinking")} body={i} place={place} />;
    case "compaction":
      return <Folded title={t("compacted")} body={i} place={place} />;
    case "interrupted":
      return <p class="mark">{t("interruptedHere")}</p>;
    case "tool":
    case "subagent":
      return i.tool ? <ToolView item={i} place={place} /> : <p class="pre">{plain(i.text)}</p>;
    case "question":
      return (
        <article class="turn question">
          {i.questions.map((q, k) => (
            <div key={k}>
              <p>
                <strong>{plain(q.text)}</strong>
              </p>
              <ul>
                {q.options.map((o, n) => (
                  <li key={n} class={q.answer && q.answer.includes(o.label) ? "chosen" : ""}>
                    {oneLine(o.label)} {o.detail && <small>{oneLine(o.detail)}</small>}
                  </li>
                ))}
              </ul>
              {q.answer && <p class="dim">→ {plain(q.answer)}</p>}
            </div>
          ))}
        </article>
      );
    case "error":
    case "limit":
      return <p class="note bad pre">{plain(i.text)}</p>;
    case "command":
      return (
        <div class="turn">
          <Text body={i} place={place} />
        </div>
      );
    default:
      return (
        <div class="mark">
          <p class="pre">{plain(i.text)}</p>
          {images}
        </div>
      );
  }
};

/** A person's own long paste is folded. */
const LONG = 1200;
const Long = ({ body, place }: { body: Body; place: Place }) => {
  const t = useWords();
  const [all, set] = useState(false);
  if (body.text.length <= LONG || all) return body.blob ? <Text body={body} place={place} /> : <p class="pre">{plain(body.text)}</p>;
  return (
    <>
      <p class="pre">{plain(body.text.slice(0, LONG))}…</p>
      <button class="quiet small" onClick={() => set(true)}>
        {t("showAll", { size: sizeWords(body.bytes || body.text.length) })}
      </button>
    </>
  );
};

/** Drawn again only when the item itself was replaced. */
export const ItemView = memo(View);
