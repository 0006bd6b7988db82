// What a person types, from a text field of our own.
//
// A soft keyboard does not press keys: it edits text. It composes, corrects the
// word before last, dictates a phrase twice, and sends every key as 229. So the
// field is the truth: whenever its text has changed outside a composition, the
// terminal is sent what turns the old text into the new one: as many DEL as
// characters went at the end, then what came instead. That is right for every
// line editor, and needs to know nothing of the keyboard.
//
// This file is the pure part: text in, bytes out. field.ts holds the element.

/**
 * Stands at the start of the field, so that a soft keyboard has something to
 * delete when the person has typed nothing: backspace on an empty field makes no
 * event at all. Eight: GBoard deletes faster when held, and events come late.
 */
export const PAD = "\u00a0".repeat(8);
const DEL = "\x7f";

/** Text so long is not corrected backwards any more; a longer field costs every key. */
const MAX_TEXT = 400;
const KEEP = 100;

export interface Mirror {
  /** The field's text is now this, outside any composition: what to send. */
  changed(value: string): string;
  /** What the field should hold now; differs from what it holds after a reset, or when the pad was eaten. */
  readonly value: string;
  /** Nothing was typed since the last reset. */
  readonly empty: boolean;
  /** The line is another one: Enter, Ctrl-C, an arrow. The field starts anew. */
  reset(): void;
}

const points = (s: string): string[] => [...s];

export const createMirror = (): Mirror => {
  let text = ""; // what follows the pad, as it was sent
  return {
    changed(value) {
      // How much of the pad is left: the rest was deleted, or replaced by an
      // edit that began before the text.
      let pad = 0;
      while (pad < PAD.length && value[pad] == "\u00a0") pad++;
      let rest = value.slice(pad);
      // The caret stood before the pad, which is still whole.
      const whole = pad < PAD.length ? value.indexOf(PAD) : -1;
      if (whole >= 0) [pad, rest] = [PAD.length, value.slice(0, whole) + value.slice(whole + PAD.length)];
      const eaten = PAD.length - pad;
      const after = rest.replace(/\u00a0/g, " ");
      const [old, next] = [points(text), points(after)];
      let same = 0;
      if (!eaten) while (same < old.length && same < next.length && old[same] == next[same]) same++;
      const out = DEL.repeat(old.length - same + eaten) + next.slice(same).join("");
      text = after.length > MAX_TEXT ? after.slice(-KEEP) : after;
      return out.replace(/\r?\n/g, "\r");
    },
    get value() {
      return PAD + text;
    },
    get empty() {
      return !text;
    },
    reset() {
      text = "";
    },
  };
};
