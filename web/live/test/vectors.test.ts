// Every case of testdata/vectors/liveness, the specification that this client
// shares with the Go package internal/liveness.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { quiet, timing } from "../src/channels.js";
import { classOf, codeOfRefusal, holdfast, hydro, MAX_PEER_DELAY, restartDelay } from "../src/codes.js";
import { ceiling, createFunnel, LATER_MIN, MIN_ATTEMPT_GAP, pageBackoff, STABLE_AFTER, timingBackoff, UNATTENDED_RETRY, type Action, type Backoff } from "../src/funnel.js";
import { APPLICATION, BYTE, createJudge, FRAME, PING, PONG, PROTOCOL, TEXT, type Arrival, type Effects, type JudgeConfig } from "../src/judge.js";
import { createOutbox, type Loss } from "../src/outbox.js";
import { data, typing } from "../src/stream.js";
import { LATE_TICK, SLEEP_GAP } from "../src/time.js";

// Seen from build/test, where the compiled tests run.
const dir = new URL("../../../../testdata/vectors/liveness/", import.meta.url);

const read = (name: string) => JSON.parse(readFileSync(new URL(name, dir), "utf8"));

/** Takes fields out of a step; what is left at the end nobody looked at. */
class Fields {
  readonly rest: Record<string, any>;
  constructor(step: object) {
    this.rest = { ...step };
  }
  take(name: string, absent: any = undefined) {
    const v = this.rest[name] ?? absent;
    delete this.rest[name];
    return v;
  }
  done(where: string) {
    assert.deepEqual(this.rest, {}, `${where}: fields that no test looks at`);
  }
}

/** The two clocks of a script. */
const createClock = () => {
  let step = 0;
  return (s: Fields) => {
    step += s.take("wallStep", 0);
    const mono: number = s.take("at");
    return { mono, wall: 1e12 + mono + step };
  };
};

const nextOf = (next: number) => (next == Infinity ? null : next);

const arrivals: Record<string, Arrival> = { byte: BYTE, frame: FRAME, text: TEXT, ping: PING, pong: PONG };
const probes: Record<string, number> = { none: 0, protocol: PROTOCOL, application: APPLICATION };

const channelsFile = read("channels.json");

/** A judge's configuration from its entry in channels.json. */
const configOf = (c: any): JudgeConfig => ({
  handshake: c.handshakeMs,
  ready: c.readyMs,
  keepalive: c.keepaliveMs,
  tracks: c.tracks.map((t: any) => ({
    probe: probes[t.probe],
    counts: arrivals[t.counts],
    textOnceAsked: t.textOnceAsked,
    idle: t.idleMs,
    window: t.windowMs,
    beat: t.beatMs,
    ...(t.when == "always" ? {} : { answered: t.when == "onceAnswered" }),
  })),
  ...(c.typing && { typing: { quiet: c.typing.quietMs, maxBytes: c.typing.maxBytes, idle: c.typing.idleMs, window: c.typing.windowMs } }),
});

// The parts whole, and once more as a page has them (see globals.d.ts): there
// only with what pages have.
const as = FULL ? "" : "page core: ";

for (const file of FULL ? ["judge-data.json", "judge-typing.json", "judge-control.json", "judge-live.json"] : ["judge-live.json"]) {
  const judged = read(file).cases;
  assert.ok(judged.length > 0, `${file} holds no case`);
  for (const c of judged) {
    test(`${as}${file}: ${c.name}`, () => {
      const config = configOf(channelsFile.channels[c.channel]);
      if (c.keepalive) config.keepalive = c.keepalive;
      const judge = createJudge(config);
      const clock = createClock();
      c.steps.forEach((raw: object, i: number) => {
        const s = new Fields(raw);
        const now = clock(s);
        const what: string = s.take("do");
        const kind = s.take("kind");
        const e: Effects = (
          {
            start: () => judge.start(now),
            opened: () => judge.opened(now),
            ready: () => judge.ready(now),
            inbound: () => judge.inbound(now, arrivals[kind]!),
            sent: () => judge.sent(now, s.take("bytes", 0), s.take("unsent", 0)),
            pause: () => judge.pause(now, true),
            resume: () => judge.pause(now, false),
            wake: () => judge.wake(now),
            tick: () => judge.tick(now),
          } as Record<string, () => Effects>
        )[what]!();
        const got = {
          state: e.state,
          next: nextOf(e.next),
          probes: [...(e.probes & APPLICATION ? ["application"] : []), ...(e.probes & PROTOCOL ? ["protocol"] : [])],
          dead: e.dead ?? "",
        };
        const want = { state: s.take("state"), next: s.take("next", null), probes: s.take("probes", []), dead: s.take("dead", "") };
        const where = `step ${i}, ${what} at ${now.mono}`;
        assert.deepEqual(got, want, where);
        s.done(where);
      });
    });
  }
}

const backoffFile = read("backoff.json");
const profiles = { holdfast, hydro } as const;

const backoffOf = (name: string): Backoff => {
  const c = backoffFile.classes[name];
  return { first: c.firstMs, base: c.baseMs, cap: c.capMs };
};

