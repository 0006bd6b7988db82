// The client with every clock and socket in the test's hands. It is the shipped
// build that runs here.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createLive, hydro, timing, type LiveOptions } from "@holdfast/live";
import { createSite } from "./fake.js";

const PING = '{"op":"ping"}';
const PONG = '{"op":"pong"}';

/** A channel that is ready on its first socket. */
const ready = (more: Partial<LiveOptions> = {}) => {
  const site = createSite(more);
  const live = createLive(site.options);
  live.reopen();
  site.socket.open();
  site.socket.message({ hello: 1 });
  assert.equal(live.status.state, "live");
  return Object.assign(site, { live, get: 0 });
};

/** Brings the newest socket up. */
const up = (site: ReturnType<typeof createSite>) => {
  site.socket.open();
  site.socket.message({ hello: site.sockets.length });
};

test("the first message of the server makes the channel ready", () => {
  const site = createSite();
  let readies = 0;
  const live = createLive({ ...site.options, ready: () => readies++ });
  assert.equal(live.status.state, "connecting");
  assert.equal(site.sockets.length, 0, "nothing is dialled before reopen()");
  live.reopen();
  assert.equal(site.sockets.length, 1);
  site.socket.open();
  assert.equal(live.status.state, "connecting", "open is not ready");
  site.socket.message(PONG);
  assert.equal(live.status.state, "connecting", "a pong is no state");
  site.socket.message({ unread: [] });
  assert.equal(live.status.state, "live");
  assert.equal(live.proof(), site.clock.wall);
  assert.deepEqual(site.messages, [{ unread: [] }]);
  assert.equal(readies, 1);
});

test("where the server is silent until asked, its pong makes the channel ready", () => {
  const site = createSite({ greets: false });
  const live = createLive(site.options);
  live.reopen();
  const receipt = live.report("watch", { op: "watch", ids: ["a"] });
  site.socket.open();
  assert.deepEqual(site.socket.sent, [PING]);
  assert.equal(receipt.state, "queued");
  site.socket.message(PONG);
  assert.equal(live.status.state, "live");
  assert.deepEqual(site.socket.sent, [PING, '{"op":"watch","ids":["a"]}']);
  assert.equal(receipt.state, "sent");
});

test("a channel that says nothing is ready by the server's question, which the site does not see", () => {
  const site = createSite();
  const live = createLive(site.options);
  live.reopen();
  live.report("watch", { op: "watch", ids: ["a"] });
  site.socket.open();
  assert.deepEqual(site.socket.sent, []);
  site.socket.message(PING);
  assert.equal(live.status.state, "live");
  assert.deepEqual(site.socket.sent.sort(), ['{"op":"watch","ids":["a"]}', PONG].sort());
  assert.deepEqual(site.messages, []);
});

test("a handshake that nobody answers ends after 10 s", () => {
  const site = createSite();
  const live = createLive(site.options);
  live.reopen();
  site.clock.advance(9_999);
  assert.equal(site.sockets.length, 1);
  site.clock.advance(1);
  assert.ok(site.sockets[0]!.closed);
  assert.equal(live.status.state, "reconnecting");
  assert.equal(live.status.why?.reason, "handshake timed out");
  assert.equal(live.status.retryAt, site.clock.wall + 1_500);
  site.clock.advance(1_500);
  assert.equal(site.sockets.length, 2);
});

test("an accepted but mute socket ends after 15 s", () => {
  const site = createSite();
  const live = createLive(site.options);
  live.reopen();
  site.socket.open();
  site.clock.advance(15_000);
  assert.equal(live.status.why?.reason, "ready timed out");
  assert.ok(site.sockets[0]!.closed);
});

