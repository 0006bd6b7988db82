// The app around the sessions: several machines, a life with freezing, discarding
// and no network, notices, updates, and who cannot see or point.

import assert from "node:assert/strict";
import { after, before } from "node:test";
import { DESKTOP, device, over, pair, PHONE, Scene, sleep, until } from "./lib.mjs";
import { createParts } from "./tools.mjs";

const scene = new Scene();
// The agent sees every tmux server of its user: names that nobody else has.
const mine = (name) => `${name}-${process.pid}`;
let up, d, page, path;
const part = createParts(async () => `the page:\n${await page.locator("#app").innerText()}`);

const session = (name, ...command) => scene.tmux("-f", "/dev/null", "new-session", "-d", "-s", mine(name), "-x", "100", "-y", "30", "-c", scene.home, ...(command.length ? command : ["bash", "--norc"]));
const home = (p = page) => p.evaluate(() => (location.hash = "#/"));
const rows = (name, p = page) => p.locator(".list li[data-session]", { hasText: mine(name) });
const rowOf = (name, machine) => rows(name).filter({ hasText: machine });
const visibility = (p, state) =>
  p.evaluate((state) => {
    Object.defineProperty(document, "visibilityState", { configurable: true, get: () => state });
    document.dispatchEvent(new Event("visibilitychange"));
  }, state);
before(async () => {
  session("first");
  scene.later(() => scene.tmux("kill-server"));
  path = await scene.faulty();
  up = {
    alpha: await scene.up({ name: "alpha" }),
    beta: await scene.up({ name: "beta" }),
    gamma: await scene.up({ name: "gamma", args: ["--public-url", `http://${path.addr}`] }),
  };
  await path.tell(`target ${new URL(up.gamma.url).host}`);
  d = await device(scene, PHONE);
  ({ page } = d);
});
after(() => over(scene));

