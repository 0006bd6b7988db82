// Opens each client in a window of its own, does the same to all of them at the
// same moment, and measures until each shows something that was sent after it.
//
//   node build/scoreboard/main.js [--write README]   [--only FAULT]

import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Browser } from "playwright-core";

import { buildSite, startSite, type Site } from "../../live/test/site.js";
import { launch, Window, type Tab } from "../test/chromium.js";
import { startServers, type Servers } from "./servers.js";

/** A client that has not come back by then is said not to. */
const LIMIT = 150_000;

const here = fileURLToPath(new URL("../../", import.meta.url));
const { dependencies } = JSON.parse(readFileSync(`${here}scoreboard/package.json`, "utf8"));
const version = (name: string) => dependencies[name] ?? JSON.parse(readFileSync(`${here}../live/package.json`, "utf8")).version;
const names = ["@holdfast/live, timing", "@holdfast/live, quiet", ...Object.keys(dependencies).sort()];

const pause = (ms: number) => new Promise<void>((done) => setTimeout(done, ms));

interface Ground {
  site: Site;
  servers: Servers;
  tabs: Tab[];
}

/** What is done; afterwards the network, the server and the page are as they should be. */
const faults: Record<string, (g: Ground) => Promise<unknown>> = {
  "half-open": ({ site }) => site.fault("stall"),
  "network changed, old link dead": async ({ site, tabs }) => {
    await Promise.all(tabs.map((t) => t.offline(true)));
    await site.fault("stall");
    await pause(4_000);
    await Promise.all(tabs.map((t) => t.offline(false)));
  },
  "handshake unanswered": async ({ site }) => {
    await site.fault("stall", { dir: "down", to: "every" });
    await site.fault("cut");
    await pause(5_000);
    await site.fault("disarm");
  },
  "accepted, then mute": async ({ site }) => {
    await site.fault("stall", { dir: "down", frame: "1", to: "every" });
    await site.fault("cut");
    await pause(5_000);
    await site.fault("disarm");
  },
  "server away 3 s": async ({ site }) => {
    await site.fault("refuse", { to: "every" });
    await site.fault("cut");
    await pause(3_000);
    await site.fault("disarm");
  },
  "closed 1000": async ({ servers }) => servers.close(1000, ""),
  "closed 1012": async ({ servers }) => servers.close(1012, "restart after=500"),
  "frozen 8 s": async ({ tabs }) => {
    await Promise.all(tabs.map((t) => t.freeze(true)));
    await pause(8_000);
    await Promise.all(tabs.map((t) => t.freeze(false)));
  },
  "back-forward cache": async ({ site, tabs }) => {
    await Promise.all(tabs.map((t) => t.send("Page.navigate", { url: `http://${site.control}/elsewhere.html` })));
    await pause(3_000);
    await Promise.all(tabs.map((t) => t.back()));
  },
  "offline 4 s, link intact": async ({ tabs }) => {
    await Promise.all(tabs.map((t) => t.offline(true)));
    await pause(4_000);
    await Promise.all(tabs.map((t) => t.offline(false)));
  },
};

/** Pages are started one after the other: starting one takes a browser more than all that comes after. */
let starting = Promise.resolve();
const inTurn = (f: () => Promise<void>): Promise<void> => (starting = starting.then(f));

/** Milliseconds until each client was back; undefined: not within the limit. */
const measure = async (browser: Browser, binary: string, fault: string): Promise<(number | undefined)[]> => {
  const servers = await startServers();
  const site = await startSite(binary, "-target", servers.address, "-files", `${here}build/scoreboard`);
  const windows = await Promise.all(names.map(() => Window.open(browser)));
  try {
    const tabs: Tab[] = [];
    const newest = (t: Tab) => t.value<number>("globalThis.got ?? 0").catch(() => 0);
    const shows = async (t: Tab, sentAfter: number, limit: number) => {
      for (const end = performance.now() + limit; performance.now() < end; await pause(100)) if ((await newest(t)) > sentAfter) return true;
      return false;
    };
    await inTurn(async () => {
      for (const [i, w] of windows.entries()) {
        const tab = await w.tab(`http://${site.control}/page.html?${new URLSearchParams({ client: names[i]!, site: site.proxy })}`);
        if (!(await shows(tab, 0, 60_000))) throw new Error(`${names[i]} never connected`);
        tabs.push(tab);
      }
    });
    await pause(3_000);
    await faults[fault]!({ site, servers, tabs });
    const [from, over] = [performance.now(), Date.now()];
    return await Promise.all(tabs.map(async (t) => ((await shows(t, over, LIMIT)) ? performance.now() - from : undefined)));
  } finally {
    await Promise.all(windows.map((w) => w.close().catch(() => undefined)));
    site.stop();
    servers.stop();
  }
};

const option = (name: string) => (process.argv.includes(name) ? process.argv[process.argv.indexOf(name) + 1] : undefined);

const chosen = Object.keys(faults).filter((f) => f == (option("--only") ?? f));
const binary = buildSite(fileURLToPath(new URL("../live/", `file://${here}`)));
const browser = await launch();
const results = new Map<string, (number | undefined)[]>();
try {
  // A few at a time: the machine must not be what is measured.
  const waiting = [...chosen];
  await Promise.all(
    Array.from({ length: 5 }, async () => {
      for (let fault; (fault = waiting.shift()); ) {
        results.set(fault, await measure(browser, binary, fault));
        console.error(`${fault}: ${results.get(fault)!.map((ms) => (ms === undefined ? "-" : (ms / 1e3).toFixed(1))).join(" ")}`);
      }
    }),
  );
} finally {
  await browser.close();
}

const cell = (ms: number | undefined) => (ms === undefined ? `not in ${LIMIT / 1e3}` : (ms / 1e3).toFixed(1));
const row = (cells: string[]) => `| ${cells.join(" | ")} |`;
const table = [
  row(["seconds until back", ...chosen]),
  row(["---", ...chosen.map(() => "---")]),
  ...names.map((name, i) => row([name.includes(",") ? name.replace(",", ` ${version("")},`) : `${name} ${version(name)}`, ...chosen.map((f) => cell(results.get(f)![i]))])),
].join("\n");
const measured = `Measured ${new Date().toISOString().slice(0, 10)} in Chromium ${browser.version()} on loopback.\n\n${table}\n`;
console.log(measured);

const readme = option("--write");
if (readme) {
  const text = readFileSync(readme, "utf8");
  const [begin, end] = ["<!-- scoreboard: begin -->\n", "<!-- scoreboard: end -->"];
  if (!text.includes(begin) || !text.includes(end)) throw new Error(`${readme} has no place for the table`);
  writeFileSync(readme, text.slice(0, text.indexOf(begin) + begin.length) + "\n" + measured + "\n" + text.slice(text.indexOf(end)));
}