test("a half-open link is asked after 120 s and replaced after 130 s", () => {
  const site = ready();
  const { live, clock } = site;
  clock.advance(119_999);
  assert.deepEqual(site.socket.sent, []);
  clock.advance(1);
  assert.deepEqual(site.socket.sent, [PING]);
  assert.equal(live.status.state, "live", "a question that has just been asked is nothing to show");
  clock.advance(1_000);
  assert.equal(live.status.state, "suspect");
  clock.advance(9_000);
  assert.equal(live.status.state, "reconnecting");
  assert.equal(live.status.why?.reason, "probe timed out");
  assert.equal(live.status.retired, 1);
  clock.advance(1_500);
  assert.equal(site.sockets.length, 2);
  up(site);
  assert.equal(live.status.state, "live");
  assert.equal(live.status.why?.reason, "probe timed out", "how the last one ended stays known");

  // A browser reports the end of the old one a minute after close().
  clock.advance(48_500);
  site.sockets[0]!.end(1006);
  clock.advance(1_000);
  assert.equal(live.status.state, "live");
  assert.equal(live.status.retired, 0);
  assert.equal(site.sockets.length, 2);
});

test("late events of a retired socket change nothing", () => {
  const site = ready();
  site.clock.advance(131_500);
  const [old] = site.sockets;
  old!.open();
  old!.message({ late: true });
  old!.end(4401, "late");
  assert.equal(site.live.status.state, "reconnecting");
  assert.equal(site.sockets.length, 2);
  assert.deepEqual(site.messages, [{ hello: 1 }]);
});

test("any message is an answer", () => {
  const site = ready();
  site.clock.advance(125_000);
  assert.equal(site.live.status.state, "suspect");
  site.socket.message({ news: 1 });
  assert.equal(site.live.status.state, "live");
  site.clock.advance(100_000);
  assert.equal(site.sockets.length, 1);
});

test("a question of the server is answered before the site sees anything", () => {
  const order: string[] = [];
  const site = ready({ profile: hydro, greets: true, message: () => order.push("message") });
  const { socket } = site;
  const send = socket.send.bind(socket);
  socket.send = (data: string) => {
    order.push(data);
    send(data);
  };
  order.length = 0;
  socket.message("ping");
  assert.deepEqual(order, ["pong"]);
});

test("a channel with a lease is replaced within 20 s of its last answer", () => {
  const site = ready({ channel: timing });
  const { live, clock } = site;
  const beat = () => live.report("active", { active: true });
  clock.advance(10_000);
  beat();
  site.socket.message({ elapsed: 10_000, total: 10_000 });
  const answered = clock.mono;
  clock.advance(10_000);
  beat(); // nobody answers any more
  clock.advance(5_999);
  assert.equal(site.socket.sent.includes(PING), false);
  clock.advance(1);
  assert.equal(site.socket.sent.at(-1), PING, "6 s after the report it asks");
  clock.advance(4_000);
  assert.equal(live.status.state, "reconnecting");
  assert.ok(clock.mono - answered <= 20_000);
  clock.advance(3_000);
  up(site);
  assert.deepEqual(site.socket.sent, ['{"active":true}'], "the present state goes out first");
  assert.ok(clock.mono - answered < 30_000, "in time for the lease");
});

test("the answer watchdog asks 6 s after a report, whenever that was", () => {
  const site = ready({ channel: timing });
  site.clock.advance(1_000);
  site.live.report("active", { active: false });
  site.clock.advance(6_000);
  assert.equal(site.socket.sent.at(-1), PING);
  site.socket.message({ elapsed: 1 });
  site.clock.advance(9_999);
  assert.equal(site.socket.sent.length, 2, "an answer disarms it");
});

test("an error before ready refuses the channel, although no close follows", () => {
  for (const profile of [undefined, hydro]) {
    const site = createSite({ profile });
    const live = createLive(site.options);
    live.reopen();
    site.socket.open();
    site.socket.message({ error: { name: "PermissionError", params: [] } });
    assert.equal(live.status.state, "refused");
    assert.deepEqual(live.status.why, { code: 4000, reason: "PermissionError" });
    assert.ok(site.socket.closed);
    site.socket.end(4000, "late");
    site.clock.advance(1_000_000);
    assert.equal(site.sockets.length, 1);
  }
});

test("an error of a ready channel is a message", () => {
  const site = ready();
  site.socket.message({ error: { name: "RateLimited", params: [100, 60] } });
  assert.equal(site.live.status.state, "live");
  assert.deepEqual(site.messages.at(-1), { error: { name: "RateLimited", params: [100, 60] } });
});