const { cases } = read("funnel.json");
const funnels = cases.filter((c: any) => (FULL ? true : !(c.unattended || c.instance || c.steps.some((s: any) => s.do == "drain"))));
assert.ok(funnels.length > 0);
for (const c of funnels) {
  test(`${as}funnel.json: ${c.name}`, () => {
    let random = 0;
    const funnel = createFunnel({
      profile: profiles[c.profile as keyof typeof profiles],
      backoff: backoffOf(c.backoff),
      random: () => random,
      unattended: c.unattended,
      instance: c.instance,
    });
    const clock = createClock();
    c.steps.forEach((raw: object, i: number) => {
      const s = new Fields(raw);
      const now = clock(s);
      const what: string = s.take("do");
      const socket: number = s.take("socket", 0);
      random = s.take("random", 0);
      const a: Action = (
        {
          start: () => funnel.start(now),
          stop: () => funnel.stop(now),
          opened: () => funnel.opened(now, socket),
          ready: () => funnel.ready(now, socket),
          fail: () => funnel.fail(now, socket, { code: s.take("code"), reason: s.take("reason"), after: s.take("after") }),
          drain: () => funnel.drain(now, socket, s.take("after", 0)),
          wake: () => funnel.wake(now),
          // The flag for display is the client's; for the funnel the return of
          // the network is a wake, and its loss is nothing.
          online: () => funnel.wake(now),
          offline: () => funnel.tick(now),
          tick: () => funnel.tick(now),
        } as Record<string, () => Action>
      )[what]!();
      const want = {
        retire: s.take("retire", 0),
        connect: s.take("connect", 0),
        probe: s.take("probe", false),
        next: s.take("next", null),
        phase: s.take("phase"),
      };
      const where = `step ${i}, ${what} at ${now.mono}`;
      assert.deepEqual({ ...a, next: nextOf(a.next) }, want, where);
      s.done(where);
    });
  });
}

const { cases: outboxes } = read("outbox.json");
assert.ok(outboxes.length > 0);
for (const c of outboxes) {
  test(`${as}outbox.json: ${c.name}`, () => {
    let lost: { item: string; why: Loss }[] = [];
    const limits = { count: c.limits.count, bytes: c.limits.bytes, age: c.limits.ageMs };
    const outbox = createOutbox<string>(limits, (item, why) => lost.push({ item, why }), c.context);
    const clock = createClock();
    c.steps.forEach((raw: object, i: number) => {
      const s = new Fields(raw);
      const now = clock(s);
      const what: string = s.take("do");
      lost = [];
      let out = "";
      const item = s.take("item", "");
      const key = s.take("key", "");
      (
        {
          push: () => outbox.push(now, s.take("bytes", 0), item),
          report: () => outbox.report(key, item),
          withdraw: () => outbox.withdraw(key),
          connected: () => outbox.connected(),
          next: () => (out = outbox.next(now) ?? ""),
          expire: () => outbox.expire(now),
          context: () => outbox.context(s.take("context")),
        } as Record<string, () => unknown>
      )[what]!();
      const want = { size: [s.take("len", 0), s.take("bytesQueued", 0)], out: s.take("out", ""), lost: s.take("lost", []) };
      const where = `step ${i}, ${what} at ${now.mono}`;
      assert.deepEqual({ size: outbox.size(), out, lost }, want, where);
      s.done(where);
    });
  });
}

test(`${as}closecodes.json`, () => {
  const { codes, restart, answers } = read("closecodes.json");
  assert.ok(codes.length > 0 && restart.length > 0 && answers.length > 0);
  for (const c of codes) {
    for (const profile of [holdfast, hydro]) {
      assert.equal(classOf(profile, c.code), c[profile.name], `${profile.name} ${c.code}`);
      assert.equal(profile.ended == c.code, !!c.ended, `${profile.name} ${c.code} ended`);
    }
  }
  for (const r of restart) assert.equal(restartDelay(r.reason) ?? null, r.afterMs, r.reason);
  for (const a of answers) assert.equal(codeOfRefusal(a.status, a.ours), a.code, `${a.status} ${a.ours}`);
});

test(`${as}backoff.json`, () => {
  assert.deepEqual(
    [STABLE_AFTER, MIN_ATTEMPT_GAP, LATER_MIN, MAX_PEER_DELAY, UNATTENDED_RETRY],
    [backoffFile.stableAfterMs, backoffFile.minAttemptGapMs, backoffFile.laterMinMs, backoffFile.maxPeerDelayMs, backoffFile.unattendedRetryMs],
  );
  assert.deepEqual({ page: pageBackoff, timing: timingBackoff }, { page: backoffOf("page"), timing: backoffOf("timing") });
  for (const name of Object.keys(backoffFile.classes)) {
    const b = backoffOf(name);
    backoffFile.classes[name].ceilingsMs.forEach((want: number, i: number) => assert.equal(ceiling(b, i + 1), want, `${name} ${i}`));
    assert.equal(ceiling(b, 2 ** 30), b.cap, `${name}: a year of failures`);
  }
});

test(`${as}channels.json`, () => {
  assert.deepEqual([channelsFile.sleepGapMs, channelsFile.lateTickMs], [SLEEP_GAP, LATE_TICK]);
  // What is absent in ours is zero or false in the file.
  const bare = (v: unknown): unknown =>
    Array.isArray(v) ? v.map(bare)
    : v && typeof v == "object" ? Object.fromEntries(Object.entries(v).filter(([, x]) => x !== 0 && x !== false).map(([k, x]) => [k, bare(x)]))
    : v;
  const ours: Record<string, JudgeConfig> = { live: quiet, timing, data, typing };
  for (const [name, { backoff, answer, ...config }] of Object.entries(ours) as [string, any][])
    assert.deepEqual(bare(config), bare(configOf(channelsFile.channels[name])), name);
});

test(`${as}every vector file is run`, () => {
  assert.deepEqual(readdirSync(dir).sort(), [
    "README.md", "backoff.json", "channels.json", "closecodes.json", "funnel.json",
    "judge-control.json", "judge-data.json", "judge-live.json", "judge-typing.json", "outbox.json",
  ]);
});
