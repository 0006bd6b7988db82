// Messages that outlive their page.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Refused } from "../src/sessions/model.js";
import { Outbox, safeAgain, type KeptReply } from "../src/sessions/outbox.js";

const soon = () => new Promise((r) => setTimeout(r, 0));

/** A browser's storage, and a machine that answers when it is told to. */
const world = (now = Date.now()) => {
  const kept = new Map<string, KeptReply>();
  const drafts = new Set(["draft"]);
  /** Storage takes nothing more. */
  const full = { is: false };
  const asked: { params: any; answer(v: unknown): void; refuse(e: Refused): void; receipt(s: string): void; keptThen: number }[] = [];
  const time = { now };
  const page = () => {
    // A page that was closed hears nothing any more, and writes nothing.
    let open = true;
    const box = new Outbox("m", "s", {
      request: ((_m: string, _op: string, params: unknown, on: any) =>
        new Promise((answer, refuse) => asked.push({ params, answer, refuse, receipt: on.receipt, keptThen: kept.size }))) as any,
      keep: async (_m, _s, r, clear) => {
        if (!open || full.is) return false;
        kept.set(r.key, r);
        if (clear) drafts.clear();
        return true;
      },
      clear: async (_m, _s, text) => void (open && drafts.delete(text)),
      drop: async (_m, _s, key) => void (open && kept.delete(key)),
      kept: async () => [...kept.values()],
      now: () => time.now,
    });
    return { box, close: () => (open = false), states: () => box.shown.value.map((r) => r.state) };
  };
  return { kept, drafts, full, asked, page, time };
};

test("a message is kept before it is sent, and until it is accepted", async () => {
  const w = world();
  const { box, states } = w.page();
  void box.send("hello");
  await soon();
  const [call] = w.asked;
  assert.deepEqual([call!.params.text, call!.keptThen, w.drafts.size], ["hello", 1, 0]);
  call!.receipt("typed");
  assert.deepEqual([states(), w.kept.size], [["typed"], 1]);
  call!.answer({ state: "accepted", evidence: "the input box emptied" });
  await soon();
  assert.deepEqual([states(), w.kept.size], [["accepted"], 0]);
});

test("the next page finds what was not answered, and sends it under the same key", async () => {
  const w = world();
  const first = w.page();
  void first.box.send("hello");
  await soon();
  first.close();
  const second = w.page();
  await soon();
  const [r] = second.box.shown.value;
  assert.deepEqual([r!.state, r!.found, r!.text, safeAgain(r!)], ["lost", true, "hello", true]);
  void second.box.again(r!.key);
  await soon();
  assert.deepEqual(w.asked[1]!.params, w.asked[0]!.params);
  w.asked[1]!.answer({ state: "accepted" });
  await soon();
  assert.equal(w.kept.size, 0);
});

test("a connection that broke, the machine's no, and what stands in its input box are each still known after a reload", async () => {
  const w = world();
  const { box, close } = w.page();
  for (const text of ["a", "b", "c", "d"]) void box.send(text);
  await soon();
  w.asked[0]!.refuse(new Refused("lost", ""));
  w.asked[1]!.refuse(new Refused("no-composer", "the tool shows no input box"));
  w.asked[2]!.refuse(new Refused("composer", "", undefined, "half a line"));
  w.asked[3]!.answer({ state: "unconfirmed", reason: "nobody saw it" });
  await soon();
  close();
  const next = w.page();
  await soon();
  const all = [...next.box.shown.value].sort((x, y) => x.text.localeCompare(y.text));
  assert.deepEqual(all.map((r) => [r.state, r.words, safeAgain(r)]), [["lost", "", true], ["failed", "the tool shows no input box", true], ["composer", "half a line", false], ["unconfirmed", "nobody saw it", false]]);
  void next.box.again(all[2]!.key, true);
  await soon();
  assert.deepEqual([w.asked[4]!.params.append, w.asked[4]!.params.key], [true, w.asked[2]!.params.key]);
  for (const r of all) next.box.drop(r.key);
  await soon();
  assert.deepEqual([next.box.shown.value.length, w.kept.size], [0, 0]);
});

test("a machine forgets a key after a day: an older message is not sent again by a tap", async () => {
  const w = world();
  const { box } = w.page();
  void box.send("old");
  await soon();
  w.asked[0]!.refuse(new Refused("lost", ""));
  await soon();
  const [r] = box.shown.value;
  assert.deepEqual([safeAgain(r!, w.time.now), safeAgain(r!, w.time.now + 24 * 3600e3)], [true, false]);
});

test("a password is kept nowhere", async () => {
  const w = world();
  const { box } = w.page();
  void box.send("hunter2", true);
  await soon();
  assert.deepEqual([w.asked[0]!.params.text, w.asked[0]!.params.secret], ["hunter2", true]);
  assert.ok(!JSON.stringify([[...w.kept.values()], box.shown.value]).includes("hunter2"));
  w.asked[0]!.refuse(new Refused("lost", ""));
  await soon();
  assert.deepEqual([box.shown.value[0]!.state, safeAgain(box.shown.value[0]!), w.kept.size], ["lost", false, 0]);
});

test("storage that never answers holds no message up", async () => {
  let asked = 0;
  const box = new Outbox("m", "s", {
    request: (() => (asked++, new Promise(() => undefined))) as any,
    keep: () => new Promise(() => undefined), clear: async () => undefined, drop: async () => undefined, kept: async () => [], now: Date.now,
  });
  void box.send("hello");
  await new Promise((r) => setTimeout(r, 1300));
  assert.equal(asked, 1);
});

test("a message that may have arrived is not called untyped because a second try did not go out", async () => {
  for (const code of ["offline", "busy", "limit", "failed", "lost"]) {
    const w = world();
    const { box, states } = w.page();
    void box.send("hello");
    await soon();
    w.asked[0]!.refuse(new Refused("lost", ""));
    await soon();
    void box.again(box.shown.value[0]!.key);
    await soon();
    w.asked[1]!.refuse(new Refused(code, "not now"));
    await soon();
    assert.deepEqual([states(), [...w.kept.values()].map((r) => r.state)], [["lost"], ["lost"]], code);
    // What the machine says of it under its key is certain.
    void box.again(box.shown.value[0]!.key);
    await soon();
    w.asked[2]!.refuse(new Refused("dialog-open", "a dialog is open"));
    await soon();
    assert.deepEqual(states(), ["failed"], code);
  }
  const w = world();
  const { box, states } = w.page();
  void box.send("hello");
  await soon();
  w.asked[0]!.refuse(new Refused("offline", ""));
  await soon();
  assert.deepEqual(states(), ["failed"]);
});

test("where storage is full, what was accepted does not come back as a draft", async () => {
  const w = world();
  w.full.is = true;
  const { box, states } = w.page();
  for (const [i, text] of ["draft", "another"].entries()) {
    w.drafts.add("draft");
    void box.send(text);
    await soon();
    assert.equal(w.drafts.size, 1, "until then it is all that is left of it");
    w.asked[i]!.answer({ state: "accepted" });
    await soon();
    assert.equal(w.drafts.size, i);
  }
  assert.equal(states().at(-1), "accepted");
});

test("what another page has done with is not shown as open, and what this one sends has an end of its own", async () => {
  const w = world();
  const first = w.page();
  void first.box.send("hello");
  await soon();
  const second = w.page();
  await soon();
  const { key } = second.box.shown.value[0]!;
  first.box.gone(key);
  assert.deepEqual([first.states(), second.states()], [["sending"], ["lost"]]);
  second.box.gone(key);
  assert.deepEqual([first.states(), second.states()], [["sending"], []]);
});
