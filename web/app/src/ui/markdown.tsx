// Markdown of a transcript. It is read into tokens and drawn as elements of this
// page's own choosing: no HTML text is ever made, so there is nothing that could
// run, and nothing is loaded. HTML in it is shown as the text that it is, a
// picture as its words, and an address is opened after a question only.

import { Lexer, type Token, type Tokens } from "marked";
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { t as words } from "../i18n/index.js";
import { longWord, plain } from "../sessions/plain.js";

/** Deeper nesting is no text that a person wrote. */
const MAX_DEPTH = 12;

const entities: Record<string, string> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };
const unescape = (s: string): string => s.replace(/&(?:amp|lt|gt|quot|#39);/g, (e) => entities[e]!);

export const linkOf = (href: string): string | undefined => {
  if (!/^https?:\/\//i.test(href) || !URL.canParse(href)) return undefined;
  return new URL(href).href;
};

const inline = (tokens: readonly Token[] | undefined, open: (href: string) => void, depth: number): ComponentChildren =>
  tokens?.map((t, i) => {
    if (depth > MAX_DEPTH) return t.raw;
    switch (t.type) {
      case "strong":
        return <strong key={i}>{inline(t["tokens"], open, depth + 1)}</strong>;
      case "em":
        return <em key={i}>{inline(t["tokens"], open, depth + 1)}</em>;
      case "del":
        return <del key={i}>{inline(t["tokens"], open, depth + 1)}</del>;
      case "codespan":
        return <code key={i} class="in">{unescape((t as Tokens.Codespan).text)}</code>;
      case "br":
        return <br key={i} />;
      case "link": {
        const href = linkOf((t as Tokens.Link).href);
        const words = inline(t["tokens"], open, depth + 1);
        return href ? (
          <button key={i} class="link" onClick={() => open(href)}>
            {words}
          </button>
        ) : (
          <span key={i}>{words}</span>
        );
      }
      case "image":
        return <span key={i}>[{(t as Tokens.Image).text || (t as Tokens.Image).href}]</span>;
      case "escape":
        return (t as Tokens.Escape).text;
      case "text":
        return t["tokens"] ? inline(t["tokens"], open, depth + 1) : unescape((t as Tokens.Text).text);
      default:
        return t.raw;
    }
  });

const blocks = (tokens: readonly Token[], open: (href: string) => void, depth: number): ComponentChildren =>
  tokens.map((t, i) => {
    if (depth > MAX_DEPTH) return <p key={i}>{t.raw}</p>;
    switch (t.type) {
      case "space":
      case "def":
        return null;
      case "heading":
        return <p key={i} class="heading">{inline(t["tokens"], open, depth)}</p>;
      case "paragraph":
        return <p key={i}>{inline(t["tokens"], open, depth)}</p>;
      case "code":
        return (
          <pre key={i} tabIndex={0} role="region" aria-label={words("textLabel")}>
            <code>{(t as Tokens.Code).text}</code>
          </pre>
        );
      case "hr":
        return <hr key={i} />;
      case "blockquote":
        return <blockquote key={i}>{blocks((t as Tokens.Blockquote).tokens, open, depth + 1)}</blockquote>;
      case "list": {
        const l = t as Tokens.List;
        const items = l.items.map((it, k) => (
          <li key={k}>
            {it.task && (it.checked ? "☑ " : "☐ ")}
            {blocks(it.tokens.filter((x) => x.type != "checkbox"), open, depth + 1)}
          </li>
        ));
        return l.ordered ? <ol key={i} start={Number(l.start) || 1}>{items}</ol> : <ul key={i}>{items}</ul>;
      }
      case "table": {
        const tb = t as Tokens.Table;
        return (
          <div key={i} class="table" tabIndex={0} role="region" aria-label={words("tableLabel")}>
            <table>
              <thead>
                <tr>
                  {tb.header.map((c, k) => (
                    <th key={k}>{inline(c.tokens, open, depth + 1)}</th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {tb.rows.map((r, k) => (
                  <tr key={k}>
                    {r.map((c, n) => (
                      <td key={n}>{inline(c.tokens, open, depth + 1)}</td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        );
      }
      case "text":
        return <span key={i}>{inline(t["tokens"] ?? [t], open, depth + 1)}</span>;
      default:
        return <p key={i} class="pre">{t.raw}</p>;
    }
  });

export const Markdown = ({ text, open }: { text: string; open: (href: string) => void }) => {
  const drawn = useMemo(() => {
    const safe = plain(text);
    // It is shown as it is.
    if (longWord(safe)) return <p class="pre">{safe}</p>;
    try {
      return blocks(new Lexer({ gfm: true, breaks: true }).lex(safe), open, 0);
    } catch {
      return <p class="pre">{safe}</p>;
    }
  }, [text]);
  return <div class="md">{drawn}</div>;
};
