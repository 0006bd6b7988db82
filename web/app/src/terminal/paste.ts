// Text that comes from outside into a terminal: never a key that the person did
// not press.

const START = "\x1b[200~";
const END = "\x1b[201~";

/** As much text as goes in at once: more is a file, and the queue to the machine is bounded. */
export const MAX_PASTE = 2 << 20;

/**
 * Text without what a terminal would take for a command: escape sequences could
 * end the bracket that a program trusts, and run what follows.
 * Line ends become what Enter sends.
 */
export const sanitize = (text: string): string => text.replace(/\r\n?|\n/g, "\r").replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]/g, "");

/** What to send for pasted text; bracketed: the program has asked for brackets. */
export const pasteBytes = (text: string, bracketed: boolean): string => {
  const clean = sanitize(text);
  return bracketed ? START + clean + END : clean;
};

/** Lines of text that would each run at once in a program without brackets. */
export const linesThatRun = (text: string, bracketed: boolean): number => (bracketed ? 0 : sanitize(text).split("\r").length - 1);
