// Sessions first: from the link to answering what a program asks, on a phone.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { compose, device, insert, over, pair, PHONE, Scene, sleep, soft, until } from "./lib.mjs";

const scene = new Scene();
let up, d, page;

before(async () => {
  scene.tmux("-f", "/dev/null", "new-session", "-d", "-s", "shell", "-x", "100", "-y", "30", "bash --norc");
  scene.later(() => scene.tmux("kill-server"));
  up = await scene.up();
  d = await device(scene, PHONE);
  ({ page } = d);
  await pair(d, await up.link());
});
after(() => over(scene));

const home = () => page.evaluate(() => (location.hash = "#/"));
const row = (name) => page.locator(".list li[data-session]", { hasText: name }).first();
test("the sessions are there at once, and live", async () => {
  await home();
  await row("shell").waitFor({ timeout: 15_000 });
  assert.equal(await page.locator('[data-live="false"]').count(), 0);
});

test("a reply in Japanese is sent when it is finished, and not by the Enter that confirms it", async () => {
  await row("shell").locator("a").tap();
  const field = page.locator("textarea.message");
  await field.waitFor();
  await field.tap();
  await compose(d.cdp, "えcho");
  await page.keyboard.press("Enter").catch(() => {});
  assert.equal(await page.locator("[data-receipt]").count(), 0);
  await compose(d.cdp, "");
  await field.fill("");
  await soft(d.cdp, () => insert(d.cdp, "echo 日本語です"));
  assert.equal(await field.inputValue(), "echo 日本語です");
  await page.getByLabel("Send", { exact: true }).tap();
  await until(() => scene.tmux("capture-pane", "-p", "-t", "=shell:").split("日本語です").length > 2, () => scene.tmux("capture-pane", "-p", "-t", "=shell:"));
  await page.locator(".rows", { hasText: "日本語です" }).waitFor({ timeout: 10_000 });
});

test("the raw terminal is a tap away, and so is the way back", async () => {
  await page.locator('.state[data-state]').waitFor();
  await page.getByLabel("Terminal", { exact: true }).tap();
  await page.waitForSelector('.screen[data-phase="open"]', { timeout: 20_000 });
  await page.getByLabel("Back").tap();
  await page.locator("textarea.message").waitFor();
});

test("a draft outlives a reload", async () => {
  const field = page.locator("textarea.message");
  await field.fill("not sent yet");
  await sleep(800);
  await page.reload();
  await until(async () => (await field.inputValue()) == "not sent yet", () => field.inputValue());
  await field.fill("");
  // A page that the system kills has no other time to say that it was taken away.
  const drafts = () =>
    page.evaluate(async () => {
      const db = await new Promise((done) => (indexedDB.open("holdfast.sessions").onsuccess = (e) => done(e.target.result)));
      const all = await new Promise((done) => (db.transaction("drafts").objectStore("drafts").getAll().onsuccess = (e) => done(e.target.result)));
      db.close();
      return all;
    });
  await until(async () => !(await drafts()).includes("not sent yet"), async () => JSON.stringify(await drafts()));
  await page.getByLabel("Terminal", { exact: true }).tap();
  // Asked of the page itself: after a reload in this page waitForSelector of the driver sees nothing.
  await until(() => page.evaluate(() => document.querySelector(".screen")?.dataset.phase == "open"));
  await page.getByLabel("Back").tap();
  await field.waitFor();
});

test("a message whose answer the page did not live to hear is found again, and typed once", async () => {
  const pane = () => scene.tmux("capture-pane", "-p", "-t", "=shell:");
  const times = () => pane().split("\n").filter((l) => l.trim() == "once 42").length;
  const field = page.locator("textarea.message");
  const send = page.getByLabel("Send", { exact: true });
  // The machine does it, and the page hears nothing of that.
  await page.evaluate(() => {
    const { get } = Object.getOwnPropertyDescriptor(MessageEvent.prototype, "data");
    Object.defineProperty(MessageEvent.prototype, "data", {
      get() {
        const v = get.call(this);
        return v?.op == "answer" || v?.op == "receipt" ? { op: "lost" } : v;
      },
    });
  });
  await field.fill("echo once $((6*7))");
  await send.tap();
  await until(() => times() == 1, pane);
  await page.reload();
  const receipt = page.locator('[data-receipt="lost"]');
  await receipt.waitFor({ timeout: 15_000 });
  assert.match(await receipt.innerText(), /echo once[^]*not known whether it arrived[^]*typed once at most/);
  assert.equal(await field.inputValue(), "");
  // Another page of this browser shows it too, and hears that it is done.
  const tab = await d.context.newPage();
  await tab.goto(page.url());
  await tab.locator('[data-receipt="lost"]').waitFor({ timeout: 15_000 });
  await receipt.getByText("Send again").tap({ timeout: 15_000 });
  await page.locator('[data-receipt="accepted"]').waitFor({ timeout: 15_000 });
  await tab.locator("[data-receipt]").waitFor({ state: "detached", timeout: 15_000 });
  await tab.close();
  assert.equal(times(), 1, pane());
  await page.reload();
  await row("shell").or(field).first().waitFor();
  await sleep(500);
  assert.equal(await page.locator("[data-receipt]").count(), 0);

  // One that never left is sent by the same tap.
  await page.evaluate(() => {
    const post = Worker.prototype.postMessage;
    Worker.prototype.postMessage = function (m, ...rest) {
      if (m?.request == "reply") document.body.dataset.held = "";
      else post.call(this, m, ...rest);
    };
  });
  await until(() => page.evaluate(() => !document.querySelector('[data-live="false"]')));
  await field.fill("echo late $((6*9))");
  await send.tap();
  await until(() => page.evaluate(() => "held" in document.body.dataset), () => page.locator(".replying").innerText());
  await page.reload();
  await receipt.waitFor({ timeout: 15_000 });
  assert.ok(!pane().includes("late 54"));
  await receipt.getByText("Send again").tap({ timeout: 15_000 });
  await until(() => pane().includes("late 54"), pane);
  await page.locator("[data-receipt]").waitFor({ state: "detached", timeout: 15_000 });
});

test("without a connection the list is what was known, with its age", async () => {
  await home();
  await row("shell").waitFor();
  await sleep(1200);
  await up.stop();
  await page.locator('[data-live="false"]').first().waitFor({ timeout: 15_000 });
  assert.match(await page.locator('[data-live="false"]').first().innerText(), /not live/);
  assert.ok(await row("shell").isVisible());
  assert.equal(await row("shell").evaluate((e) => e.classList.contains("stale")), true);
});
