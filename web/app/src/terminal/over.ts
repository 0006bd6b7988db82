/**
 * Takes back whatever a program that has ended may have set: the other screen,
 * the mouse, brackets of pastes, a hidden cursor, colours. The cursor goes to a
 * line of its own behind what the program said last: leaving the other screen
 * puts it where it was saved, also where there is none to leave, and so it is
 * saved first. Lines below it would be lost when the screen gets smaller.
 */
export const OVER = "\x1b[!p\x1b7\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m\r\n";
