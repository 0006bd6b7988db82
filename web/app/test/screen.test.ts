// Output as it stands on the screen: in pieces, and when its program is over.

import assert from "node:assert/strict";
import { test } from "node:test";
import xterm from "@xterm/xterm";
import { OVER } from "../src/terminal/over.js";
import { begun, wholes } from "../src/terminal/whole.js";

// Second or third bytes of 0x80 are in all but the first and the last.
const text = "é、…c「d🀀–é👍";
const bytes = new TextEncoder().encode(text);

const screen = async (pieces: Iterable<Uint8Array>): Promise<string> => {
  const term = new xterm.Terminal({ cols: 60, rows: 3 });
  for (const p of pieces) await new Promise<void>((done) => term.write(p, done));
  const line = term.buffer.active.getLine(0)!.translateToString(true);
  term.dispose();
  return line;
};

test("a character that is cut between two pieces, or in all its bytes, is on the screen", async () => {
  const singly = wholes();
  assert.equal(await screen([...bytes].map((b) => singly.next(Uint8Array.of(b)))), text);
  for (let at = 0; at <= bytes.length; at++) {
    const whole = wholes();
    assert.equal(await screen([bytes.subarray(0, at), bytes.subarray(at)].map(whole.next)), text, `cut at ${at}`);
  }
});

test("xterm alone loses some of them: when it does not any more, whole.ts can go", async () => {
  assert.notEqual(await screen([...bytes].map((b) => Uint8Array.of(b))), text);
});

test("what is no UTF-8 goes on, byte for byte, three bytes late at most", () => {
  let seed = 7;
  const random = (n: number) => (seed = (seed * 1103515245 + 12345) % 2 ** 31) % n;
  const whole = wholes();
  const given: number[] = [];
  const got: number[] = [];
  for (let i = 0; i < 3000; i++) {
    const piece = Uint8Array.from({ length: random(6) }, () => 0x60 + random(0xa0));
    given.push(...piece);
    got.push(...whole.next(piece));
    assert(given.length - got.length <= 3);
  }
  assert.deepEqual(got, given.slice(0, got.length));
  assert.equal(begun(Uint8Array.of(0x80, 0x80, 0x80)), 0);
  assert.deepEqual([...whole.next(Uint8Array.of(0x61))].at(-1), 0x61);
  whole.next(Uint8Array.of(0xe3, 0x80));
  whole.clear();
  assert.deepEqual([...whole.next(Uint8Array.of(0x61))], [0x61]);
});

test("what a program said last stands on the screen when it is over, also on a smaller one", async () => {
  for (const [name, program, want] of [
    ["a shell", "1\r\n2\r\n3\r\n4\r\nthe last", ["the last", ""]],
    ["an editor", "1\r\n2\r\n3\r\n$ vi\x1b[?1049h\x1b[2J\x1b[H\x1b[?25l\x1b[1;31mtext", ["$ vi", ""]],
  ] as const) {
    const term = new xterm.Terminal({ cols: 20, rows: 5, allowProposedApi: true });
    for (const piece of [program, OVER]) await new Promise<void>((done) => term.write(piece, done));
    term.resize(20, 2);
    const { active } = term.buffer;
    assert.equal(active.type, "normal", name);
    const line = (row: number) => active.getLine(active.baseY + row)!.translateToString(true);
    assert.deepEqual([line(0), line(1)], want, name);
    assert.deepEqual([active.cursorX, active.cursorY], [0, 1], name);
    term.dispose();
  }
});
