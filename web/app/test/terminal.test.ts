// The Worker's side of a terminal: what it asks of SSH, and what becomes of it
// when the connection is replaced.

import assert from "node:assert/strict";
import { test } from "node:test";
import { SshError, type Channel, type Client, type Exit } from "@holdfast/ssh";
import { createTerminal, MAX_WAITING } from "../src/worker/terminal.js";
import { pace } from "../src/terminal/pace.js";
import type { Ending, Program } from "../src/worker/messages.js";

/** A connection of which every channel notes what was asked of it. */
const connection = (refuse = "") => {
  const asked: unknown[][] = [];
  let reader: ((data: Uint8Array, stream: "stdout") => Promise<void> | void) | undefined;
  let ended!: (e: Exit) => void;
  const exit = new Promise<Exit>((r) => (ended = r));
  const ask = (name: string) => (...more: unknown[]) => {
    asked.push([name, ...more]);
    return name == refuse ? Promise.reject(new SshError("channel", `the server refused ${name}`)) : Promise.resolve();
  };
  const channel = {
    requestPty: ask("pty"), shell: ask("shell"), exec: ask("exec"), write: ask("write"), resize: ask("resize"), close: ask("close"),
    onData: (f: typeof reader) => (reader = f), exit,
  } as unknown as Channel;
  const client = { openSession: async () => channel } as unknown as Client;
  return { client, asked, ended, say: (data: Uint8Array) => reader!(data, "stdout") };
};

const scene = (program: Program, size: { cols: number; rows: number }) => {
  const heard: unknown[] = [];
  const terminal = createTerminal(program, size, {
    opened: (again) => heard.push(again ? "opened again" : "opened"),
    detached: () => heard.push("detached"),
    data: (data) => heard.push(data.length),
    ended: (e: Ending) => heard.push(e),
    dropped: (bytes) => heard.push(`dropped ${bytes}`),
    sent: () => {},
  });
  return { terminal, heard };
};
/** A terminal that is open, and what it hands to the page. */
const shown = async () => {
  const got: Uint8Array[] = [];
  const terminal = createTerminal({ kind: "shell" }, { cols: 80, rows: 24 }, { opened: () => {}, detached: () => {}, ended: () => {}, dropped: () => {}, sent: () => {}, data: (d) => got.push(d) });
  const c = connection();
  terminal.connected(c.client);
  await soon();
  return { terminal, got, c };
};

const soon = () => new Promise((r) => setImmediate(r));

test("a terminal is asked for by name and size, whatever else the page's message holds", async () => {
  const message = { op: "open", term: 7, program: { kind: "shell" }, cols: 45, rows: 30 } as const;
  const { terminal, heard } = scene(message.program, message);
  const c = connection();
  terminal.connected(c.client);
  await soon();
  assert.deepEqual(c.asked, [["pty", { term: "xterm-256color", cols: 45, rows: 30 }], ["shell"]]);
  assert.deepEqual(heard, ["opened"]);
});

test("a size that changed before there was a channel is the one that is asked for", async () => {
  const { terminal } = scene({ kind: "shell" }, { cols: 10, rows: 10 });
  terminal.resize(80, 24);
  const c = connection();
  terminal.connected(c.client);
  terminal.resize(81, 25);
  await soon();
  assert.deepEqual(c.asked, [["pty", { term: "xterm-256color", cols: 81, rows: 25 }], ["shell"]]);
});

test("a shell ends with its connection, a tmux session is attached on the next", async () => {
  for (const [program, want] of [
    [{ kind: "shell" }, ["opened", { how: "lost" }]],
    [{ kind: "tmux", name: "build", fit: false }, ["opened", "detached", "opened again"]],
  ] as const) {
    const { terminal, heard } = scene(program, { cols: 80, rows: 24 });
    const [first, second] = [connection(), connection()];
    terminal.connected(first.client);
    await soon();
    terminal.disconnected();
    first.ended({ lost: new SshError("transport", "gone") });
    terminal.connected(second.client);
    await soon();
    assert.deepEqual(heard, want);
    // What is attached again must not be made anew.
    if (program.kind == "tmux") assert.doesNotMatch(String(second.asked[1]![1]), /new-session/);
  }
});

test("a connection lost while a shell was being opened is no end of it", async () => {
  const { terminal, heard } = scene({ kind: "shell" }, { cols: 80, rows: 24 });
  terminal.connected({ openSession: () => Promise.reject(new SshError("transport", "gone")) } as unknown as Client);
  await soon();
  terminal.disconnected();
  assert.deepEqual(heard, []);
  terminal.connected(connection().client);
  await soon();
  assert.deepEqual(heard, ["opened"]);
});

