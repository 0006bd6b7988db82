// Typing, keys and pastes: text in, bytes out.

import assert from "node:assert/strict";
import { test } from "node:test";
import { control, keyBytes, modified } from "../src/terminal/keys.js";
import { createMirror, PAD } from "../src/terminal/mirror.js";
import { linesThatRun, pasteBytes, sanitize } from "../src/terminal/paste.js";

const DEL = "\x7f";

/** The field's values one after the other, and what is sent for each. */
const typed = (...values: string[]) => {
  const m = createMirror();
  return values.map((v) => m.changed(PAD + v));
};

test("letters are sent as they come", () => {
  assert.deepEqual(typed("l", "ls", "ls "), ["l", "s", " "]);
});

test("a suggestion takes back the word that it replaces", () => {
  assert.deepEqual(typed("teh", "the "), ["teh", DEL.repeat(2) + "he "]);
});

test("text in the middle sends the tail again, not the whole line", () => {
  assert.deepEqual(typed("hello", "Xhello".slice(0, 6)), ["hello", DEL.repeat(5) + "Xhello"]);
  assert.deepEqual(typed("olleh", "olXleh"), ["olleh", DEL.repeat(3) + "Xleh"]);
});

test("a character is one DEL, however many units it has", () => {
  assert.deepEqual(typed("a😀", "a"), ["a😀", DEL]);
  assert.deepEqual(typed("한", "하"), ["한", DEL + "하"]);
});

test("dictation that grows is sent once", () => {
  assert.deepEqual(typed("show me", "show me the log", "Show me the log."), ["show me", " the log", DEL.repeat(15) + "Show me the log."]);
});

test("backspace on an empty field is a DEL for each character of the pad", () => {
  const m = createMirror();
  assert.equal(m.changed(PAD.slice(1)), DEL);
  assert.equal(m.value, PAD);
  assert.equal(m.changed(PAD.slice(3)), DEL.repeat(3));
});

test("what is typed after eating the pad is not lost", () => {
  const m = createMirror();
  assert.equal(m.changed(PAD + "ab"), "ab");
  assert.equal(m.changed("x"), DEL.repeat(10) + "x");
  assert.equal(m.value, PAD + "x");
});

test("text typed before the pad is typed at the start of the line", () => {
  const m = createMirror();
  m.changed(PAD + "ls");
  assert.equal(m.changed("X" + PAD + "ls"), DEL.repeat(2) + "Xls");
  assert.equal(m.value, PAD + "Xls");
});

test("a no-break space of the keyboard is a space", () => {
  assert.deepEqual(typed("a\u00a0b"), ["a b"]);
});

test("after a reset nothing is taken back", () => {
  const m = createMirror();
  m.changed(PAD + "make");
  m.reset();
  assert.equal(m.changed(PAD + "x"), "x");
});

test("a very long line stays cheap and right", () => {
  const m = createMirror();
  const sent = [m.changed(PAD + "x".repeat(500)), m.changed(m.value + "y")];
  assert.deepEqual(sent, ["x".repeat(500), "y"]);
  assert.ok(m.value.length < 200);
});

test("any edit of any text is undone and redone exactly", () => {
  // A line editor that knows DEL and characters must hold what the field holds.
  let seed = 7;
  const random = (n: number) => (seed = (seed * 1103515245 + 12345) & 0x7fffffff) % n;
  const letters = [..."ab漢😀é "];
  const m = createMirror();
  let field: string[] = [];
  let line: string[] = [];
  for (let i = 0; i < 5000; i++) {
    const at = random(field.length + 1);
    const cut = random(3);
    field.splice(at, cut, ...Array.from({ length: random(3) }, () => letters[random(letters.length)]!));
    if (field.length > 60) field = field.slice(0, 20);
    for (const c of m.changed(PAD + field.join(""))) c == DEL ? line.pop() : line.push(c);
    assert.equal(line.join(""), field.join(""));
  }
});

test("arrows follow the cursor mode, and modifiers are told", () => {
  const normal = { applicationCursor: false };
  const app = { applicationCursor: true };
  assert.equal(keyBytes("ArrowUp", {}, normal), "\x1b[A");
  assert.equal(keyBytes("ArrowUp", {}, app), "\x1bOA");
  assert.equal(keyBytes("ArrowLeft", { ctrl: true }, app), "\x1b[1;5D");
  assert.equal(keyBytes("Tab", { shift: true }, normal), "\x1b[Z");
  assert.equal(keyBytes("PageUp", {}, normal), "\x1b[5~");
  assert.equal(keyBytes("Delete", { shift: true }, normal), "\x1b[3;2~");
  assert.equal(keyBytes("F1", {}, normal), "\x1bOP");
  assert.equal(keyBytes("F5", { alt: true }, normal), "\x1b[15;3~");
  assert.equal(keyBytes("a", {}, normal), undefined);
});

test("control and alt change the first character only", () => {
  assert.equal(modified("c", { ctrl: true }), "\x03");
  assert.equal(modified("cat", { ctrl: true }), "\x03at");
  assert.equal(modified("b", { alt: true }), "\x1bb");
  assert.equal(control("["), "\x1b");
  assert.equal(control(" "), "\0");
  assert.equal(control("漢"), undefined);
});

test("a paste cannot break out of its brackets", () => {
  const evil = "a\x1b[201~\nrm -rf /\n\x9b201~\x07b";
  const sent = pasteBytes(evil, true);
  assert.equal(sent, "\x1b[200~a[201~\rrm -rf /\r201~b\x1b[201~");
  assert.equal(sent.match(/\x1b/g)!.length, 2);
  assert.equal(sanitize("a\tb\r\nc"), "a\tb\rc");
});

test("lines that would run at once are counted", () => {
  assert.equal(linesThatRun("a\nb\nc", false), 2);
  assert.equal(linesThatRun("a\nb\nc", true), 0);
  assert.equal(linesThatRun("a", false), 0);
});
