// Pictures of the sessions views, of real coding tools on a scripted model: light
// and dark, a phone and a desktop, and two in Japanese.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { DESKTOP, device, pair, PHONE, Scene, sleep, until } from "./lib.mjs";
import { png } from "../../web/app/build/png.mjs";
import { createDesk } from "./tools.mjs";

/** A small chart, as a tool would make one. */
const chart = () => {
  const [w, h] = [240, 120];
  const rows = Buffer.alloc(h * (1 + w * 3), 255);
  for (let y = 0; y < h; y++) {
    rows[y * (1 + w * 3)] = 0;
    for (let x = 0; x < w; x++) {
      const bar = Math.floor(x / 30);
      const high = 20 + ((bar * 37) % 90);
      if (x % 30 > 5 && h - y < high) rows.set([0x00, 0x70 + bar * 8, 0x5a + bar * 12], y * (1 + w * 3) + 1 + x * 3);
    }
  }
  return png(w, h, rows);
};

/** take(page, name) writes a picture. */
export const takeAppScreens = async (take) => {
  const scene = new Scene();
  try {
    const desk = await createDesk(scene);
    const studio = await scene.up({ name: "studio" });
    const mini = await scene.up({ name: "mini" });
    const all = [];
    for (const [size, profile] of [["phone", { ...PHONE, deviceScaleFactor: 1 }], ["desktop", DESKTOP]])
      for (const colorScheme of ["light", "dark"]) {
        const d = await device(scene, { ...profile, colorScheme });
        const { page } = d;
        await pair(d, await mini.link());
        const link = await studio.link();
        await page.evaluate(() => (location.hash = "#/pair"));
        await page.locator("textarea.link").fill(link);
        await page.getByRole("button", { name: "Pair", exact: true }).click();
        await page.locator("[data-relay] button").first().click();
        await page.waitForURL(/#\/m\//, { timeout: 30_000 });
        await page.waitForSelector('.state[data-phase="up"]', { timeout: 20_000 });
        await page.evaluate(() => (location.hash = "#/"));
        all.push({ page, phone: size == "phone", plain: size == "phone" && colorScheme == "light", take: (what) => take(page, `${what}-${size}-${colorScheme}`) });
      }
    await studio.stop();
    const each = async (f) => {
      for (const v of all) await f(v);
    };
    const home = (page) => page.evaluate(() => (location.hash = "#/"));
    const row = (page, name) => page.locator(".list li[data-session]", { hasText: name }).first();
    const send = async (page, text) => {
      await page.locator("textarea.message").fill(text);
      await page.getByLabel("Send", { exact: true }).click();
    };
    const open = async (page, name) => {
      await home(page);
      await row(page, name).locator("a").click();
      await page.locator("textarea.message").waitFor();
    };

    // A project with something to see in it.
    writeFileSync(join(desk.project, "parser.ts"), "export const parse = (line: string) => {\n  const at = line.indexOf(' ');\n  return [line.slice(0, at), line.slice(at)];\n};\n");
    writeFileSync(join(desk.project, "chart.png"), chart());
    await desk.claude("parser", "--allowedTools", "Bash(grep:*)", "Edit");
    await desk.claude("release");
    desk.run("logs", {}, "bash", "--norc");
    desk.keys("logs", "PS1='$ '; clear; printf '\\033[32m✓\\033[0m 128 tests passed\\n\\033[33m!\\033[0m 1 warning\\n\\033[1;34msrc\\033[0m  README.md  漢字 😀\\n'", "Enter");
    const first = all[0].page;
    await open(first, "parser");
    await send(first, "do: read parser.ts then edit parser.ts indexOf(' ') search(/\\s/) then read chart.png then bash grep -c nothing parser.ts then ask 1 then say The parser now splits at **any** blank:\\n\\n- tabs count as well\\n- `parse` keeps what follows\\n\\n| input | before | now |\\n|---|---|---|\\n| `a b` | `a` | `a` |\\n| `a\\\tb` | – | `a` |");
    await first.locator(".dialog button:enabled", { hasText: "Blue" }).waitFor({ timeout: 40_000 });
    await sleep(800);
    await first.locator(".dialog button", { hasText: "Blue" }).click();
    await first.locator(".md table").waitFor({ timeout: 40_000 });
    await open(first, "release");
    await send(first, "do: bash rm -rf build && make dist then say Released.");
    await first.locator(".dialog button:enabled").first().waitFor({ timeout: 40_000 });

    await each(async ({ page, take }) => {
      await home(page);
      await row(page, "make dist").waitFor({ timeout: 20_000 });
      await take("home");
    });
    await each(async ({ page, take, phone }) => {
      if (!phone) return;
      await row(page, "make dist").locator(".why").click();
      await page.locator(".evidence").waitFor();
      await take("evidence");
      await page.evaluate(() => document.querySelector('[data-machine="studio"]')?.scrollIntoView({ block: "center" }));
    });
    await each(async ({ page, take }) => {
      await open(page, "make dist");
      await page.locator(".dialog button:enabled").first().waitFor({ timeout: 20_000 });
      await sleep(900);
      await take("approval");
    });
    await each(async ({ page, take, phone }) => {
      await open(page, "parser");
      await page.locator(".md table").waitFor({ timeout: 20_000 });
      await take("conversation");
      if (!phone) return;
      for (const f of await page.locator(".tool > summary").all()) await f.click();
      await page.getByRole("button", { name: /Show picture/ }).click();
      await page.locator("img.picture").waitFor();
      await page.locator(".diff").first().scrollIntoViewIfNeeded();
      await take("changes");
      await page.locator("img.picture").scrollIntoViewIfNeeded();
      await take("picture");
    });
    await each(async ({ page, take, phone }) => {
      if (!phone) return;
      await page.getByLabel("Quick replies").click();
      await page.locator("textarea.message").fill("Please also keep\nthe line's end as it is.\nありがとう 🙏");
      await take("composer");
      await page.locator("textarea.message").fill("");
      await page.getByLabel("Menu").click();
      await take("session-menu");
      await page.locator(".choices button", { hasText: "Search" }).click();
      await page.locator(".sheet input").fill("blank");
      await page.locator(".sheet input").press("Enter");
      await page.locator(".hits button").first().waitFor();
      await take("search");
      await page.locator(".sheet").getByText("Close", { exact: true }).click();
      await page.getByLabel("Menu").click();
      await page.locator(".choices button.danger").click();
      await take("end");
      await page.keyboard.press("Escape");
      await open(page, "logs");
      await page.locator(".rows > div").first().waitFor();
      await take("scrollback");
      await home(page);
      await page.getByLabel("New session").click();
      await page.locator(".sheet .form option").last().waitFor({ state: "attached" });
      await take("new-session");
      await page.keyboard.press("Escape");
    });
    const ja = await device(scene, { ...PHONE, deviceScaleFactor: 1, locale: "ja-JP", colorScheme: "light" });
    await pair(ja, await mini.link());
    await home(ja.page);
    await row(ja.page, "make dist").waitFor({ timeout: 20_000 });
    await take(ja.page, "home-phone-ja");
    await row(ja.page, "parser").locator("a").click();
    await ja.page.locator(".md table").waitFor({ timeout: 20_000 });
    await take(ja.page, "conversation-phone-ja");
    await ja.context.close();
    // Without a network: what is known, and how old it is.
    await mini.stop();
    await each(async ({ page, take, phone }) => {
      if (!phone) return;
      await home(page);
      await page.locator('[data-machine="mini"][data-live="false"]').waitFor({ timeout: 30_000 });
      await until(() => page.locator("li.stale").count());
      await take("offline");
    });
  } finally {
    await scene.end();
  }
};
