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
  await page.getByLabel("Terminal", { exact: true }).tap();
  // Asked of the page itself: after a reload in this page waitForSelector of the driver sees nothing.
  await until(() => page.evaluate(() => document.querySelector(".screen")?.dataset.phase == "open"));
  await page.getByLabel("Back").tap();
  await field.waitFor();
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