test("what is no JSON is life and reaches nobody", () => {
  const site = ready();
  site.clock.advance(60_000);
  site.socket.message("{half");
  assert.equal(site.live.proof(), site.clock.wall);
  assert.equal(site.messages.length, 1);
});

test("the close code decides", () => {
  const cases: [code: number, reason: string, state: string, wait: number, profile?: LiveOptions["profile"]][] = [
    [1000, "", "reconnecting", 1_500],
    [1001, "", "reconnecting", 1_500],
    [1006, "", "reconnecting", 1_500],
    [1012, "restart after=7250", "reconnecting", 7_250],
    [1012, "", "reconnecting", 1_500],
    [1013, "", "reconnecting", 1_500],
    [4129, "", "reconnecting", 1_500],
    [4001, "ended", "ended", Infinity],
    [1008, "", "refused", Infinity],
    [4000, "", "refused", Infinity],
    [4401, "", "refused", Infinity],
    [4409, "", "refused", Infinity],
    [4001, "Ended", "ended", Infinity, hydro],
    [1005, "", "reconnecting", 1_500, hydro],
    [4401, "", "reconnecting", 1_500, hydro],
  ];
  for (const [code, reason, state, wait, profile] of cases) {
    const site = ready({ profile });
    site.clock.advance(20_000);
    site.socket.end(code, reason);
    assert.equal(site.live.status.state, state, `${code} ${reason}`);
    assert.equal(site.live.status.retryAt - site.clock.wall, wait, `${code} ${reason}`);
    site.clock.advance(100_000);
    assert.equal(site.sockets.length > 1, wait < Infinity, `${code} ${reason}`);
  }
});

test("reopen() takes up a channel that has ended", () => {
  const site = ready();
  site.live.report("watch", { ids: ["a"] });
  site.socket.end(4001, "ended");
  assert.equal(site.live.status.state, "ended");
  site.live.reopen();
  site.clock.advance(250);
  up(site);
  assert.equal(site.live.status.state, "live");
  assert.deepEqual(site.socket.sent, ['{"ids":["a"]}']);
  site.live.reopen();
  assert.equal(site.sockets.length, 2, "a live socket is left alone");
});

test("reports, then the queue in order, then what is new", () => {
  const site = createSite();
  const { live, early } = (() => {
    const live = createLive({ ...site.options, ready: () => live.send("new") });
    live.reopen();
    return { live, early: [live.send("first"), live.send("second")] };
  })();
  live.report("watch", { ids: ["old"] });
  let position = 3;
  live.report("run", () => ({ op: "run", from: position }));
  live.report("watch", { ids: ["a", "b"] });
  live.report("gone", 1);
  live.withdraw("gone");
  position = 7;
  assert.deepEqual(early.map((r) => r.state), ["queued", "queued"]);
  up(site);
  const present = ['{"ids":["a","b"]}', '{"op":"run","from":7}'];
  assert.deepEqual(site.socket.sent, [...present, '"first"', '"second"', '"new"']);
  assert.deepEqual(early.map((r) => r.state), ["sent", "sent"]);

  // On the next connection the present again, the rest not.
  site.socket.end();
  position = 9;
  site.clock.advance(3_000);
  up(site);
  assert.deepEqual(site.socket.sent, [present[0], '{"op":"run","from":9}', '"new"']);
});

test("a receipt is confirmed by the message that says so", () => {
  const site = ready();
  const changes: string[] = [];
  const receipt = site.live.send({ op: "acknowledge", id: "n1" }, { confirm: (m) => Array.isArray(m.inbox) && !m.inbox.includes("n1") });
  site.live.subscribe(() => changes.push(receipt.state));
  assert.equal(receipt.state, "sent");
  site.socket.message(PONG); // is asked about nothing
  site.socket.message({ inbox: ["n1", "n2"] });
  assert.equal(receipt.state, "sent");
  site.socket.message({ inbox: ["n2"] });
  assert.equal(receipt.state, "confirmed");
  assert.deepEqual(changes, ["confirmed"]);
});

