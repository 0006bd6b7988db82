// Whatever happens in whatever order: one socket at most, no send twice, no
// receipt that goes back, and a site that is well again when the world is.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createLive, hydro, timing, type Receipt } from "@holdfast/live";
import { createSite } from "./fake.js";

/** A small generator, so that a seed names a whole history. */
const generator = (seed: number) => () => {
  seed = (seed + 0x6d2b79f5) | 0;
  let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
};

const rank: Record<Receipt["state"], number> = { queued: 0, sent: 1, confirmed: 2, expired: 2, dropped: 2 };

const history = (seed: number, steps: number) => {
  const random = generator(seed);
  const pick = <T>(list: readonly T[]) => list[Math.floor(random() * list.length)]!;
  const site = createSite({ random, profile: pick([undefined, hydro]), channel: pick([undefined, timing]), context: "0" });
  const live = createLive(site.options);
  const ping = site.options.profile ? "ping" : '{"op":"ping"}';
  const pong = site.options.profile ? "pong" : '{"op":"pong"}';
  const receipts: Receipt[] = [];
  const before: number[] = [];
  let contexts = 0;
  let sent = 0;
  live.reopen();

  const check = (what: string) => {
    const where = `seed ${seed}, after ${what}`;
    assert.ok(site.sockets.filter((s) => !s.closed && !s.ended).length <= 1, `${where}: two sockets`);
    const once = site.sockets.flatMap((s) => s.sent).filter((m) => m.startsWith('{"n":'));
    assert.equal(new Set(once).size, once.length, `${where}: sent twice`);
    receipts.forEach((r, i) => {
      assert.ok(rank[r.state] >= before[i]!, `${where}: receipt ${i} went back to ${r.state}`);
      before[i] = rank[r.state];
    });
    assert.ok(live.status.retired <= 8, `${where}: ${live.status.retired} retired sockets`);
  };

  const events: Record<string, () => void> = {
    open: () => site.socket?.open(),
    message: () => site.socket?.message({ at: sent }),
    pong: () => site.socket?.message(pong),
    ping: () => site.socket?.message(ping),
    nonsense: () => site.socket?.message("{"),
    end: () => site.socket?.end(pick([1000, 1001, 1006, 1009, 1012, 1013, 4104])),
    "old end": () => pick(site.sockets)?.end(),
    "old message": () => pick(site.sockets)?.message({ old: true }),
    advance: () => site.clock.advance(random() ** 3 * 200_000),
    moment: () => site.clock.advance(random() * 300),
    stop: () => site.clock.stop(random() * 60_000),
    sleep: () => site.clock.sleep((random() - 0.3) * 3_600_000),
    page: () => site.page.fire(pick(["online", "offline", "focus", "pageshow", "resume"])),
    hide: () => site.page.fire("pagehide", { persisted: random() < 0.5 }),
    break: () => site.socket && (site.socket.broken = true),
    send: () => {
      const n = ++sent;
      receipts.push(live.send({ n }, { confirm: () => random() < 0.3 }));
      before.push(0);
    },
    report: () => live.report(pick(["a", "b"]), { report: ++sent }),
    reopen: () => live.reopen(),
    close: () => random() < 0.2 && live.close(),
    context: () => random() < 0.3 && live.context(String(++contexts)),
  };
  for (let i = 0; i < steps; i++) {
    const what = pick(Object.keys(events));
    events[what]!();
    check(`step ${i}, ${what}`);
  }

  // From here on every socket that is dialled opens, and every question is
  // answered: whatever state it was in, it is well within a backoff, a
  // handshake and a verdict, and stays so.
  site.page.fire("pageshow");
  live.reopen();
  const answered = new Map(site.sockets.map((s) => [s, s.sent.length]));
  const world = (ms: number) => {
    for (const end = site.clock.mono + ms; site.clock.mono < end; site.clock.advance(500)) {
      const s = site.socket;
      if (s.closed || s.ended) continue;
      if (!answered.has(s)) {
        answered.set(s, 0);
        s.open();
        s.message({ hello: 1 });
      }
      if (!s.broken) for (const m of s.sent.slice(answered.get(s))) if (m == ping) s.message(pong);
      answered.set(s, s.sent.length);
    }
  };
  world(600_000 + 200_000);
  assert.equal(live.status.state, "live", `seed ${seed}: ${JSON.stringify(live.status)}`);
  const sockets = site.sockets.length;
  world(600_000);
  assert.equal(site.sockets.length, sockets, `seed ${seed}: a healthy link was replaced`);
  check("recovery");
  live.close();
  site.clock.advance(200_000);
  assert.equal(site.clock.pending, 0, `seed ${seed}: a timer is left`);
};

test("whatever happens, one socket, no send twice, and well again", (t) => {
  t.mock.method(console, "error", (e: unknown) => assert.fail(String(e)));
  for (let seed = 1; seed <= 200; seed++) history(seed, 150);
});