test("a refusal says why", async () => {
  const { terminal, heard } = scene({ kind: "shell" }, { cols: 80, rows: 24 });
  terminal.connected(connection("pty").client);
  await soon();
  assert.deepEqual(heard, [{ how: "refused", text: "the server refused pty" }]);
  assert.ok(terminal.over);
});

test("terminal and shell are asked for in one go, and a refused terminal ends what has begun", async () => {
  const { terminal, heard } = scene({ kind: "shell" }, { cols: 80, rows: 24 });
  const c = connection();
  let answer!: (e?: Error) => void;
  const client = {
    openSession: async () => ({ ...(await c.client.openSession()), requestPty: (o: unknown) => (c.asked.push(["pty", o]), new Promise<void>((yes, no) => (answer = (e) => (e ? no(e) : yes())))) }),
  } as unknown as Client;
  terminal.connected(client);
  await soon();
  assert.deepEqual(c.asked.map(([name]) => name), ["pty", "shell"]);
  assert.deepEqual(heard, [], "said to be open before the terminal was given");
  answer(new SshError("channel", "the server refused pty"));
  await soon();
  assert.deepEqual(heard, [{ how: "refused", text: "the server refused pty" }]);
  assert.deepEqual(c.asked.at(-1), ["close"]);
});

test("a terminal that is closed while it opens stays closed", async () => {
  const { terminal, heard } = scene({ kind: "shell" }, { cols: 80, rows: 24 });
  const c = connection();
  terminal.connected(c.client);
  terminal.end();
  await soon();
  assert.deepEqual(heard, []);
  assert.deepEqual(c.asked, [["close"]]);
});

test("what the page has not shown holds back what comes, byte for byte", async () => {
  const { terminal } = scene({ kind: "shell" }, { cols: 80, rows: 24 });
  const c = connection();
  terminal.connected(c.client);
  await soon();
  const taken: number[] = [];
  for (const n of [5000, 6000]) void Promise.resolve(c.say(new Uint8Array(n))).then(() => taken.push(n));
  terminal.consumed(4999);
  await soon();
  assert.deepEqual(taken, []);
  terminal.consumed(1 + 5999);
  await soon();
  assert.deepEqual(taken, [5000]);
  // Nobody waits for a page that is gone.
  terminal.end();
  await soon();
  assert.deepEqual(taken, [5000, 6000]);
});

test("a program that prints letter by letter takes little more than its letters, and none is lost", async () => {
  const { terminal, got, c } = await shown();
  const promises = new Set<unknown>();
  const bytes = 100_000;
  for (let i = 0; i < bytes; i++) promises.add(c.say(Uint8Array.of(i % 251)));
  assert(promises.size < 30, `${promises.size} of them wait`);
  terminal.disconnected();
  assert(got.every((d) => d.length < 64 << 10));
  assert.deepEqual(Buffer.concat(got), Buffer.from(Uint8Array.from({ length: bytes }, (_, i) => i % 251)));
});

test("what a page shows that is always a little behind is counted all the time", async () => {
  const { terminal, c } = await shown();
  let taken = 0;
  for (let i = 0; i < 300; i++) {
    void Promise.resolve(c.say(new Uint8Array(100))).then(() => (taken += 100));
    if (i > 0) terminal.consumed(100);
    await Promise.resolve();
  }
  await soon();
  assert(taken > 20_000, `${taken} bytes of 29900`);
});

test("a channel of which something is refused is closed: the next attempts find room", async () => {
  for (const refuse of ["pty", "shell"]) {
    const { terminal, heard } = scene({ kind: "shell" }, { cols: 80, rows: 24 });
    const c = connection(refuse);
    terminal.connected(c.client);
    await soon();
    assert.equal((heard[0] as Ending).how, "refused", refuse);
    assert.deepEqual(c.asked.at(-1), ["close"], refuse);
  }
});

test("a flood reaches the page in few pieces, in order, and a single answer at once", async () => {
  const { terminal, got, c } = await shown();
  void c.say(Uint8Array.of(1));
  assert.equal(got.length, 1, "an answer to a key waits for nothing");
  const all = [1];
  for (let i = 0; i < 1000; i++) {
    const chunk = new Uint8Array(1000).fill(i);
    all.push(...chunk);
    void c.say(chunk);
  }
  const before = got.length;
  assert.ok(got.reduce((n, d) => n + d.length, 0) < 200e3, "more than the page can show was handed over");
  for (let shown = 0; shown < got.length; shown++) terminal.consumed(got[shown]!.length);
  assert.deepEqual(Buffer.concat(got), Buffer.from(all));
  assert.ok(got.length - before < 1000 / 20, `${got.length} pieces`);
  // The end loses nothing that came before it.
  void c.say(new Uint8Array(300e3));
  void c.say(Uint8Array.of(7));
  c.ended({ code: 0 });
  await soon();
  assert.equal(got.at(-1)!.at(-1), 7);
});

