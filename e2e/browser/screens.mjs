// Takes the pictures of docs/screens: light and dark, a phone and a desktop.

import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { closeBrowser, device, line, machineId, pair, PHONE, DESKTOP, Scene, shell, shows, sleep, spoken, tmux } from "./lib.mjs";
import { takeAppScreens } from "./screens-app.mjs";

const out = new URL("../../docs/screens/", import.meta.url).pathname;
mkdirSync(out, { recursive: true });
const scene = new Scene();
// What is typed there starts a server of tmux that would stay.
scene.later(() => scene.tmux("kill-server"));
const up = await scene.up({ sshd: await scene.sshd() });

const picture = async (page, name) => {
  await sleep(300);
  await page.screenshot({ path: join(out, name + ".png") });
  console.log(name);
};

for (const [size, profile] of [["phone", { ...PHONE, deviceScaleFactor: 1 }], ["desktop", DESKTOP]]) {
  for (const colorScheme of ["light", "dark"]) {
    const d = await device(scene, { ...profile, colorScheme });
    if (size == "desktop") await spoken(d);
    const { page } = d;
    const name = (what) => `${what}-${size}-${colorScheme}`;
    await page.goto(`${up.url}/`);
    await page.getByText("No machine is paired").waitFor();
    await picture(page, name("start"));
    if (size == "phone" && colorScheme == "light") {
      await page.goto(`${up.url}/#hf1.AAAA`);
      await page.waitForSelector("[data-fault]");
      await picture(page, name("bad-link"));
    }
    await page.goto("about:blank");
    await pair(d, await up.link());
    const id = machineId(page);
    await tmux(d, "build");
    await shows(page, "$");
    await line(page, "clear; printf '\\033[32m✓\\033[0m 128 tests\\n\\033[33m!\\033[0m 1 warning\\n'; git --version; printf '漢字 😀 \\033[1;34mblue\\033[0m \\033[31mred\\033[0m\\n'");
    await shows(page, "git version");
    await picture(page, name("terminal"));
    await page.getByLabel("Menu").click();
    await picture(page, name("menu"));
    await page.getByText("Close", { exact: true }).click();
    await page.evaluate((id) => (location.hash = `#/m/${id}`), id);
    await page.getByText("build").first().waitFor();
    await page.locator("details summary").click();
    await picture(page, name("machine"));
    await page.evaluate(() => (location.hash = "#/"));
    await page.getByText("mini").waitFor();
    await picture(page, name("machines"));
    if (size == "phone") {
      await page.evaluate(() => (location.hash = "#/devices"));
      await page.locator(".item").first().waitFor();
      await picture(page, name("devices"));
      await page.evaluate(() => (location.hash = "#/about"));
      await picture(page, name("about"));
    }
    await page.evaluate((id) => (location.hash = `#/m/${id}/shell`), id);
    await page.waitForSelector('.screen[data-phase="open"]');
    await shows(page, "$");
    if (size == "phone" && colorScheme == "dark") {
      // Revoked from elsewhere, while it looks.
      const list = JSON.parse(`[${scene.holdfast(up, "devices", "--json").trim().split("\n").join(",")}]`);
      const mine = list.flatMap((e) => e.devices ?? [e]).at(-1);
      scene.holdfast(up, "devices", "revoke", mine.id ?? mine.device);
      await page.waitForSelector("[data-out], .note.bad[data-why]", { timeout: 60_000 });
      await picture(page, name("revoked"));
    }
    await d.context.close();
  }
}
await scene.end();
await takeAppScreens(picture);
await closeBrowser();