test("what was sent on a lost link is confirmed by the state after the reconnect, and never sent twice", () => {
  const site = ready();
  const receipt = site.live.send({ id: "n1" }, { confirm: (m) => m.read?.includes("n1") });
  site.socket.end();
  site.clock.advance(3_000);
  assert.equal(receipt.state, "sent");
  site.socket.open();
  site.socket.message({ read: ["n1"] });
  assert.equal(receipt.state, "confirmed");
  assert.deepEqual(site.socket.sent, []);
});

test("a receipt can be confirmed by hand", () => {
  const site = ready();
  let changes = 0;
  site.live.subscribe(() => changes++);
  const receipt = site.live.send(1);
  changes = 0;
  receipt.confirm();
  assert.equal(receipt.state, "confirmed");
  site.clock.advance(5_000);
  assert.equal(changes, 1);
});

test("what waits too long expires, by whichever clock says so", () => {
  for (const sleep of [false, true]) {
    const site = createSite();
    const live = createLive(site.options);
    live.reopen();
    const receipt = live.send("approve");
    if (sleep) site.clock.sleep(121_000);
    else site.clock.advance(121_000);
    site.clock.advance(5_000);
    assert.equal(receipt.state, "expired");
    assert.equal(receipt.why, "expired");
    if (site.socket.closed) site.clock.advance(20_000);
    up(site);
    assert.deepEqual(site.socket.sent, []);
  }
});

test("a full queue refuses the newcomer and says so", () => {
  const site = createSite({ limits: { count: 2, bytes: 100, age: 60_000 } });
  const live = createLive(site.options);
  live.reopen();
  const receipts = [live.send("a"), live.send("b"), live.send("c")];
  assert.deepEqual(receipts.map((r) => [r.state, r.why]), [["queued", undefined], ["queued", undefined], ["dropped", "overflow"]]);
  up(site);
  assert.deepEqual(site.socket.sent, ['"a"', '"b"']);
  site.clock.advance(130_000);
  const large = live.send("é".repeat(50));
  assert.deepEqual([large.state, large.why], ["dropped", "overflow"], "bytes are counted, not characters");
});

test("nothing survives its context", () => {
  const site = createSite({ context: "alice/mini" });
  const live = createLive(site.options);
  live.reopen();
  const receipt = live.send("for mini");
  live.report("watch", { ids: ["a"] });
  live.context("alice/mini");
  assert.equal(receipt.state, "queued", "the same context changes nothing");
  assert.equal(site.sockets.length, 1);
  live.context("alice/studio");
  assert.deepEqual([receipt.state, receipt.why], ["dropped", "contextEnded"]);
  site.clock.advance(250);
  assert.equal(site.sockets.length, 2, "the old context's socket is replaced");
  assert.ok(site.sockets[0]!.closed);
  up(site);
  assert.deepEqual(site.socket.sent, []);
});

test("while a question is open things wait, and go out on the link that lives", () => {
  const site = ready();
  site.clock.advance(120_000);
  const receipt = site.live.send("typed on a dead link");
  assert.equal(receipt.state, "queued");
  site.clock.advance(11_500);
  up(site);
  assert.equal(receipt.state, "sent");
  assert.deepEqual(site.socket.sent, ['"typed on a dead link"']);
});

test("close() ends the channel, and no event of the page undoes it", () => {
  const site = ready();
  const waiting = site.live.send("x", { confirm: () => false });
  site.live.close();
  assert.equal(site.live.status.state, "ended");
  assert.equal(site.live.status.why, undefined);
  assert.ok(site.socket.closed);
  assert.equal(waiting.state, "sent");
  const late = site.live.send("y");
  assert.deepEqual([late.state, late.why], ["dropped", "contextEnded"]);
  for (const type of ["online", "focus", "pageshow", "resume", "visibilitychange", "offline"]) site.page.fire(type, { persisted: true });
  site.clock.advance(200_000);
  assert.equal(site.sockets.length, 1);
  assert.equal(site.live.status.state, "ended");
  assert.equal(site.clock.pending, 0, "no timer is left");
});

test("a refusal drops what waits", () => {
  const site = createSite();
  const live = createLive(site.options);
  live.reopen();
  const receipt = live.send("x");
  site.socket.open();
  site.socket.end(4403, "not allowed");
  assert.deepEqual([receipt.state, receipt.why], ["dropped", "contextEnded"]);
});

