// Pairing and the connection: what the page says, and what it does next, when a
// link is bad, the path is dead, the page was frozen, or somebody is not who he
// was.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash, hkdfSync } from "node:crypto";
import { readFileSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { join } from "node:path";
import { after, afterEach, beforeEach, test } from "node:test";
import { binary, closeBrowser, device, FIELD, figure, line, machineId, pair, PHONE, prompt, run, Scene, shell, shows, sleep, text, tmux, until, withCamera } from "./lib.mjs";

let scene;
beforeEach(() => {
  scene = new Scene();
});
afterEach(() => scene.end());
after(closeBrowser);

const phase = (page, p, ms = 20_000) => page.waitForSelector(`.state[data-phase="${p}"]`, { timeout: ms });
const fault = async (page, link) => {
  await page.goto("about:blank");
  await page.goto(link);
  const found = await page.waitForSelector("[data-fault], [data-relay]", { timeout: 30_000 });
  // A link of another relay than the page's is asked about first.
  if (await found.getAttribute("data-relay")) await page.locator("[data-relay] button").first().tap();
  return (await page.waitForSelector("[data-fault]", { timeout: 30_000 })).getAttribute("data-fault");
};

test("a link pairs, leaves the address bar at once, and is never sent", async () => {
  const up = await scene.up();
  const d = await device(scene);
  const link = await up.link();
  const secret = link.split("#")[1];
  await d.page.goto(link, { waitUntil: "domcontentloaded" });
  await until(() => !d.page.url().includes("hf1"));
  await d.page.waitForURL(/#\/m\//);
  await phase(d.page, "up");
  assert.ok(!d.requests.some((r) => r.includes(secret.slice(4, 30)) || r.includes("hf_")), "in a request's address");
  const where = d.page.url();
  await d.page.goBack().catch(() => {});
  assert.ok(!d.page.url().includes("hf1"), "in the history");
  await d.page.goto(where);
  const stored = await d.page.evaluate(async () => {
    const db = await new Promise((r) => (indexedDB.open("holdfast").onsuccess = (e) => r(e.target.result)));
    const all = (name) => new Promise((r) => (db.transaction(name).objectStore(name).getAll().onsuccess = (e) => r(e.target.result)));
    const [key] = await all("keys");
    const taken = [];
    for (const format of ["pkcs8", "jwk", "raw"]) await crypto.subtle.exportKey(format, key.privateKey).then(() => taken.push(format), () => {});
    return { taken, text: JSON.stringify(await all("machines")) + JSON.stringify({ ...localStorage, ...sessionStorage }) };
  });
  assert.deepEqual(stored.taken, [], "the device's key could be read");
  assert.ok(!stored.text.includes(secret.slice(4, 30)), "the link was stored");
});

test("expired, used, foreign, tampered and cut links each say so", { timeout: 120_000 }, async () => {
  const up = await scene.up();
  const [first, second] = [await device(scene), await device(scene)];
  const link = await up.link();
  await pair(first, link);
  const { page } = second;
  assert.equal(await fault(page, link), "unknown", "used by another device");
  assert.match(await page.locator("[data-fault]").innerText(), /used by another device/);
  assert.equal(await fault(page, link.slice(0, -6)), "cutOff");
  assert.equal(await fault(page, link.slice(0, -12) + "AAAA" + link.slice(-8)), "damaged");
  assert.equal(await fault(page, link.replace("#hf1.", "#hf2.")), "version");
  // Of a relay that is not there any more.
  const other = await scene.up({ name: "other" });
  const foreign = await other.link();
  await other.stop();
  assert.equal(await fault(page, `${up.url}/#${foreign.split("#")[1]}`), "unreachable");
  // The clock of the page is past the link's time, and the relay knows it not.
  const fresh = await up.link();
  await pair(first, fresh);
  await page.clock.setFixedTime(Date.now() + 600_000);
  // Workers have a clock of their own: an old link is made of a new one's bytes.
  const bytes = Buffer.from(fresh.split("#hf1.")[1], "base64url");
  bytes.writeUInt32BE(Math.floor(Date.now() / 1000) - 60, 16);
  createHash("sha256").update(bytes.subarray(0, -4)).digest().copy(bytes, bytes.length - 4, 0, 4);
  assert.equal(await fault(page, `${up.url}/#hf1.${bytes.toString("base64url")}`), "expired");
  await page.goto(`${up.url}/#/pair`);
  await page.locator("textarea.link").fill("not a link");
  await page.locator("button", { hasText: /^Pair$/ }).tap();
  assert.equal(await page.waitForSelector("[data-fault]").then((e) => e.getAttribute("data-fault")), "notLink");
  // A link that is pasted by hand, with the line breaks of a narrow terminal.
  await page.locator("textarea.link").fill((await up.link()).replace(/(.{60})/g, "$1\n"));
  await page.locator("button", { hasText: /^Pair$/ }).tap();
  await page.waitForURL(/#\/m\//, { timeout: 30_000 });
});

test("a link of another relay asks first, and sends it nothing before the answer", async () => {
  const [up, other] = [await scene.up(), await scene.up({ name: "other" })];
  const d = await device(scene);
  const { page } = d;
  const link = await other.link();
  const question = page.locator("[data-relay]");
  await page.goto(`${up.url}/#${link.split("#")[1]}`);
  await question.waitFor();
  assert.ok(await question.evaluate((e) => e == document.activeElement));
  assert.match(await question.innerText(), new RegExp(`${new URL(other.url).host}[^]*other[^]*${new URL(up.url).host}`));
  await page.getByText("Do not pair").tap();
  await page.locator("textarea.link").waitFor();
  assert.deepEqual(d.requests.filter((r) => r.startsWith(other.url)), []);
  // Pasted, and meant: the link is still good.
  await page.locator("textarea.link").fill(link);
  await page.locator("button", { hasText: /^Pair$/ }).tap();
  await question.getByRole("button", { name: "Pair", exact: true }).tap();
  await page.waitForURL(/#\/m\//, { timeout: 30_000 });
  await phase(page, "up");
});

test("the page scans the code of a link itself", async () => {
  const up = await scene.up();
  const link = await up.link();
  const { default: encodeQR } = await import("../../web/app/node_modules/qr/index.js");
  const d = await device(scene, PHONE, await withCamera(scene, encodeQR(link, "raw", { ecc: "low", border: 2 })));
  await d.context.grantPermissions(["camera"]);
  await d.page.goto(`${up.url}/#/pair`);
  await d.page.getByText("Scan").tap();
  await d.page.waitForURL(/#\/m\//, { timeout: 30_000 });
  await phase(d.page, "up");
});

test("a camera that is refused is said, and the link can be pasted", async () => {
  const up = await scene.up();
  const d = await device(scene);
  await d.page.goto(`${up.url}/#/pair`);
  await d.page.evaluate(() => (navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("no", "NotAllowedError"))));
  await d.page.getByText("Scan").tap();
  await d.page.waitForSelector("main .note");
  assert.ok(await d.page.locator("textarea.link").isVisible());
});

test("somebody with the link's address and another key gets nothing", async () => {
  const up = await scene.up();
  const link = await up.link();
  // The link of another machine's keys: the built-in server shows others.
  const bytes = Buffer.from(link.split("#hf1.")[1], "base64url");
  const relayLength = bytes[20];
  const at = 21 + relayLength + 1 + bytes[21 + relayLength] + 2;
  assert.equal(bytes[at - 1], 1, "the first key is ed25519");
  // One key only, and not the machine's.
  const count = at - 2;
  bytes[count] = 1;
  bytes[at] ^= 1;
  const cut = bytes.subarray(0, at + 32);
  const forged = Buffer.concat([cut, createHash("sha256").update(cut).digest().subarray(0, 4)]);
  const d = await device(scene);
  assert.equal(await fault(d.page, `${up.url}/#hf1.${forged.toString("base64url")}`), "hostKey");
  assert.equal(await d.page.locator("[data-fault] code").count(), 2);
  for (const c of await d.page.locator("[data-fault] code").allInnerTexts()) assert.match(c, /SHA256:[A-Za-z0-9+/]{43}/);
});

test("the machine's own sshd serves terminals where the person chooses it", async () => {
  const up = await scene.up({ sshd: await scene.sshd() });
  const d = await device(scene);
  await pair(d, await up.link());
  const { page } = d;
  await page.locator("details summary").tap();
  await page.getByText("post-quantum: a recording").waitFor();
  await page.getByLabel("the machine's sshd").tap();
  await phase(page, "up");
  await until(async () => (await page.locator("details").innerText()).includes("OpenSSH"));
  await shell(d, /[$#] ?$/);
  await run(page, "echo client=${SSH_CONNECTION:+sshd}");
  assert.match(await text(page), /client=sshd/);
});

test("devices are listed, and a revoked one is out at once and says so", async () => {
  const up = await scene.up();
  const [phone, laptop] = [await device(scene), await device(scene)];
  await pair(phone, await up.link());
  await pair(laptop, await up.link());
  await shell(phone);
  const { page } = laptop;
  await page.evaluate(() => (location.hash = "#/devices"));
  const other = page.locator(".item").filter({ hasNotText: "this device" });
  await other.getByText("Revoke").tap();
  await page.locator("dialog button.danger").tap();
  await until(async () => (await page.locator(".item").count()) == 1);
  await phone.page.waitForSelector('[data-why="close"][data-code="4401"]', { timeout: 5000 });
  await phone.page.getByText("has been revoked").waitFor();
  await phone.page.waitForSelector('[data-ended="lost"]');
  // Coming back does not help, and says the same.
  await phone.page.getByText("Try now").tap();
  await phone.page.waitForSelector('[data-why="close"][data-code="4401"]');
});

test("of a machine that lets the device in no more nothing is shown, and what was written goes when the person says so", { timeout: 120_000 }, async () => {
  scene.tmux("-f", "/dev/null", "new-session", "-d", "-s", "secretive", "-x", "100", "-y", "30", "bash --norc");
  scene.later(() => scene.tmux("kill-server"));
  const up = await scene.up();
  const phone = await device(scene);
  const { page } = phone;
  await phone.context.addInitScript(() => {
    globalThis.workers = [];
    globalThis.Worker = class extends Worker {
      constructor(...how) {
        super(...how);
        workers.push(this);
      }
    };
  });
  await pair(phone, await up.link());
  const id = machineId(page);
  await page.evaluate(() => (location.hash = "#/"));
  const row = page.locator("li[data-session]", { hasText: "secretive" });
  await row.locator("a").tap({ timeout: 20_000 });
  await page.locator("textarea.message").fill("what I meant to say");
  await page.evaluate((id) => (location.hash = `#/m/${id}/shell`), id);
  await page.waitForSelector('.screen[data-phase="open"]', { timeout: 20_000 });
  await prompt(page);
  await line(page, "echo hush-$((6*7))");
  await shows(page, "hush-42");
  /** What this browser keeps of sessions. */
  const kept = () =>
    page.evaluate(async () => {
      const db = await new Promise((done) => (indexedDB.open("holdfast.sessions").onsuccess = (e) => done(e.target.result)));
      const all = (store) => new Promise((done) => (db.transaction(store).objectStore(store).getAll().onsuccess = (e) => done(e.target.result)));
      const got = { lists: JSON.stringify(await all("lists")), drafts: await all("drafts"), screens: Object.keys(sessionStorage).filter((n) => n.startsWith("holdfast.screen.")) };
      db.close();
      return got;
    });
  await until(async () => (await kept()).lists.includes("secretive"), async () => JSON.stringify(await kept()));
  // A path that breaks takes nothing away.
  await phone.context.setOffline(true);
  await page.evaluate(() => (location.hash = "#/"));
  await sleep(500);
  assert.ok((await kept()).lists.includes("secretive"));
  await phone.context.setOffline(false);
  await page.evaluate((id) => (location.hash = `#/m/${id}`), id);
  await page.waitForSelector('.state[data-phase="up"]', { timeout: 20_000 });

  // Another page of the same browser looks at the sessions.
  const tab = await phone.context.newPage();
  await tab.goto(`${up.url}/#/`);
  await tab.locator("li[data-session]", { hasText: "secretive" }).waitFor({ timeout: 20_000 });
  const [{ sessions: told }] = JSON.parse((await kept()).lists);
  execFileSync(binary, ["devices", "revoke", "--state", up.state, "Android, Chrome"], { env: scene.env() });
  await page.waitForSelector("[data-out]", { timeout: 10_000 });
  await until(async () => !(await page.innerText("main")).includes("secretive"), () => page.innerText("main"));
  // What was on its way to the page when it lost everything is not kept either.
  for (const p of [page, tab]) {
    await p.evaluate((session) => {
      for (const w of workers) w.dispatchEvent(new MessageEvent("message", { data: { op: "sessionChanged", session, at: Date.now() } }));
    }, told.find((s) => s.name == "secretive"));
  }
  await sleep(1500);
  await tab.locator("[data-out]").waitFor();
  assert.equal(await tab.locator("li[data-session]").count(), 0);
  await page.evaluate(() => (location.hash = "#/"));
  const note = page.locator("[data-out]");
  await note.waitFor();
  await page.evaluate((id) => (location.hash = `#/m/${id}/shell`), id);
  await page.locator(".xterm-rows").waitFor();
  await until(async () => !(await text(page)).includes("hush"), () => text(page));
  await page.evaluate(() => (location.hash = "#/"));
  await note.waitFor();
  assert.match(await note.innerText(), /access was revoked/);
  assert.equal(await row.count(), 0);
  await until(async () => (await kept()).lists == "[]", async () => JSON.stringify(await kept()));
  assert.deepEqual((await kept()).screens, []);
  // Nor after a reload, which asks nobody; the person's own words are still there.
  await page.reload();
  await note.locator("summary").tap();
  await note.getByText("what I meant to say").waitFor();
  assert.equal(await row.count(), 0);
  await note.getByRole("button", { name: "Remove the rest" }).tap();
  await page.locator("dialog button.danger").tap();
  await page.getByText("No machine is paired").waitFor();
  await tab.getByText("No machine is paired").waitFor();
  assert.deepEqual(await kept(), { lists: "[]", drafts: [], screens: [] });
});

test("a machine with another key is refused, with both fingerprints", async () => {
  let up = await scene.up();
  const d = await device(scene);
  await pair(d, await up.link());
  const { host } = new URL(up.url);
  await up.stop();
  await d.page.waitForSelector('[data-why]', { timeout: 20_000 });
  for (const f of ["host_ed25519", "host_ecdsa"]) rmSync(join(up.state, f));
  up = await scene.up({ listen: host });
  await until(async () => {
    if (await d.page.locator('[data-why="hostKey"]').count()) return true;
    await d.page.getByText("Try now").tap({ timeout: 500 }).catch(() => {});
    return false;
  });
  const words = await d.page.locator('[data-why="hostKey"]').innerText();
  assert.match(words, /not the machine that was paired/);
  assert.ok(words.match(/SHA256:[A-Za-z0-9+/]{43}/g).length >= 2, words);
});

test("a machine that is not there is named, and comes back by itself", async () => {
  const relay = await scene.up();
  const token = execFileSync(process.env.HOLDFAST_BINARY ?? new URL("../../bin/holdfast", import.meta.url).pathname, ["token", "create", "--state", relay.state, "--account", "owner", "--kind", "agent", "--name", "away", "--machine", "away"], { env: scene.env(), encoding: "utf8" }).match(/hf_[\w-]+/)[0];
  const bin = process.env.HOLDFAST_BINARY ?? new URL("../../bin/holdfast", import.meta.url).pathname;
  const agent = () => scene.start(bin, ["up", "--json", "--state", join(scene.dir, "away"), "--relay", relay.url, "--name", "away", "--sshd", "off"], { env: { ...scene.env(), HOLDFAST_TOKEN: token } });
  const first = agent();
  const link = await new Promise((r) => first.lines.on("line", (l) => JSON.parse(l).event == "link" && r(JSON.parse(l).link)));
  const d = await device(scene);
  await pair(d, link);
  first.kill("SIGTERM");
  await first.over;
  await d.page.waitForSelector('[data-code="1013"]', { timeout: 20_000 });
  assert.match(await d.page.locator("[data-why]").innerText(), /not connected to the relay/);
  agent();
  await phase(d.page, "up", 40_000);
});

test("18: a half-open link is noticed while typing, and a tmux session goes on", { timeout: 90_000 }, async () => {
  const path = await scene.faulty();
  const up = await scene.up({ args: ["--public-url", `http://${path.addr}`] });
  await path.tell(`target ${new URL(up.url).host}`);
  const d = await device(scene);
  await pair(d, await up.link());
  await tmux(d, "keep");
  const { page } = d;
  await shows(page, "$");
  await line(page, "echo be''fore");
  await shows(page, "before");
  await path.tell("stall");
  const began = Date.now();
  await page.focus(FIELD);
  // A last byte that was on its way may seem to answer the first key; who types
  // and sees nothing types on.
  const typing = setInterval(() => void page.keyboard.insertText("x"), 1500);
  await page.keyboard.insertText("x");
  await page.waitForSelector('.state:not([data-phase="up"])', { timeout: 15_000 }).finally(() => clearInterval(typing));
  const noticed = Date.now() - began;
  figure("half-open link noticed while typing", `${noticed} ms`);
  assert.ok(noticed < 9000, `${noticed} ms`);
  await phase(page, "up", 20_000);
  await page.waitForSelector('.screen[data-phase="open"]');
  await shows(page, "before");
  // What was typed into the dead link is gone: the line is empty.
  await line(page, "echo af''ter");
  await shows(page, "after");
  assert.equal(scene.tmux("list-sessions", "-F", "#{session_name}"), "keep");
  scene.tmux("kill-server");
});

test("18: offline, then online: nothing is claimed, and it comes back without a tap", { timeout: 90_000 }, async () => {
  const path = await scene.faulty();
  const up = await scene.up({ args: ["--public-url", `http://${path.addr}`] });
  await path.tell(`target ${new URL(up.url).host}`);
  const d = await device(scene);
  await pair(d, await up.link());
  const { page } = d;
  await shell(d);
  await d.context.setOffline(true);
  await path.tell("cut");
  await page.waitForSelector('.state:not([data-phase="up"])');
  await page.waitForSelector('[data-ended="lost"]');
  await page.getByText("the shell ended with it").waitFor();
  await page.focus(FIELD);
  await page.keyboard.insertText("x");
  await page.locator(".toast", { hasText: "is not sent" }).waitFor();
  await until(async () => (await page.locator(".state").innerText()).includes("no network"));
  await d.context.setOffline(false);
  const began = Date.now();
  await phase(page, "up");
  figure("back after offline", `${Date.now() - began} ms`);
  await page.getByText("Open again").tap();
  await page.waitForSelector('.screen[data-phase="open"]');
  await line(page, "clear; echo he''re");
  await shows(page, "here");
  // The size that a program sees is the screen's, in the new connection too.
  await line(page, "clear; stty size");
  await shows(page, /^\d+ \d+$/m);
  const rows = await page.$$eval(".xterm-rows > div", (r) => r.length);
  assert.match(await text(page), new RegExp(`^${rows} \\d+$`, "m"));
});

test("18: a page that was frozen while its link died comes back by itself", { timeout: 90_000 }, async () => {
  const path = await scene.faulty();
  const up = await scene.up({ args: ["--public-url", `http://${path.addr}`] });
  await path.tell(`target ${new URL(up.url).host}`);
  const d = await device(scene);
  await pair(d, await up.link());
  await tmux(d, "frozen");
  await shows(d.page, "$");
  await d.cdp.send("Page.setWebLifecycleState", { state: "frozen" });
  await path.tell("stall");
  await sleep(3000);
  await d.cdp.send("Page.setWebLifecycleState", { state: "active" });
  await d.page.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
  const began = Date.now();
  await d.page.waitForSelector('.state:not([data-phase="up"])', { timeout: 20_000 });
  await phase(d.page, "up", 20_000);
  figure("dead link after freezing: back", `${Date.now() - began} ms`);
  await line(d.page, "echo th''awed");
  await shows(d.page, "thawed");
  scene.tmux("kill-server");
});

test("a discarded page shows what it knew, attaches tmux again and says that a shell has ended", async () => {
  const up = await scene.up();
  const d = await device(scene);
  await pair(d, await up.link());
  const { page } = d;
  await tmux(d, "long");
  await shows(page, "$");
  await line(page, "echo still-th''ere");
  await shows(page, "still-there");
  await page.reload();
  await page.waitForSelector('.screen[data-phase="open"]');
  await shows(page, "still-there");
  await page.evaluate((id) => (location.hash = `#/m/${id}`), machineId(page));
  await shell(d);
  await run(page, "echo from-be''fore");
  await page.reload();
  await page.waitForSelector('[data-ended="lost"]');
  await shows(page, "from-before");
  await page.getByText("Open again").tap();
  await page.waitForSelector('.screen[data-phase="open"]');
  await prompt(page);
  scene.tmux("kill-server");
});

test("a tmux session that was ended meanwhile is said to be gone, and not made anew", { timeout: 60_000 }, async () => {
  const path = await scene.faulty();
  const up = await scene.up({ args: ["--public-url", `http://${path.addr}`] });
  await path.tell(`target ${new URL(up.url).host}`);
  const d = await device(scene);
  await pair(d, await up.link());
  await tmux(d, "gone");
  await shows(d.page, "$");
  await path.tell("stall-new");
  await path.tell("cut");
  await d.page.waitForSelector('.state:not([data-phase="up"])');
  scene.tmux("kill-session", "-t", "gone");
  await path.tell("heal");
  await d.page.waitForSelector('[data-ended="gone"]', { timeout: 30_000 });
  assert.match(await d.page.locator("[data-ended]").innerText(), /gone is not there any more/);
});

test("watching a tmux session leaves its size alone until the person asks", async () => {
  const up = await scene.up();
  scene.tmux("new-session", "-d", "-s", "desk", "-x", "120", "-y", "40");
  const desk = scene.start("script", ["-qfc", "stty cols 120 rows 40; tmux -u attach -t desk", "/dev/null"]);
  await until(() => scene.tmux("list-clients", "-t", "desk") != "");
  const size = () => scene.tmux("display-message", "-p", "-t", "desk", "#{window_width}");
  const before = await until(() => size());
  const d = await device(scene);
  await pair(d, await up.link());
  await d.page.getByText("desk").first().tap();
  await d.page.getByLabel("Terminal", { exact: true }).tap();
  await d.page.waitForSelector('.screen[data-phase="open"]');
  await sleep(500);
  assert.equal(size(), before);
  await d.page.getByLabel("Menu").tap();
  await d.page.getByText("Fit the session to this screen").tap();
  await d.page.waitForSelector('.screen[data-phase="open"]');
  await d.page.focus(FIELD);
  await d.page.keyboard.insertText(" ");
  await until(() => +size() < 60, size);
  desk.kill();
  scene.tmux("kill-server");
});

test("20: storage that was wiped asks for pairing, which is all it takes", async () => {
  const up = await scene.up();
  const d = await device(scene);
  await pair(d, await up.link());
  const where = d.page.url();
  await d.cdp.send("Storage.clearDataForOrigin", { origin: up.url, storageTypes: "all" });
  await d.page.goto("about:blank");
  await d.page.goto(where);
  await d.page.getByText("not paired with that machine any more").waitFor();
  await d.page.goto(`${up.url}/`);
  await d.page.getByText("No machine is paired").waitFor();
  await pair(d, await up.link());
});

test("what a relay can record holds no byte of the session, no key and no secret", async () => {
  const recorded = { up: [], down: [] };
  const recorder = createServer((socket) => {
    const target = connect({ host: "127.0.0.1", port });
    const both = { up: [], down: [] };
    recorded.up.push(both.up);
    recorded.down.push(both.down);
    socket.on("data", (b) => both.up.push(b));
    target.on("data", (b) => both.down.push(b));
    socket.pipe(target).pipe(socket);
    socket.on("error", () => target.destroy());
    target.on("error", () => socket.destroy());
  });
  let port = 0;
  await new Promise((r) => recorder.listen(0, "127.0.0.1", r));
  scene.later(() => recorder.close());
  const up = await scene.up({ args: ["--public-url", `http://127.0.0.1:${recorder.address().port}`] });
  port = +new URL(up.url).port;
  const d = await device(scene);
  const link = await up.link();
  await pair(d, link);
  await shell(d);
  const marker = "marker-that-nobody-may-read";
  await run(d.page, `echo ${marker}`);
  await shows(d.page, marker);

  // A client masks what it sends: taken off, as a relay does.
  const sides = [...recorded.down.map((b) => Buffer.concat(b)), ...recorded.up.flatMap((b) => [Buffer.concat(b), unmask(Buffer.concat(b))])];
  assert.ok(sides.some((b) => b.includes("SSH-2.0")), "nothing was recorded");
  const secret = Buffer.from(link.split("#hf1.")[1], "base64url").subarray(0, 16);
  const agentKey = Buffer.from(hkdfSync("sha256", secret, Buffer.alloc(0), "agent", 32));
  const forms = (b) => [b, b.toString("hex"), b.toString("base64").replace(/=+$/, ""), b.toString("base64url")];
  for (const b of sides) {
    for (const f of [marker, "holdfast\0", '"proof"', ...forms(secret), ...forms(agentKey)]) assert.ok(!b.includes(f), `recorded: ${f}`);
  }
  // And it was all there to be read.
  const long = Math.max(...sides.map((b) => (b.indexOf("SSH-2.0") < 0 ? 0 : b.length - b.indexOf("SSH-2.0"))));
  assert.ok(long > 2000, `${long} bytes of SSH`);
});

/** The payloads of a client's frames, from the first frame on. */
const unmask = (b) => {
  const start = b.indexOf("\r\n\r\n");
  if (start < 0 || !b.includes("Upgrade: websocket")) return Buffer.alloc(0);
  const out = [];
  let at = start + 4;
  while (at + 6 <= b.length) {
    let n = b[at + 1] & 127;
    let head = 2;
    if (n == 126) [n, head] = [b.readUInt16BE(at + 2), 4];
    else if (n == 127) [n, head] = [Number(b.readBigUInt64BE(at + 2)), 10];
    const key = b.subarray(at + head, at + head + 4);
    const payload = Buffer.from(b.subarray(at + head + 4, at + head + 4 + n));
    for (let i = 0; i < payload.length; i++) payload[i] ^= key[i % 4];
    out.push(payload);
    at += head + 4 + n;
  }
  return Buffer.concat(out);
};

test("no request leaves for anybody but the page's own relay", async () => {
  const up = await scene.up();
  const d = await device(scene);
  await pair(d, await up.link());
  await shell(d);
  await d.page.evaluate(() => (location.hash = "#/about"));
  await d.page.locator("code", { hasText: /^sha256:/ }).waitFor();
  assert.deepEqual([...new Set(d.requests.map((r) => new URL(r).origin))], [new URL(up.url).origin]);
  const shown = /sha256:[0-9a-f]{64}/.exec(await d.page.innerText("body"))[0];
  assert.ok(readFileSync(new URL("../../internal/webapp/dist/index.html", import.meta.url), "utf8").includes(shown));
});

test("usable soon, in little memory", { timeout: 60_000 }, async () => {
  const up = await scene.up();
  const d = await device(scene, PHONE);
  await d.page.goto("about:blank");
  const heap = async () => {
    await d.cdp.send("HeapProfiler.collectGarbage");
    return (await d.cdp.send("Runtime.getHeapUsage")).usedSize;
  };
  const blank = await heap();
  await d.cdp.send("Emulation.setCPUThrottlingRate", { rate: 4 });
  const began = Date.now();
  await d.page.goto(up.url);
  await d.page.getByText("No machine is paired").waitFor();
  figure("first screen with a CPU four times slower", `${Date.now() - began} ms`);
  await d.cdp.send("Emulation.setCPUThrottlingRate", { rate: 1 });
  await pair(d, await up.link());
  const opened = Date.now();
  await shell(d);
  figure("terminal to the first prompt, connected", `${Date.now() - opened} ms`);
  const used = (await heap()) - blank;
  figure("heap of the page over a blank one", `${(used / 1e6).toFixed(1)} MB`);
  assert.ok(used < 30e6, `${used} bytes`);
});