part("three machines, of which one is half-open: it says so with age and reason, and the others stay live", { timeout: 150_000 }, async () => {
  // One page for all: the app of alpha's relay, with the links of the others.
  await pair(d, await up.alpha.link());
  for (const name of ["beta", "gamma"]) {
    const link = await up[name].link();
    await page.evaluate(() => (location.hash = "#/pair"));
    await page.locator("textarea.link").fill(link);
    await page.getByRole("button", { name: "Pair", exact: true }).tap();
    await page.locator("[data-relay] button").first().tap();
    await page.waitForURL(/#\/m\//, { timeout: 30_000 });
    await page.waitForSelector('.state[data-phase="up"]', { timeout: 20_000 });
  }
  await home();
  for (const name of ["alpha", "beta", "gamma"]) await rowOf("first", name).locator("a").waitFor({ timeout: 20_000 });
  await until(async () => (await page.locator('[data-live="false"], li.stale').count()) == 0, undefined, 20_000);
  await path.tell("stall-new");
  await path.tell("stall");
  const note = page.locator('[data-machine="gamma"][data-live="false"]');
  await note.waitFor({ timeout: 60_000 });
  await note.filter({ hasText: /did not answer|broke|silent/ }).waitFor({ timeout: 30_000 });
  assert.match(await note.innerText(), /as of (now|\d+ (s|min) ago), not live/);
  assert.equal(await rowOf("first", "gamma").evaluate((e) => e.classList.contains("stale")), true);
  for (const name of ["alpha", "beta"]) assert.equal(await rowOf("first", name).evaluate((e) => e.classList.contains("stale")), false);
  // The others go on telling.
  session("second");
  await rowOf("second", "alpha").waitFor({ timeout: 20_000 });
  assert.equal(await rowOf("second", "gamma").count(), 0);
  await path.tell("heal");
  await note.getByRole("button").tap().catch(() => {});
  await note.waitFor({ state: "detached", timeout: 40_000 });
  await rowOf("second", "gamma").waitFor();
});

part("a filter and a search leave what was asked for", async () => {
  await page.locator(".chip", { hasText: "beta" }).tap();
  await until(async () => (await page.locator("li[data-session]").allInnerTexts()).every((t) => t.includes("beta")));
  await page.locator(".chip", { hasText: "All machines" }).tap();
  await page.locator('.search input[type="search"]').fill(mine("second"));
  await until(async () => (await rows("first").count()) == 0 && (await rows("second").count()) == 3);
  await page.locator('.search input[type="search"]').fill("nothing is called that");
  await page.getByText("Nothing matches.").waitFor();
  await page.locator('.search input[type="search"]').fill("");
});

part("a notice of the relay is shown on every device until one of them has read it", async () => {
  const other = await device(scene, DESKTOP);
  await pair(other, await up.alpha.link());
  scene.holdfast(up.alpha, "notice", "post", "The relay moves tonight at ten.");
  const notice = (p) => p.locator("[data-notice]", { hasText: "The relay moves tonight at ten." });
  for (const p of [page, other.page]) {
    await home(p);
    await p.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
    await notice(p).waitFor({ timeout: 15_000 });
  }
  await notice(page).getByRole("button", { name: "Read" }).tap();
  await notice(page).waitFor({ state: "detached" });
  await other.page.reload();
  await rows("first", other.page).first().waitFor({ timeout: 20_000 });
  await sleep(500);
  assert.equal(await notice(other.page).count(), 0, "read once is read for all");
  await page.reload();
  await rows("first").first().waitFor({ timeout: 20_000 });
  assert.equal(await notice(page).count(), 0);
  await other.context.close();
});

part("a session is started from the page and ended after a question", async () => {
  await page.getByLabel("New session").tap();
  const form = page.locator(".sheet .form");
  await form.locator("select").first().selectOption({ label: "alpha" });
  await form.locator("input").fill(scene.home);
  await form.locator('select option[value="shell"], select option').last().waitFor({ state: "attached" });
  await form.locator("select").last().selectOption({ label: /shell/i.test(await form.locator("select").last().innerText()) ? (await form.locator("select").last().locator("option").allInnerTexts()).find((o) => /shell/i.test(o)) : undefined });
  await form.getByRole("button", { name: "Start" }).tap();
  await page.waitForURL(/#\/m\/.*\/s\//, { timeout: 15_000 });
  await page.locator("textarea.message").waitFor();
  const id = decodeURIComponent(/\/s\/([^/?]+)/.exec(page.url())[1]);
  await page.getByLabel("Menu").tap();
  await page.locator(".choices button.danger").tap();
  await page.locator(".sheet", { hasText: "This cannot be undone." }).locator("button.danger").tap();
  await page.locator(".sessions").waitFor();
  await until(async () => (await page.locator(`li[data-session="${id}"]`).count()) == 0);
});

part("frozen and thawed: what happened meanwhile is there", async () => {
  await home();
  await d.cdp.send("Page.setWebLifecycleState", { state: "frozen" });
  session("meanwhile");
  await sleep(2000);
  await d.cdp.send("Page.setWebLifecycleState", { state: "active" });
  await rows("meanwhile").first().waitFor({ timeout: 20_000 });
});

part("hidden, it ends everything that could send; shown again, it is live again", { timeout: 60_000 }, async () => {
  await page.evaluate(() => {
    window.endings = 0;
    const end = Worker.prototype.terminate;
    Worker.prototype.terminate = function () {
      window.endings++;
      end.call(this);
    };
  });
  await visibility(page, "hidden");
  await until(() => page.evaluate(() => window.endings >= 3), () => page.evaluate(() => `${window.endings} Workers ended`), 20_000);
  session("unseen");
  await visibility(page, "visible");
  await rows("unseen").first().waitFor({ timeout: 20_000 });
  await until(async () => (await page.locator("li.stale").count()) == 0);
});

part("discarded and opened again: the same session, its draft, and what was known at once", async () => {
  await rowOf("first", "alpha").locator("a").tap();
  await page.locator("textarea.message").fill("half a thought");
  await sleep(800);
  const where = page.url();
  const next = await d.context.newPage();
  await page.close();
  page = next;
  d.cdp = await d.context.newCDPSession(page);
  await page.goto(where);
  await until(async () => (await page.locator("textarea.message").inputValue()) == "half a thought");
  await page.locator("textarea.message").fill("");
});

part("without a network the app opens, and says how old everything is", { timeout: 90_000 }, async () => {
  await home();
  await page.evaluate(() => navigator.serviceWorker.ready.then((r) => r.active.state));
  await until(() => page.evaluate(async () => (await caches.keys()).some((k) => k.startsWith("holdfast ")) && (await navigator.serviceWorker.getRegistration()).active?.state == "activated"), undefined, 30_000);
  await rows("first").first().waitFor({ timeout: 20_000 });
  // What changed last is kept when the phone is put back at once: what would keep it a little later does not come to it.
  await page.evaluate(() => {
    const later = window.setTimeout;
    window.setTimeout = (f, ms, ...more) => (ms == 800 ? 0 : later(f, ms, ...more));
  });
  session("glimpsed");
  await rows("glimpsed").first().waitFor({ timeout: 20_000 });
  await visibility(page, "hidden");
  await d.context.setOffline(true);
  for (const u of Object.values(up)) await u.stop();
  await page.reload();
  await rows("first").first().waitFor({ timeout: 15_000 });
  await rows("glimpsed").first().waitFor({ timeout: 15_000 });
  const note = page.locator('[data-machine="alpha"][data-live="false"]');
  await note.waitFor({ timeout: 15_000 });
  assert.match(await note.innerText(), /no network|not live/);
  assert.equal(await page.locator("li[data-session]:not(.stale)").count(), 0, "nothing old is shown as live");
  await d.context.setOffline(false);
});
