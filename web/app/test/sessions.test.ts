// The sessions protocol: the exchanges that every client must pass, the limits
// on what a machine may say, and the order of the list.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { createClient, MAX_LINE, MAX_OPEN, type Follower } from "../src/sessions/client.js";
import { readPage, readRows, readSession, Refused, type Session } from "../src/sessions/model.js";
import { arrange, matches, type Row } from "../src/sessions/order.js";
import { longWord, oneLine, plain } from "../src/sessions/plain.js";
import { askedOf, nameOf, waitingTool } from "../src/ui/sessionwords.js";

const vectors = JSON.parse(readFileSync("../../testdata/vectors/sessions/client.json", "utf8"));
const bytes = (s: string) => new TextEncoder().encode(s);

const scene = () => {
  const lines: any[] = [];
  const heard: string[] = [];
  const end: { code?: string } = {};
  const client = createClient(
    (line) => lines.push(JSON.parse(line)),
    {
      hello: () => heard.push("hello"),
      complete: (all) => heard.push(`all ${all.length}`),
      change: (s) => heard.push(`change ${s.id} ${s.name}`),
      gone: (id) => heard.push(`gone ${id}`),
      ended: (code) => (end.code = code),
    },
    { program: "test", now: () => 1000 },
  );
  const say = (m: unknown) => client.feed(bytes(JSON.stringify(m) + "\n"));
  return { client, lines, heard, end, say };
};

for (const c of vectors.cases)
  test(`vector: ${c.name}`, async () => {
    const { client, lines, end, say } = scene();
    const calls = new Map<string, { result?: any; error?: Refused; receipts: string[] }>();
    for (const step of c.steps) {
      await new Promise((r) => setImmediate(r));
      if (step.device) {
        const got = lines.shift();
        for (const [k, v] of Object.entries(step.device)) v === null ? assert.equal(k in got, false) : assert.deepEqual(got[k], v);
      } else if ("machine" in step) {
        step.machine ? say(step.machine) : client.end();
      } else if (step.call) {
        const made: { result?: any; error?: Refused; receipts: string[] } = { receipts: [] };
        calls.set(step.call.as, made);
        client.call(step.call.op, step.call.params, { receipt: (s) => made.receipts.push(s) }).then(
          (r) => (made.result = r),
          (e) => (made.error = e),
        );
      } else if (step.known) {
        assert.deepEqual(Object.fromEntries([...client.sessions].map(([k, s]) => [k, s.name])), step.known.sessions);
        assert.equal(client.complete, step.known.complete);
      } else if (step.result) {
        const made = calls.get(step.result.as)!;
        for (const [k, v] of Object.entries(step.result.result)) assert.deepEqual(made.result[k], v);
        if (step.result.receipts) assert.deepEqual(made.receipts, step.result.receipts);
      } else if (step.error) {
        const e = calls.get(step.error.as)!.error!;
        assert.equal(e.code, step.error.code);
        assert.equal(e.dialog?.digest, step.error.dialog);
      } else if (step.broken) {
        assert.equal(calls.get(step.broken.as)!.error!.code, "lost");
      } else if ("ended" in step) {
        assert.equal(end.code, step.ended);
      } else assert.fail(`unknown step ${JSON.stringify(step)}`);
    }
  });

test("lines are put together however they are cut", () => {
  const { client, heard } = scene();
  const all = bytes(['{"op":"hello","version":1}', '{"op":"snapshot","sessions":[{"id":"a:%1","name":"日本"}]}', ""].join("\n"));
  for (const b of all) client.feed(Uint8Array.of(b));
  assert.deepEqual(heard, ["hello", "all 1"]);
  assert.equal(client.sessions.get("a:%1")!.name, "日本");
});

test("a line without end is not gathered for ever", () => {
  const { client, end, say } = scene();
  say({ op: "hello", version: 1 });
  const piece = new Uint8Array(1 << 16).fill(120);
  for (let n = 0; n <= MAX_LINE; n += piece.length) client.feed(piece);
  assert.equal(end.code, "syntax");
});

