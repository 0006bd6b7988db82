// What the page says, and how it is set.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { en } from "../src/i18n/en.js";
import { ja } from "../src/i18n/ja.js";
import { foreignRelay } from "../src/pairing/link.js";
import { pieces } from "../src/ui/coded.js";
import { comes } from "../src/ui/words.js";
import type { LinkState, Phase } from "../src/worker/messages.js";
import { parseSessions } from "../src/worker/tmux.js";

test("what stands between marks is code, and a mark by itself is a mark", () => {
  assert.deepEqual(pieces("run `holdfast up` (or `holdfast pair`), then"), ["run ", "holdfast up", " (or ", "holdfast pair", "), then"]);
  assert.deepEqual(pieces("`a`"), ["", "a", ""]);
  assert.deepEqual(pieces("none"), ["none"]);
  assert.deepEqual(pieces("`a` and ` more"), ["", "a", " and ` more"]);
});

test("both languages have the same values to fill in and the same code", () => {
  const of = (s: string, what: RegExp) => [...new Set(s.match(what) ?? [])].sort();
  for (const [key, text] of Object.entries(en)) {
    const other = ja[key as keyof typeof ja];
    assert.ok(other, key);
    assert.deepEqual(of(other, /\{\w+\}/g), of(text, /\{\w+\}/g), key);
    assert.deepEqual(of(other, /`[^`]*`/g), of(text, /`[^`]*`/g), key);
  }
});

test("no sentence with code in it is shown as plain text", () => {
  const coded = Object.entries(en).filter(([, text]) => text.includes("`")).map(([key]) => key);
  assert.ok(coded.length > 0);
  for (const file of readdirSync("src/ui").filter((f) => f.endsWith(".tsx"))) {
    const source = readFileSync(`src/ui/${file}`, "utf8");
    // Those of faults have one way to the screen.
    for (const call of [...coded.map((k) => `t("${k}"`), "faultWords("])
      for (let at = source.indexOf(call); at >= 0; at = source.indexOf(call, at + 1)) assert.ok(source.slice(0, at).endsWith("<Coded>{"), `${file}: ${call}`);
  }
  for (const key of coded) assert.ok(key.startsWith("fault") || readdirSync("src/ui").some((f) => readFileSync(`src/ui/${f}`, "utf8").includes(`<Coded>{t("${key}"`)), key);
});

test("a link of another origin than the page's is another relay's", () => {
  for (const [relay, want] of [["https://relay.example", false], ["https://relay.example/at", false], ["https://relay.example:8443", true], ["http://relay.example", true], ["https://relay.example.net", true], ["https://other.example", true]] as const)
    assert.equal(foreignRelay(relay, "https://relay.example"), want, relay);
});

test("a machine that was not asked yet or is being connected to comes; one that waits or has stopped does not", () => {
  const link = (phase: Phase): LinkState => ({ phase, suspect: false, proof: undefined, retryAt: undefined, why: undefined, postQuantum: undefined, service: "ssh", server: undefined });
  for (const phase of ["idle", "dialing", "version", "kex", "auth", "up"] as const) assert.ok(comes(false, link(phase), ""), phase);
  for (const phase of ["waiting", "stopped"] as const) assert.ok(!comes(false, link(phase), ""), phase);
  assert.ok(!comes(false, link("up"), "this machine tells no sessions"));
  assert.ok(comes(true, link("waiting"), ""));
});

test("a tmux session is said to be open in the terminals that show it, not in the agent that listens to it", () => {
  assert.deepEqual(parseSessions("$0 client-23068 claude\n$1 /dev/pts/3,client-23068,/dev/ttys004 two words\n$12  alone\nno server running\n$x /dev/pts/1 bad\n"), [
    { id: "$0", attached: 0, name: "claude" },
    { id: "$1", attached: 2, name: "two words" },
    { id: "$12", attached: 0, name: "alone" },
  ]);
});