test("a burst of page events asks once", () => {
  const site = ready();
  site.clock.advance(30_000);
  site.page.show("hidden");
  site.clock.advance(1_000);
  assert.deepEqual(site.socket.sent, []);
  site.page.fire("resume");
  site.page.fire("pageshow", { persisted: false });
  site.page.show("visible");
  site.page.fire("focus");
  site.page.fire("online");
  site.clock.advance(100);
  assert.deepEqual(site.socket.sent, [PING]);
  site.clock.advance(10_000);
  assert.equal(site.live.status.state, "reconnecting", "a link that did not survive is replaced 10 s later");
});

test("offline is a flag: it closes nothing and asks nothing", () => {
  const site = ready();
  site.clock.advance(1_000);
  site.page.fire("offline");
  assert.equal(site.live.status.state, "offline");
  assert.deepEqual(site.socket.sent, []);
  site.clock.advance(1);
  site.socket.message({ news: 1 });
  assert.equal(site.live.status.state, "live", "the system was wrong");
  site.clock.advance(1_000);
  site.page.fire("offline");
  site.page.fire("online");
  assert.equal(site.live.status.state, "live");
  site.clock.advance(100);
  assert.deepEqual(site.socket.sent, [PING]);
  assert.equal(site.sockets.length, 1);
});

test("online skips the wait, and two of them make one attempt", () => {
  const site = ready({ random: () => 0.99 });
  site.clock.advance(1);
  site.socket.end();
  site.page.fire("offline");
  assert.equal(site.live.status.state, "offline");
  site.clock.advance(300);
  site.page.fire("online");
  assert.equal(site.live.status.state, "reconnecting");
  site.page.fire("online");
  site.clock.advance(100);
  assert.equal(site.sockets.length, 2);
  site.page.fire("online");
  site.clock.advance(100);
  assert.equal(site.sockets.length, 2);
});

test("a page put away gives its socket up, and dials at once when it is shown again", () => {
  const site = ready();
  site.page.fire("pagehide", { persisted: false });
  assert.equal(site.socket.closed, false, "a page that is left for good needs no care");
  site.page.fire("pagehide", { persisted: true });
  assert.ok(site.socket.closed);
  site.clock.advance(60_000);
  assert.equal(site.sockets.length, 1, "nothing is dialled meanwhile");
  site.page.fire("pageshow", { persisted: true });
  site.clock.advance(100);
  assert.equal(site.sockets.length, 2);
  up(site);
  assert.equal(site.live.status.state, "live");
});

test("a frozen page: the close comes at the thaw, and the next attempt at once", () => {
  const site = ready({ random: () => 0.99 });
  site.clock.stop(20_000);
  site.page.fire("resume");
  site.socket.end();
  site.clock.advance(250);
  assert.equal(site.sockets.length, 2);
});

test("sleep is noticed within 5 s without any event", () => {
  const site = ready();
  site.clock.advance(7_000);
  site.clock.sleep(3_600_000);
  site.clock.advance(5_000);
  assert.deepEqual(site.socket.sent, [PING]);
  site.socket.message(PONG);
  assert.equal(site.sockets.length, 1, "a link that survived costs one round trip");
});

test("a stopped process reads before it judges, and gives one fresh window", () => {
  const site = ready();
  site.clock.advance(121_000);
  site.clock.stop(30_000);
  site.clock.advance(0);
  assert.deepEqual(site.socket.sent, [PING, PING]);
  assert.equal(site.sockets.length, 1);
  site.clock.advance(10_000);
  assert.equal(site.live.status.state, "reconnecting", "one, and no more");
});

test("a message that waits behind the tick is taken in first", () => {
  const site = ready();
  site.clock.advance(129_999);
  // The timer of the verdict and the message are due in the same turn.
  site.clock.timers.setTimeout(() => site.clock.timers.setTimeout(() => undefined), 1);
  site.clock.timers.setTimeout(() => site.socket.message(PONG), 1);
  site.clock.advance(1);
  assert.equal(site.live.status.state, "live");
  assert.equal(site.sockets.length, 1);
});

