// Push messages, held to the vectors that the machine's side is held to.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { cacheOf, left, windowsOf } from "../src/push/files.js";
import { base64url, namer, readMessage } from "../src/push/message.js";
import { renew, tells, type Renewal } from "../src/push/renew.js";
import { show, type Shown } from "../src/push/show.js";

const vectors = JSON.parse(readFileSync("../../testdata/vectors/sessions/push.json", "utf8")) as {
  names: { as: string; session: string; name: string }[];
  messages: { text: string; test?: boolean; new: string[]; open: string[]; more: number }[];
};

test("names of sessions", async () => {
  assert.ok(vectors.names.length > 0);
  for (const v of vectors.names) assert.equal(await (await namer(v.as))(v.session), v.name);
});

test("messages", async () => {
  assert.ok(vectors.messages.length > 0);
  for (const v of vectors.messages) {
    const m = readMessage(v.text)!;
    const name = await namer(m.as);
    assert.deepEqual(m.open, await Promise.all(v.open.map(name)));
    assert.deepEqual([m.fresh, m.more, m.test], [v.new.length, v.more, !!v.test]);
  }
});

test("what is no message of ours is none, and counts are bounded", () => {
  for (const text of [undefined, "", "null", "[]", "7", '{"v":2,"as":"abcdefghijklmnop"}', '{"v":1}', '{"v":1,"as":7}', '{"v":1,"as":"a b"}', `{"v":1,"as":"${"a".repeat(65)}"}`]) assert.equal(readMessage(text), undefined, text);
  const m = readMessage(JSON.stringify({ v: 1, as: "abcdefghijklmnop", new: 1e9, open: [7, null, "ok", "<b>", ...Array(500).fill("x")], more: -4 }))!;
  assert.deepEqual([m.open.length, m.fresh, m.more, m.open[0]], [64, 64, 0, "ok"]);
  assert.equal(readMessage('{"v":1,"as":"abcdefghijklmnop","new":0.5,"open":"x"}')!.fresh, 0);
});

interface Note {
  title: string;
  tag: string;
  body: string;
  silent: boolean;
  data: Shown;
}

/** A browser's notifications: one with the same tag takes the place of the one before. */
const desk = () => {
  const notes = new Map<string, Note>();
  return {
    notes,
    showNotification: async (title: string, o: Record<string, unknown>) => void notes.set(o["tag"] as string, { title, ...(o as object) } as Note),
    getNotifications: async () => [...notes.values()].map((n) => ({ ...n, close: () => void (notes.get(n.tag) == n && notes.delete(n.tag)) })),
  };
};

test("every message shows something, whatever it says", async () => {
  const as = "abcdefghijklmnop";
  for (const text of [undefined, "junk", JSON.stringify({ v: 1, as }), JSON.stringify({ v: 1, as, test: true }), JSON.stringify({ v: 1, as, new: 1, open: ["x"] })]) {
    const d = desk();
    await show(d, text, () => undefined);
    assert.equal(d.notes.size, 1, text);
  }
});

test("a call, a second one, and one after the other answered", async () => {
  const as = "abcdefghijklmnop";
  const d = desk();
  const say = (m: object) => show(d, JSON.stringify({ v: 1, as, ...m }), () => undefined);
  const calls = () => [...d.notes.values()].filter((n) => !n.data.done).map((n) => n.data.name).sort();
  await say({ new: 1, open: ["one"] });
  assert.deepEqual(calls(), ["one"]);
  await say({ new: 1, open: ["two", "one"] });
  assert.deepEqual(calls(), ["one", "two"]);
  // Another machine's are left alone.
  await show(d, JSON.stringify({ v: 1, as: "ponmlkjihgfedcba", new: 1, open: ["three"] }), () => undefined);
  await say({ open: ["two"] });
  assert.deepEqual(calls(), ["three", "two"]);
  const quiet = [...d.notes.values()].filter((n) => n.data.done);
  assert.deepEqual(quiet.map((n) => [n.data.name, n.silent]), [["one", true]]);
  await say({ new: 1, open: ["four", "two"] });
  assert.deepEqual(calls(), ["four", "three", "two"]);
  assert.equal([...d.notes.values()].filter((n) => n.data.done).length, 0);
  await say({});
  assert.deepEqual(calls(), ["three"]);
  assert.equal([...d.notes.values()].filter((n) => n.data.done).length, 1);
});

test("many at once are a few notifications and a number", async () => {
  const d = desk();
  await show(d, JSON.stringify({ v: 1, as: "abcdefghijklmnop", new: 16, open: Array.from({ length: 16 }, (_, i) => `s${i}`), more: 20 }), () => undefined);
  assert.equal(d.notes.size, 5);
  assert.match([...d.notes.values()].at(-1)!.body, /32/);
});

test("two exports of the page on one origin leave each other's files alone", () => {
  const [a, b, under] = ["https://x.example/a/", "https://x.example/b/", "https://x.example/a/a/"];
  const names = [cacheOf(a, "1"), cacheOf(a, "2"), cacheOf(b, "1"), cacheOf(under, "1"), "somebody else's"];
  assert.equal(new Set(names).size, names.length);
  assert.deepEqual(left(names, a, "2"), [cacheOf(a, "1")]);
  assert.deepEqual(left(names, b, "1"), []);
});

test("a tap on a notification leads to a window of this page, and to no other of its origin", () => {
  const all = ["https://x.example/a/#/m/1", "https://x.example/a/index.html#/", "https://x.example/a/b/#/", "https://x.example/", "https://x.example/a/v1?x=/a/", "https://x.example/a", "about:blank"].map((url) => ({ url }));
  assert.deepEqual(windowsOf(all, "https://x.example/a/").map((w) => w.url), ["https://x.example/a/#/m/1", "https://x.example/a/index.html#/"]);
});

test("a subscription that the browser has changed is made anew with the same key, and machines are to be told", async () => {
  const key = base64url(new Uint8Array(65).fill(4));
  const scene = (on: boolean | undefined, fails = false) => {
    const did: unknown[] = [];
    const how: Renewal = {
      device: async () => (on === undefined ? undefined : { on, vapid: { public: key, private: "" } }),
      keepChanged: async () => void did.push("kept"),
      subscribe: async (o) => {
        did.push(base64url(o.applicationServerKey) == key && o.userVisibleOnly);
        if (fails) throw new Error("no service");
      },
      tell: async () => void did.push("told"),
    };
    return { did, how };
  };
  for (const [on, made, fails, want] of [
    [true, false, false, ["kept", true, "told"]],
    [true, true, false, ["kept", "told"]],
    [true, false, true, ["kept", true, "told"]],
    [false, false, false, []],
    [undefined, false, false, []],
  ] as const) {
    const { did, how } = scene(on, fails);
    await renew(made, how);
    assert.deepEqual(did, want);
  }
});

test("a machine is told of what it does not have, and an ended subscription is the person's to make anew", () => {
  const on = { on: true, ended: false };
  const ended = { on: false, ended: true };
  assert.ok(tells({ on: false, ended: false }, undefined, "new", false));
  assert.ok(tells(on, "new", "new", false), "told before this page was opened, which may not have arrived");
  assert.ok(!tells(on, "new", "new", true));
  assert.ok(!tells(ended, "same", "same", false));
  assert.ok(!tells(ended, undefined, "same", false));
  assert.ok(tells(ended, "old", "new", false));
});
