// Keys as the bytes that a terminal sends: xterm's encoding, with the modes that
// the program has set.

export interface Modifiers {
  shift?: boolean;
  alt?: boolean;
  ctrl?: boolean;
}

export interface KeyModes {
  /** DECCKM: arrows, Home and End are SS3 instead of CSI. */
  applicationCursor: boolean;
}

const ESC = "\x1b";

/** Keys that end in a letter. */
const letters: Record<string, string> = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", End: "F", Home: "H", F1: "P", F2: "Q", F3: "R", F4: "S" };
/** Keys that are a number and a tilde. */
const numbers: Record<string, number> = { Insert: 2, Delete: 3, PageUp: 5, PageDown: 6, F5: 15, F6: 17, F7: 18, F8: 19, F9: 20, F10: 21, F11: 23, F12: 24 };

/** What a named key sends; undefined for one that is text, or unknown. */
export const keyBytes = (key: string, m: Modifiers, modes: KeyModes): string | undefined => {
  const mods = 1 + (m.shift ? 1 : 0) + (m.alt ? 2 : 0) + (m.ctrl ? 4 : 0);
  const alt = m.alt ? ESC : "";
  switch (key) {
    case "Enter":
      return alt + "\r";
    case "Escape":
      return alt + ESC;
    case "Tab":
      return m.shift ? ESC + "[Z" : alt + "\t";
    case "Backspace":
      return alt + (m.ctrl ? "\b" : "\x7f");
  }
  const letter = letters[key];
  if (letter) {
    if (mods > 1) return `${ESC}[1;${mods}${letter}`;
    const ss3 = key.startsWith("F") || modes.applicationCursor;
    return ESC + (ss3 ? "O" : "[") + letter;
  }
  const number = numbers[key];
  if (number) return mods > 1 ? `${ESC}[${number};${mods}~` : `${ESC}[${number}~`;
  return undefined;
};

/** What Ctrl makes of a character: undefined where it makes nothing. */
export const control = (c: string): string | undefined => {
  if (c.length != 1) return undefined;
  const u = c.toUpperCase();
  if (u >= "@" && u <= "_") return String.fromCharCode(u.charCodeAt(0) & 0x1f);
  const more: Record<string, string> = { " ": "\0", "2": "\0", "3": ESC, "4": "\x1c", "5": "\x1d", "6": "\x1e", "7": "\x1f", "8": "\x7f", "/": "\x1f", "?": "\x7f", "-": "\x1f" };
  return more[c];
};

/** Applies the sticky modifiers of the key row to text that was typed: to its first character only. */
export const modified = (text: string, m: Modifiers): string => {
  const [first, ...rest] = text;
  if (!first) return text;
  const one = m.ctrl ? (control(first) ?? first) : first;
  return (m.alt ? ESC : "") + one + rest.join("");
};