test("a wall clock that goes back stalls nothing", () => {
  const site = ready();
  site.clock.sleep(-86_400_000);
  site.clock.advance(130_000);
  assert.equal(site.live.status.state, "reconnecting");
});

test("callbacks that throw stop nothing", (t) => {
  t.mock.method(console, "error", () => undefined);
  const broken = () => {
    throw new Error("the site's own");
  };
  const site = createSite();
  const live = createLive({ ...site.options, message: broken, ready: broken });
  live.subscribe(broken);
  live.reopen();
  up(site);
  assert.equal(live.status.state, "live");
  const receipt = live.report("state", broken);
  assert.deepEqual([receipt.state, receipt.why], ["dropped", "failed"]);
  live.send(1, { confirm: broken });
  site.socket.message({ a: 1 });
  assert.equal(live.status.state, "live", "a report that cannot be made is not the socket's fault");
  site.socket.end();
  site.clock.advance(3_000);
  up(site);
  assert.equal(live.status.state, "live");
});

test("a socket that cannot be made is a failed attempt", () => {
  const site = createSite();
  let broken = true;
  const live = createLive({
    ...site.options,
    socket: (url, protocols) => {
      if (broken) throw new Error("blocked");
      return site.options.socket!(url, protocols);
    },
  });
  live.reopen();
  assert.equal(live.status.state, "reconnecting");
  assert.match(live.status.why!.reason!, /blocked/);
  broken = false;
  site.clock.advance(3_000);
  up(site);
  assert.equal(live.status.state, "live");
});

test("a send that throws is a failure, and its receipt says so", () => {
  const site = ready();
  site.socket.broken = true;
  const receipt = site.live.send("x");
  assert.deepEqual([receipt.state, receipt.why], ["dropped", "failed"]);
  assert.equal(site.live.status.state, "reconnecting");
  assert.ok(site.socket.closed);
});

test("an error without a close is an end too", () => {
  const site = ready();
  site.socket.onerror!({ type: "error" });
  assert.equal(site.live.status.state, "live");
  site.clock.advance(500);
  assert.equal(site.live.status.state, "reconnecting");
});

test("an error and its close are one failure, with the code of the close", () => {
  const site = ready();
  site.socket.onerror!({ type: "error" });
  site.socket.onclose!({ code: 4401, reason: "revoked" });
  site.clock.advance(10_000);
  assert.equal(site.live.status.state, "refused");
  assert.equal(site.live.status.why?.code, 4401);
});

test("sockets that never report their end are capped, and forgotten after two minutes", () => {
  const site = createSite({ random: () => 0 });
  const live = createLive(site.options);
  live.reopen();
  let most = 0;
  for (let i = 0; i < 4_000; i++) {
    site.clock.advance(250);
    if (!site.socket.closed) site.socket.broken = true;
    if (site.socket.onopen) {
      site.socket.open();
      site.socket.message({ hello: i });
      live.send("x"); // throws: the socket is given up, its end never comes
    }
    most = Math.max(most, live.status.retired);
  }
  assert.equal(most, 8);
  assert.ok(site.sockets.length > 8 && site.sockets.length < 8 * (1_000 / 120 + 2), `${site.sockets.length} sockets in 1,000 s`);
});

test("backoff grows until a connection was ready for 10 s", () => {
  const site = createSite({ random: () => 0.999 });
  const live = createLive(site.options);
  live.reopen();
  const waits: number[] = [];
  for (let i = 0; i < 6; i++) {
    up(site);
    site.socket.end(1000);
    waits.push(Math.round((live.status.retryAt - site.clock.wall) / 999));
    site.clock.advance(live.status.retryAt - site.clock.wall);
  }
  assert.deepEqual(waits, [3, 2, 4, 8, 15, 15], "accepting and closing at once earns nothing");
  up(site);
  site.clock.advance(10_000);
  site.socket.end(1006);
  assert.equal(Math.round((live.status.retryAt - site.clock.wall) / 999), 3);
});