test("input that does not fit is said, and nothing behind it goes before what waits has gone", async () => {
  const { terminal, heard } = scene({ kind: "shell" }, { cols: 80, rows: 24 });
  const c = connection();
  const written: number[] = [];
  let took: (() => void)[] = [];
  const stuck = { ...(await c.client.openSession()), write: (b: Uint8Array) => (written.push(b.length), new Promise<void>((r) => took.push(r))) } as unknown as Channel;
  terminal.connected({ openSession: async () => stuck } as unknown as Client);
  await soon();
  heard.length = 0;
  terminal.input(new Uint8Array(MAX_WAITING - 1));
  terminal.input(new Uint8Array(1000));
  // An Enter would still fit, and would run what is not whole.
  terminal.input(new Uint8Array(1));
  await soon();
  assert.deepEqual([heard, written], [["dropped 1000", "dropped 1"], [MAX_WAITING - 1]]);
  for (const done of took) done();
  await soon();
  terminal.input(new Uint8Array(2));
  await soon();
  assert.deepEqual([heard.length, written], [2, [MAX_WAITING - 1, 2]]);
});

test("what waited when the connection broke is said not to be sent", async () => {
  const { terminal, heard } = scene({ kind: "tmux", name: "w", fit: false }, { cols: 80, rows: 24 });
  const c = connection();
  const stuck = { ...(await c.client.openSession()), write: () => new Promise<void>(() => undefined) } as unknown as Channel;
  terminal.connected({ openSession: async () => stuck } as unknown as Client);
  await soon();
  terminal.input(new Uint8Array(30));
  terminal.input(new Uint8Array(12));
  terminal.disconnected();
  assert.deepEqual(heard, ["opened", "dropped 42", "detached"]);
});

test("pieces behind a few bytes go at once, behind many they wait for a whole piece or for the page", async () => {
  const { terminal, got, c } = await shown();
  const lengths = () => got.map((d) => d.length);
  for (const n of [10, 20, 8 << 10]) void c.say(new Uint8Array(n));
  assert.deepEqual(lengths(), [10, 20, 8 << 10]);
  void c.say(new Uint8Array(100));
  assert.equal(got.length, 3, "a message of its own for a hundred bytes of many");
  void c.say(new Uint8Array(32 << 10));
  assert.deepEqual(lengths().slice(3), [100 + (32 << 10)]);
  void c.say(new Uint8Array(7));
  terminal.consumed(lengths().reduce((a, b) => a + b));
  assert.equal(lengths().at(-1), 7, "the page waits for what nobody hands over");
});

test("in a flood ten pictures a second are drawn, of rows, selection, scroll bar and cursor, and the last one of it", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const drawn: string[] = [];
  let flood = false;
  const selection = { hasSelection: false, refresh: () => void drawn.push("selection") };
  const core = {
    _renderService: { refreshRows: (a: number, b: number) => void drawn.push(`rows ${a}-${b}`), addRefreshCallback: (f: FrameRequestCallback) => (f(0), 1) },
    _selectionService: selection,
    _syncTextArea: () => void drawn.push("cursor"),
  };
  const stop = pace({ rows: 24, _core: core } as never, () => flood);
  const line = () => {
    core._renderService.refreshRows(3, 20);
    selection.refresh();
    core._renderService.addRefreshCallback(() => drawn.push("bar"));
    core._syncTextArea();
  };
  line();
  assert.deepEqual(drawn.splice(0), ["rows 3-20", "selection", "bar", "cursor"]);
  flood = true;
  for (let i = 0; i < 30; i++) {
    line();
    t.mock.timers.tick(10);
  }
  assert.deepEqual(drawn.filter((d) => d.startsWith("rows")), ["rows 0-23", "rows 0-23", "rows 0-23"]);
  assert.deepEqual(drawn.filter((d) => d == "cursor").length, 3);
  assert.deepEqual(drawn.filter((d) => d == "bar").length, 30, "who waits for a frame is called");
  drawn.length = 0;
  // What stood last is drawn although nothing follows.
  line();
  flood = false;
  t.mock.timers.tick(100);
  assert.deepEqual(drawn.splice(0).filter((d) => d != "bar"), ["rows 0-23", "cursor"]);
  // A selection is drawn also in a flood, and so is that it was taken away.
  flood = true;
  selection.hasSelection = true;
  selection.refresh();
  selection.hasSelection = false;
  selection.refresh();
  assert.deepEqual(drawn.splice(0), ["selection", "selection"]);
  stop();
  // Another xterm, without any of it, draws as it always did.
  assert.doesNotThrow(pace({ rows: 24 } as never, () => true));
});
