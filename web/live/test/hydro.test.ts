// The hydro profile against a server that speaks as Hydro does, over real
// WebSockets. Time passes for both ends as the test says.

import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";

import { hydro } from "@holdfast/live";
import { HydroServer, type HydroHandler } from "./hydro-server.js";
import { closeAll, connect, driven } from "./real.js";

const time = driven();
const { now, timers, pass, until } = time;

class ForbiddenError extends Error {
  override name = "ForbiddenError";
}

const routes: Record<string, HydroHandler> = {
  // Sends its state when asked and on open.
  "/announcements": {
    prepare: (c) => c.send('{"announcements":[]}'),
    message: (c, m) => c.send(JSON.stringify({ answer: m })),
  },
  "/slow": { prepare: () => time.after(3_000), message: (c, m) => c.send(JSON.stringify({ answer: m })) },
  // An unknown record: open, and never a frame.
  "/unknown": {},
  "/denied": {
    prepare() {
      throw new ForbiddenError("no");
    },
  },
  "/zombie": {
    prepare() {
      throw new ForbiddenError("x".repeat(200));
    },
  },
  "/ended": {
    prepare(c) {
      c.send('{"rdoc":{"status":1}}');
      timers.setTimeout(() => c.close(4001, "Ended"), 1_000);
    },
  },
};

let server: HydroServer;
before(async () => {
  server = await HydroServer.start(routes, time);
});
afterEach(() => {
  closeAll();
  server.mute = false;
});
after(() => server.stop());

const page = (path: string) => connect(server.url + path, { profile: hydro, now, timers });

test("hydro: a quiet link lives on the server's heartbeat", async () => {
  const c = page("/announcements");
  await until("live", () => c.live.status.state == "live");
  const before = server.pings;
  await pass(200_000);
  assert.equal(c.live.status.state, "live");
  assert.equal(c.sockets.length, 1, "never replaced");
  assert.ok(server.pings - before >= 3, `${server.pings - before} heartbeats`);
  assert.deepEqual(c.messages, [{ announcements: [] }], "heartbeats are nothing that a site sees");
});

test("hydro: ready when prepare has ended, and what waited arrives in order", async () => {
  const c = page("/slow");
  const receipts = [1, 2, 3].map((n) => c.live.send(n, { confirm: (m) => m.answer == n }));
  await until("open", () => server.connections.at(-1));
  assert.equal(c.live.status.state, "connecting");
  await until("confirmed", () => receipts.every((r) => r.state == "confirmed"));
  assert.deepEqual(c.messages, [{ answer: 1 }, { answer: 2 }, { answer: 3 }]);
});

test("hydro: a channel on which nothing is ever said is ready by the server's pong", async () => {
  const c = page("/unknown");
  await until("live", () => c.live.status.state == "live");
  await pass(20_000);
  assert.equal(c.sockets.length, 1);
});

test("hydro: an error of prepare refuses, with its name", async () => {
  const c = page("/denied");
  await until("refused", () => c.live.status.state == "refused");
  assert.deepEqual(c.live.status.why, { code: 4000, reason: "ForbiddenError" });
  await pass(40_000);
  assert.equal(c.sockets.length, 1);
});

test("hydro: a mute zombie after an error is given up at the error", async () => {
  const c = page("/zombie");
  const before = now().mono;
  await until("refused", () => c.live.status.state == "refused");
  assert.ok(now().mono - before < 10_000, "not by a time-out");
  assert.equal(c.live.status.why!.reason, "ForbiddenError");
});

test("hydro: no such route is tried again, although the server never reads its close out", async () => {
  const c = page("/nowhere");
  await until("another attempt", () => c.sockets.length > 2);
  assert.equal(c.live.status.state, "reconnecting");
});

test("hydro: 4001 is an end and no error, and reopen() takes it up", async () => {
  const c = page("/ended");
  await until("ended", () => c.live.status.state == "ended");
  assert.equal(c.live.status.why!.code, 4001);
  await pass(20_000);
  assert.equal(c.sockets.length, 1);
  c.live.reopen();
  await until("the state again", () => c.messages.length == 2);
});

test("hydro: what is not JSON is closed without a code, and comes back", async () => {
  const c = page("/announcements");
  await until("live", () => c.live.status.state == "live");
  c.sockets[0]!.send("nonsense");
  await until("a second state", () => c.messages.length == 2);
  assert.equal(c.live.status.state, "live");
  assert.equal(c.live.status.why!.code, 1005);
});

test("hydro: a half-open link is replaced", async () => {
  const c = page("/announcements");
  await until("live", () => c.live.status.state == "live");
  server.mute = true;
  const from = now().mono;
  await until("suspect", () => c.live.status.state == "suspect");
  await until("lost", () => c.live.status.state == "reconnecting");
  assert.equal(c.live.status.why!.reason, "probe timed out");
  assert.ok(now().mono - from >= 80_000, "not sooner than its times say");
  server.mute = false;
  await until("live again", () => c.live.status.state == "live");
  assert.equal(c.sockets.length, 2);
});

test("hydro: a server that dies is found again", async () => {
  const c = page("/announcements");
  await until("live", () => c.live.status.state == "live");
  server.connections.at(-1)!.terminate();
  await until("the state again", () => c.messages.length == 2);
  assert.equal(c.live.status.why!.code, 1006);
});