test("the token goes out as a subprotocol, fresh at every attempt", () => {
  let n = 0;
  const site = ready({ token: () => `hf_${++n}`, url: () => `wss://site.example/${n}` });
  assert.deepEqual(site.socket.protocols, ["holdfast.v1", "holdfast.bearer.hf_1"]);
  site.socket.end();
  site.clock.advance(3_000);
  assert.deepEqual(site.socket.protocols, ["holdfast.v1", "holdfast.bearer.hf_2"]);
  assert.equal(site.socket.url, "wss://site.example/2");
});

for (const [name, answer, state, code, wait] of [
  ["401", { status: 401, headers: { "Holdfast-Refusal": "token-revoked" } }, "refused", 4401, Infinity],
  ["403", { status: 403, headers: { "Holdfast-Refusal": "not-allowed" } }, "refused", 4403, Infinity],
  ["403 of a captive portal", { status: 403 }, "reconnecting", 1006, 1_500],
  ["429", { status: 429, headers: { "Retry-After": "20" } }, "reconnecting", 4129, 20_000],
  ["429 for a year", { status: 429, headers: { "Retry-After": "31536000" } }, "reconnecting", 4129, 600_000],
  ["200", { status: 200 }, "reconnecting", 1006, 1_500],
  ["no answer", undefined, "reconnecting", 1006, 1_500],
] as const) {
  test(`a socket that never opened asks why: ${name}`, async (t) => {
    const asked: [string, any][] = [];
    t.mock.method(globalThis, "fetch", async (url: string, init: any) => {
      asked.push([url, init.headers.authorization]);
      if (!answer) throw new TypeError("network");
      return new Response(null, { status: answer.status, headers: "headers" in answer ? answer.headers : {} });
    });
    const site = createSite({ token: "hf_x", access: "https://site.example/v1/access" });
    const live = createLive(site.options);
    live.reopen();
    site.socket.end(1006);
    await new Promise((done) => setImmediate(done));
    assert.deepEqual(asked, [["https://site.example/v1/access", "Bearer hf_x"]]);
    assert.equal(live.status.state, state);
    assert.equal(live.status.why?.code, code);
    assert.equal(live.status.retryAt - site.clock.wall, wait);
  });
}

test("the question why does not outlast the handshake limit, and a late answer changes nothing", async (t) => {
  let answer: (r: Response) => void = () => undefined;
  t.mock.method(globalThis, "fetch", () => new Promise((done) => (answer = done)));
  const site = createSite({ token: "hf_x", access: "https://site.example/v1/access" });
  const live = createLive(site.options);
  live.reopen();
  site.socket.end(1006);
  site.clock.advance(10_000);
  assert.equal(live.status.why?.reason, "handshake timed out");
  site.clock.advance(1_500);
  answer(new Response(null, { status: 401, headers: { "Holdfast-Refusal": "token-revoked" } }));
  await new Promise((done) => setImmediate(done));
  assert.equal(live.status.state, "reconnecting");
  up(site);
  assert.equal(live.status.state, "live");
});

test("a socket that was open asks nobody", (t) => {
  const fetched = t.mock.method(globalThis, "fetch", async () => new Response());
  const site = ready({ token: "hf_x", access: "https://site.example/v1/access" });
  site.socket.end(1006);
  assert.equal(fetched.mock.callCount(), 0);
  assert.equal(site.live.status.state, "reconnecting");
});

test("a probe of one's own is asked instead of the profile's", () => {
  let asked = 0;
  const site = ready({ probe: () => void asked++ });
  site.clock.advance(120_000);
  assert.equal(asked, 1);
  assert.deepEqual(site.socket.sent, []);
});

test("a channel that was closed while put away can be taken up again", () => {
  const site = ready();
  site.page.fire("pagehide", { persisted: true });
  site.live.close();
  site.page.fire("pageshow", { persisted: true });
  site.live.reopen();
  site.clock.advance(20_000);
  assert.ok(site.sockets.length > 2, "its time-outs run");
});

test("a step of the wall clock does not keep a channel offline", () => {
  const site = ready();
  site.page.fire("offline");
  assert.equal(site.live.status.state, "offline");
  site.clock.sleep(-3_600_000);
  site.socket.message({ news: 1 });
  assert.equal(site.live.status.state, "live");
});
