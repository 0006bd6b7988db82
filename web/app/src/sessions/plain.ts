// Text of a machine as a page shows it: control characters become pictures, and
// what would change the direction of text or cannot be seen is left out, so that
// what a person reads is what there is.

// Bidirectional marks, embeddings, overrides and isolates; invisible characters
// and tags. Joiners stay: emoji and several scripts are written with them.
const UNSEEN = /[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

/** Keeps line breaks and tabs. */
export const plain = (s: string): string =>
  s
    .replace(/\r\n?/g, "\n")
    .replace(UNSEEN, "")
    .replace(CONTROL, (c) => {
      const n = c.charCodeAt(0);
      return n < 0x20 ? String.fromCharCode(0x2400 + n) : n == 0x7f ? "\u2421" : "\ufffd";
    });

/** On one line. */
export const oneLine = (s: string): string => plain(s).replace(/\s+/g, " ").trim();

/** Half would take long addresses for it; with twice, a phone looks for addresses and emphasis in one word for seconds. */
const MAX_WORD = 1000;

/** Whether a word of ASCII is so long that nobody wrote it, and reading it as Markdown would hold up the page: that takes the square of its length. */
export const longWord = (s: string): boolean => s.split(/[^!-~]+/).some((w) => w.length > MAX_WORD);