test("something that prints before the protocol is said not to be a hello", () => {
  const { client, end } = scene();
  client.feed(bytes("Welcome to mini!\n"));
  assert.equal(end.code, "syntax");
});

test("requests beyond the machine's limit wait for their turn", () => {
  const { client, lines, say } = scene();
  say({ op: "hello", version: 1 });
  lines.length = 0;
  for (let i = 0; i < MAX_OPEN + 3; i++) client.call("ping").catch(() => undefined);
  assert.equal(lines.length, MAX_OPEN);
  say({ op: "answer", id: 5, result: {} });
  assert.equal(lines.length, MAX_OPEN + 1);
});

test("a follow tells until the machine ends it", async () => {
  const { client, say } = scene();
  say({ op: "hello", version: 1 });
  const got: unknown[] = [];
  let id = 0;
  let over = "";
  const on: Follower = { started: (n) => (id = n), items: (r) => got.push(r), over: (w) => (over = w.code) };
  const answered = client.call("follow", { session: "a:%1" }, on);
  say({ op: "answer", id, result: {} });
  await answered;
  say({ op: "items", id, result: 1 });
  say({ op: "items", id: 77, result: 2 });
  say({ op: "error", id, code: "not-found", message: "gone" });
  say({ op: "items", id, result: 3 });
  assert.deepEqual([got, over], [[1], "not-found"]);
});

test("times are told by this device's clock", () => {
  const { client, say } = scene();
  say({ op: "hello", version: 1, now: "1970-01-01T01:00:00Z" });
  say({ op: "snapshot", sessions: [{ id: "a:%1", status: { state: "working", since: "1970-01-01T00:59:58Z" } }] });
  assert.equal(client.sessions.get("a:%1")!.status.since, -1000);
});

test("what a machine says has bounds, and unknown words claim nothing", () => {
  const s = readSession({
    id: "a:%1", name: "n".repeat(9999), status: { state: "delighted", kind: "permission", evidence: Array(99).fill({ source: "x", detail: "y".repeat(9999) }), dialog: { digest: "d", text: "t".repeat(99999), options: Array(99).fill({ id: "1", label: "l", role: "owner" }) } },
  })!;
  assert.equal(s.name.length, 256);
  assert.equal(s.status.state, "unknown");
  assert.equal(s.status.kind, undefined);
  assert.equal(s.status.evidence.length, 8);
  assert.equal(s.status.dialog!.text.length, 8192);
  assert.equal(s.status.dialog!.options.length, 32);
  assert.equal(s.status.dialog!.options[0]!.role, undefined);
  for (const bad of [null, 7, "x", [], {}, { id: "" }, { id: "<b>" }, { id: "a".repeat(65) }]) assert.equal(readSession(bad), undefined);
  assert.equal(readPage({ items: Array(900).fill({ id: "x", kind: "text" }) }).items.length, 500);
  assert.equal(readPage({ items: [{ id: "x", kind: "tool", tool: { name: "Edit", diff: [{ path: "a", hunks: [{ lines: Array(9999).fill("+") }] }] } }] }).items[0]!.tool!.diff[0]!.hunks[0]!.lines.length, 400);
  assert.deepEqual(readRows({ lines: [{ runs: [{ text: "a", col: 0, width: 1, fg: "url(x)" }, { text: "secret", hidden: true }] }] }).rows[0]!.map((r) => [r.text, r.fg]), [["a", ""]]);
});

test("text that deceives is shown as what it is", () => {
  assert.equal(plain("a\u202egpj.exe\u2066b\u200b"), "agpj.exeb");
  assert.equal(plain("\x1b[31mred\x07\r\nnext\u009b"), "␛[31mred␇\nnext\ufffd");
  assert.equal(plain("👨‍👩‍👧 क्‍ष"), "👨‍👩‍👧 क्‍ष");
  assert.equal(oneLine(" a\n\tb "), "a b");
});

