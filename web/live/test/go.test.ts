// The client against the real Go server, every kind of channel, both profiles.

import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import { holdfast, hydro, timing, type LiveOptions } from "@holdfast/live";
import { closeAll, connect, pause, until } from "./real.js";
import { buildSite, startSite, type Site } from "./site.js";

let server: Site;
let host: string;

before(async () => {
  // Seen from build/test, where the compiled tests run.
  server = await startSite(buildSite(fileURLToPath(new URL("../../", import.meta.url))));
  host = server.site;
});
afterEach(closeAll);
after(() => server?.stop());

const soon = { random: () => 0.01 };

const profiles = { holdfast, hydro } as const;

for (const [name, profile] of Object.entries(profiles)) {
  const open = (path: string, more: Partial<LiveOptions> = {}) => connect(`ws://${host}/${name}${path}`, { profile, ...soon, ...more });

  test(`${name}: inbox: state, push, acknowledgement, other tab, reconnect`, async () => {
    const a = open("/inbox");
    const b = open("/inbox");
    await until("both have the state", () => a.messages.length == 1 && b.messages.length == 1);
    const ids = (m: any): string[] => m.inbox?.map((n: any) => n.id) ?? [];
    const id = `${name}-1`;
    await server.order("post", { id, text: "hello" });
    await until("both have the notice", () => [a, b].every((c) => ids(c.messages.at(-1)).includes(id)));
    const receipt = a.live.send({ op: "acknowledge", id }, { confirm: (m) => m.inbox && !ids(m).includes(id) });
    assert.equal(receipt.state, "sent");
    await until("confirmed", () => receipt.state == "confirmed");
    await until("the other tab knows", () => !ids(b.messages.at(-1)).includes(id));
    const before = a.messages.length;
    a.sockets[0]!.terminate();
    await until("the state again", () => a.messages.length > before);
    assert.equal(a.sockets.length, 2);
    assert.equal(a.live.status.state, "live");
  });

  test(`${name}: watch: replayed after a reconnect, soft errors`, async () => {
    const c = open("/watch");
    c.live.report("watch", { op: "watch", ids: ["a", "nobody"] });
    await until("state and error", () => c.messages.length == 2);
    assert.deepEqual(c.messages.find((m) => m.id), { id: "a", status: "waiting" });
    assert.deepEqual(c.messages.find((m) => m.error), { error: { name: "NotFound", params: ["nobody"] } });
    assert.equal(c.live.status.state, "live");
    c.live.report("watch", { op: "watch", ids: ["b"] });
    await until("b", () => c.messages.at(-1).id == "b");
    c.sockets[0]!.terminate();
    const before = c.messages.length;
    await until("b again", () => c.messages.length > before);
    assert.equal(c.messages.at(-1).id, "b", "the newest list, once");
    assert.equal(c.sockets.length, 2);
  });

  test(`${name}: detail: ended is no error, reopen() sees what was taken up again`, async () => {
    await server.order("set", { id: name, status: "accepted" });
    const c = open(`/detail?id=${name}`);
    await until("ended", () => c.live.status.state == "ended");
    assert.equal(c.live.status.why!.code, 4001);
    await server.order("set", { id: name, status: "judging" });
    c.live.reopen();
    await until("judging", () => c.messages.at(-1).status == "judging");
    assert.equal(c.live.status.state, "live");
  });

  test(`${name}: lease: reports are answered and confirmed`, async () => {
    const c = open("/lease", { channel: timing });
    await until("live", () => c.live.status.state == "live");
    assert.equal(c.messages[0].ready, true);
    const receipt = c.live.report("active", { active: true }, { confirm: (m) => m.total !== undefined });
    await until("confirmed", () => receipt.state == "confirmed");
    c.sockets[0]!.terminate();
    await until("reported again", () => c.messages.filter((m) => m.total !== undefined).length == 2);
  });

  test(`${name}: refusals of Open`, async () => {
    const denied = open("/refused?code=0");
    const later = open("/refused?code=1013");
    await until("refused", () => denied.live.status.state == "refused");
    assert.deepEqual(denied.live.status.why, { code: 4000, reason: "PermissionError" });
    await until("tried again", () => later.sockets.length > 1);
    const revoked = open("/refused?code=4401");
    if (name == "holdfast") {
      await until("refused", () => revoked.live.status.state == "refused");
      assert.equal(revoked.live.status.why!.reason, "asked for");
    } else await until("tried again", () => revoked.sockets.length > 1);
  });

  test(`${name}: too much at once is a soft error, too large a counted one`, async () => {
    const c = open("/inbox");
    await until("live", () => c.live.status.state == "live");
    for (let i = 0; i < 150; i++) c.live.send({ op: "acknowledge", id: "nobody" });
    await until("an error frame", () => c.messages.some((m) => ["RateLimited", "Busy"].includes(m.error?.name)));
    assert.equal(c.sockets.length, 1);
    c.live.send({ op: "x".repeat(2_000) });
    await until("back again", () => c.sockets.length == 2 && c.live.status.state == "live");
    assert.equal(c.live.status.why!.code, 1009);
  });
}

test("run: output goes on from where this client is", async () => {
  let text = "";
  const take = (m: any) => {
    if (m.data === undefined) return;
    assert.equal(m.at, text.length, "neither lost nor repeated");
    text += Buffer.from(m.data, "base64").toString();
  };
  const c = connect(`ws://${host}/holdfast/run`, { ...soon, message: take });
  c.live.report("run", () => ({ op: "run", from: text.length }));
  await server.order("write", { text: "compiling" });
  await until("the first output", () => text == "compiling");
  c.sockets[0]!.terminate();
  await server.order("write", { text: ", running" });
  await until("the rest", () => text == "compiling, running");
  await server.order("finish");
  await until("ended", () => c.live.status.state == "ended");
});

test("a refused upgrade: the page asks why, and stops where its token is over", async () => {
  const options = { ...soon, access: `http://${host}/v1/access` };
  const revoked = connect(`ws://${host}/forbidden`, { ...options, token: "hf_old" });
  await until("refused", () => revoked.live.status.state == "refused");
  assert.equal(revoked.live.status.why!.code, 4401);
  assert.equal(revoked.live.status.why!.reason, "token-revoked");
  const good = connect(`ws://${host}/forbidden`, { ...options, token: "hf_good" });
  await until("tried again", () => good.sockets.length > 1);
  assert.equal(good.live.status.why!.code, 1006);
});

test("a probe over a real link costs one round trip", async () => {
  const c = connect(`ws://${host}/holdfast/inbox`, { ...soon, channel: { ...timing, tracks: [{ probe: 2, counts: 1, idle: 100, window: 5_000 }] } });
  await until("live", () => c.live.status.state == "live");
  const proof = c.live.proof();
  await until("proven again", () => c.live.proof() > proof + 150);
  assert.equal(c.sockets.length, 1);
});

test("a planned restart: back after the delay that the server gave", async () => {
  const c = connect(`ws://${host}/holdfast/inbox`, soon);
  await until("live", () => c.live.status.state == "live");
  const from = performance.now();
  await server.order("shutdown", { profile: "holdfast", spread: "600ms" });
  await until("told", () => c.live.status.why?.code == 1012);
  const asked = Number(/after=(\d+)/.exec(c.live.status.why!.reason!)![1]);
  assert.ok(asked < 600);
  await until("dialled", () => c.sockets.length > 1);
  assert.ok(performance.now() - from >= asked, "not before its turn");
  await pause(50);
  assert.notEqual(c.live.status.state, "refused");
});
