// Characters that are cut where one piece of output ends and the next begins.

import { concat } from "../pairing/bytes.js";

/** How many bytes at the end of data are the beginning of a character of UTF-8, and not all of it. */
export const begun = (data: Uint8Array): number => {
  for (let n = 1; n < 4 && n <= data.length; n++) {
    const b = data[data.length - n]!;
    if (b < 0x80) return 0;
    if (b >= 0xc0) return n < (b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4) ? n : 0;
  }
  return 0;
};

/**
 * Gives each piece of a stream up to its last whole character, and what is left
 * with the next. xterm keeps such bytes itself, but (6.0.0) takes 0x80 among
 * them for none, and loses the dash, the ellipsis and every other character
 * whose second or third byte that is.
 */
export const wholes = () => {
  let left = new Uint8Array(0);
  return {
    next(data: Uint8Array): Uint8Array {
      const all = left.length ? concat(left, data) : data;
      const end = all.length - begun(all);
      left = all.slice(end);
      return all.subarray(0, end);
    },
    /** Another stream begins. */
    clear(): void {
      left = new Uint8Array(0);
    },
  };
};
