// Pictures of the sessions views, of real coding tools on a scripted model: light
// and dark, a phone and a desktop, and some in Japanese.

import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DESKTOP, device, pair, PHONE, Scene, sleep, until } from "./lib.mjs";
import { createDesk } from "./tools.mjs";

const out = new URL("../../docs/screens/", import.meta.url).pathname;

export const takeAppScreens = async () => {
  mkdirSync(out, { recursive: true });
  const scene = new Scene();
  const desk = await createDesk(scene);
  const first = await scene.up({ name: "studio" });
  const up = await scene.up({ name: "mini" });

  // A project with something to see.
  const write = (name, text) => writeFileSync(join(desk.project, name), text);
  write("parser.ts", "export const parse = (s: string) => {\n  const at = s.indexOf(' ');\n  return [s.slice(0, at), s.slice(at)];\n};\n");
  write("chart.png", Buffer.from(pictureOf(), "base64"));
  execFileSync("git", ["init", "-q"], { cwd: desk.project });

  const phones = [];
  for (const [size, profile] of [["phone", { ...PHONE, deviceScaleFactor: 1 }], ["desktop", DESKTOP]])
    for (const colorScheme of ["light", "dark"]) {
      const d = await device(scene, { ...profile, colorScheme });
      await pair(d, await first.link());
      await d.page.evaluate(() => (location.hash = "#/"));
      await d.page.getByText("studio").first().waitFor();
      phones.push({ d, page: d.page, name: (what) => `${what}-${size}-${colorScheme}`, size, colorScheme });
    }
  await first.stop();
  for (const p of phones) {
    await p.page.goto("about:blank");
    await p.page.goto(`${up.url}/#/pair`);
  }
  await desk.claude("parser");
  await desk.claude("release");
  desk.run("logs", {}, "bash", "--norc");
  desk.keys("logs", "PS1='$ '; clear; printf '\\033[32m✓\\033[0m 128 tests passed\\n\\033[33m!\\033[0m 1 warning: 漢字 と emoji 😀\\n\\033[1;34msrc\\033[0m  README.md\\n'", "Enter");
  return { scene, desk, up, phones };
};

const pictureOf = () =>
  "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGNgYPiPAw0pCVwaAGYkP8FPbDYaAAAAAElFTkSuQmCC";