const row = (id: string, state: Session["status"]["state"], since: number, name = "mini"): Row => ({ machine: "m", name, live: true, session: { ...readSession({ id, name: id, dir: "/home/me/Projekte", status: { state } })!, status: { ...readSession({ id, status: { state } })!.status, since } } });

test("a word that would hold up the page is no Markdown; Japanese without blanks is", () => {
  for (const s of ["a".repeat(1001), `see ${"x".repeat(4000)}@ now`, "_a".repeat(8000), `http://a.${")".repeat(8000)}`]) assert.ok(longWord(s));
  for (const s of ["a".repeat(1000), `${"a".repeat(900)} `.repeat(9), "日本語の長い文章。".repeat(500), "日本a".repeat(2000)]) assert.ok(!longWord(s));
});

test("who waits longest is on top, and no machine's sessions stand apart", () => {
  const got = arrange([row("i", "idle", 9), row("w2", "waiting", 5, "b"), row("x", "exited", 1), row("w1", "waiting", 2, "z"), row("k1", "working", 3), row("k2", "working", 4), row("d", "done", 1), row("b", "background", 1), row("u", "unknown", 2)]);
  assert.deepEqual([...got].map(([g, rows]) => [g, rows.map((r) => r.session.id)]), [["waiting", ["w1", "w2"]], ["working", ["k2", "k1"]], ["done", ["d"]], ["background", ["b"]], ["idle", ["i"]], ["rest", ["u", "x"]]]);
});

test("a search finds all its words, whatever their case and width", () => {
  const r = row("work", "idle", 1);
  for (const [q, want] of [["", true], ["MINI work", true], ["projekte", true], ["ｍｉｎｉ", true], ["other", false]] as const) assert.equal(matches(r, q), want, q);
});

test("a dialog is told without its question twice, and as text", () => {
  const d = (title: string, text: string) => askedOf({ digest: "d", title, text, options: [] });
  assert.equal(d("Do you want to proceed?", "Bash command\n  rm -r build\n Do you want to  proceed?"), "Bash command\n  rm -r build");
  assert.equal(d("", "Overwrite? [y/N]"), "Overwrite? [y/N]");
  assert.equal(d("Proceed?", "Proceed?"), "");
  assert.equal(d("x", "a\u202eb\x1b[2J"), "ab␛[2J");
});

test("a session is called by what tells it from others", () => {
  const s = (name: string, title: string, conversation = true) => nameOf(readSession({ id: "a:%1", name, title, conversation })!);
  assert.equal(s("work", "✳ Fix the parser"), "✳ Fix the parser");
  for (const title of ["", "Claude Code", "✳ Claude Code", "codex", "OpenAI Codex"]) assert.equal(s("work", title), "work", title);
  assert.equal(s("work", "mini", false), "work");
  assert.equal(s("work", "Codex of law"), "Codex of law");
});

test("the tool that a dialog is about waits for the person, and no other", () => {
  const items = readPage({
    items: [
      ["done", "ok", "rm -r build"], ["first", "running", "sleep 300"], ["second", "running", "rm -r build"], ["third", "running", "make all"],
    ].map(([id, status, title]) => ({ id, kind: "tool", tool: { name: "Bash", title, status, input: { text: title } } })),
  }).items;
  const d = (text: string) => ({ digest: "d", title: "Do you want to proceed?", text, options: [] });
  assert.equal(waitingTool(items, d("Bash command\n  rm -r\n  build"), true), "second");
  // A program that says nothing of what it is about asks for what it began last.
  assert.equal(waitingTool(items, d("Allow this?"), true), "third");
  // A sub-agent's part shows some of a session's tools.
  assert.equal(waitingTool(items, d("Allow this?"), false), "");
  assert.equal(waitingTool(items, undefined, true), "");
  assert.equal(waitingTool(items.slice(0, 1), d("rm -r build"), true), "");
});
