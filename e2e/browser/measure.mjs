// What the page costs, for docs/performance.md: scripts/browser measure [--rounds N]
// [--only list|first|prompt|flood] [--profile DIR]
//
// Every figure with what it is made of, beside the load of the machine. With
// --profile the flood's and the first screen's processor profiles are written,
// of the page and of its Worker, for a browser's developer tools; taking them
// slows what is measured.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { loadavg } from "node:os";
import { Scene, sleep } from "./lib.mjs";
import { startPlain } from "./plain.mjs";

const option = (name, otherwise) => (process.argv.includes(name) ? process.argv[process.argv.indexOf(name) + 1] : otherwise);
const rounds = +option("--rounds", 3);
const only = option("--only", "");
const into = option("--profile", "");
if (into) mkdirSync(into, { recursive: true });

/** Processor seconds of everything that this process has started, by program and thread. */
const processors = () => {
  const parents = new Map();
  for (const pid of readdirSync("/proc").filter((n) => /^\d+$/.test(n))) {
    try {
      parents.set(+pid, +readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1).split(" ")[1]);
    } catch {
      // It has ended meanwhile.
    }
  }
  const mine = (pid) => pid == process.pid || (parents.has(pid) && mine(parents.get(pid)));
  const seconds = new Map();
  for (const pid of parents.keys()) {
    if (!mine(pid)) continue;
    try {
      const args = readFileSync(`/proc/${pid}/cmdline`, "utf8");
      const kind = /--type=(\w+)/.exec(args)?.[1] ?? args.split("\0")[0].split("/").at(-1);
      for (const task of readdirSync(`/proc/${pid}/task`)) {
        const stat = readFileSync(`/proc/${pid}/task/${task}/stat`, "utf8");
        const fields = stat.split(") ").at(-1).split(" ");
        const name = /chromium/.test(args) ? `${kind}: ${/\((.*)\)/.exec(stat)[1]}` : kind;
        seconds.set(name, (seconds.get(name) ?? 0) + (+fields[11] + +fields[12]) / 100);
      }
    } catch {
      // It has ended meanwhile.
    }
  }
  return seconds;
};

const scene = new Scene();
const browser = await startPlain();
const figures = {};
const note = (name, value) => {
  (figures[name] ??= []).push(value);
  console.log(`${name}: ${value.toFixed(value < 20 ? 2 : 0)}   (load ${loadavg()[0].toFixed(1)})`);
};
const keep = (name, { profile }) => writeFileSync(`${into}/${name}.cpuprofile`, JSON.stringify(profile));

try {
  const up = await scene.up();
  // What a page of one sentence takes, whose words are in the document: the floor.
  const words = createServer((_, answer) => {
    answer.setHeader("content-type", "text/html");
    answer.end('<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>one sentence</title><body><main><p>No machine is paired</p></main>');
  });
  await new Promise((resolve) => words.listen(0, "127.0.0.1", resolve));
  scene.later(() => words.close());
  if (!only || only == "list") {
    // The relay of a machine as far away as the goal says.
    const path = await scene.faulty();
    const far = await scene.up({ name: "far", args: ["--public-url", `http://${path.addr}`] });
    await path.tell(`target ${new URL(far.url).host}`);
    scene.tmux("-f", "/dev/null", "new-session", "-d", "-s", "desk", "bash --norc");
    scene.later(() => scene.tmux("kill-server"));
    const d = await browser.phone();
    await d.before(() => {
      const at = (globalThis.__list = {});
      new MutationObserver(() => {
        if (document.querySelector("li[data-session]")) at.row ??= performance.now();
        if (document.querySelector("li[data-session]:not(.stale)")) at.live ??= performance.now();
      }).observe(document, { subtree: true, childList: true, attributes: true });
    });
    await d.go(await far.link());
    await d.until(() => /^#\/m\/[\w-]+$/.test(location.hash) && document.querySelector('.state[data-phase="up"]'));
    await d.run(() => navigator.serviceWorker.ready.then(() => undefined));
    await d.cdp("Network.enable");
    for (const rtt of [0, 150]) {
      await path.tell(`rtt ${rtt}`);
      for (const kept of [false, true]) {
        for (let i = 0; i < rounds; i++) {
          // The page before has kept what it keeps.
          await sleep(1500);
          await d.cdp("Network.setBypassServiceWorker", { bypass: !kept });
          if (!kept) {
            await d.cdp("Network.clearBrowserCache");
            await d.run(() => new Promise((done) => (indexedDB.deleteDatabase("holdfast.sessions").onsuccess = () => done())));
          }
          await d.go("about:blank");
          await sleep(500);
          // No connection is left from before.
          await path.tell("cut");
          await d.go(`http://${path.addr}/#/`);
          await d.until(() => globalThis.__list?.live);
          const at = await d.run(() => globalThis.__list);
          const what = `list of sessions, ${rtt} ms RTT, ${kept ? "opened again" : "nothing kept"}`;
          if (kept) note(`${what}, what was known, ms`, at.row);
          note(`${what}, live, ms`, at.live);
        }
      }
    }
    await d.close();
  }
  for (let i = 0; i < rounds && only != "list"; i++) {
    for (const [what, url] of !only || only == "first" ? [["page of one sentence", `http://127.0.0.1:${words.address().port}/`], ["first screen", up.url]] : []) {
      const d = await browser.phone();
      await d.cdp("Emulation.setCPUThrottlingRate", { rate: 4 });
      await d.before(() => {
        const look = new MutationObserver(() => {
          if (!document.body?.textContent.includes("No machine is paired")) return;
          look.disconnect();
          const inDocument = performance.now();
          // The second frame begins when the first one is on the screen.
          requestAnimationFrame(() => requestAnimationFrame(() => (globalThis.__first = { inDocument, shown: performance.now() })));
        });
        look.observe(document, { childList: true, subtree: true });
      });
      if (into) {
        await d.cdp("Profiler.enable");
        await d.cdp("Profiler.start");
      }
      await d.go(url);
      await d.until(() => globalThis.__first);
      const first = await d.run(() => ({
        ...globalThis.__first,
        loaded: performance.getEntriesByType("resource").map((r) => `${r.name.split("/").at(-1)} ${Math.round(r.startTime)}-${Math.round(r.responseEnd)}`),
        paint: performance.getEntriesByType("paint").map((p) => `${p.name} ${Math.round(p.startTime)}`),
        page: ["responseEnd", "domInteractive", "domContentLoadedEventStart", "loadEventEnd"].map((k) => `${k} ${Math.round(performance.getEntriesByType("navigation")[0][k])}`),
      }));
      note(`${what} at a quarter of the processor, in the document, ms from the navigation's start`, first.inDocument);
      note("  shown, ms, " + what, first.shown);
      if (into) {
        keep(`${what.replaceAll(" ", "-")}-${i}`, await d.cdp("Profiler.stop"));
        console.log(first);
      }
      await d.close();
    }
    if (only == "first") continue;
    const d = await browser.phone();

    const worker = into && (await d.watchWorkers());
    // A page of its own: a link that is opened in one that is there is no new page.
    await d.go("about:blank");
    await d.go(await up.link());
    await d.until(() => /^#\/m\/[\w-]+$/.test(location.hash) && document.querySelector('.state[data-phase="up"]'));
    await sleep(1000);

    await d.run(() => {
      const from = performance.now();
      const at = (globalThis.__shell = {});
      const look = new MutationObserver(() => {
        const screen = document.querySelector(".screen");
        if (screen) at.view ??= performance.now() - from;
        if (screen?.dataset.phase == "open") at.open ??= performance.now() - from;
        if (![...document.querySelectorAll(".xterm-rows > div")].some((r) => /\$\s*$/.test(r.textContent))) return;
        look.disconnect();
        at.prompt = performance.now() - from;
      });
      look.observe(document, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["data-phase"] });
      location.hash += "/shell";
    });
    await d.until(() => globalThis.__shell.prompt);
    const at = await d.run(() => globalThis.__shell);
    note("first prompt, ms from the tap", at.prompt);
    note("  the terminal's view, ms", at.view);
    note("  the shell's channel, ms", at.open);

    if (!only || only == "flood") {
      if (into)
        for (const target of [d.cdp, worker]) {
          await target("Profiler.enable");
          await target("Profiler.start");
        }
      const before = processors();
      const began = Date.now();
      await d.line("clear; head -c 38000000 /dev/zero | base64; yes flood-''goes-on");
      await d.until(() => [...document.querySelectorAll(".xterm-rows > div")].some((r) => r.textContent.includes("flood-goes-on")));
      note("50 MB of output, MB/s", 51.3 / ((Date.now() - began) / 1000));
      const used = [...processors()].map(([name, s]) => [name, s - (before.get(name) ?? 0)]).filter(([, s]) => s >= 0.1).sort((a, b) => b[1] - a[1]);
      console.log("  processor seconds: " + used.map(([name, s]) => `${name} ${s.toFixed(1)}`).join(", "));
      note("  processor seconds of all", used.reduce((sum, [, s]) => sum + s, 0));
      if (into) {
        keep(`flood-page-${i}`, await d.cdp("Profiler.stop"));
        keep(`flood-worker-${i}`, await worker("Profiler.stop"));
      }
      const pressed = Date.now();
      await d.tap(() => {
        const key = [...document.querySelectorAll(".keyrow button")].find((b) => b.textContent.includes("^C"));
        key.scrollIntoView();
        const b = key.getBoundingClientRect();
        return { x: b.x + b.width / 2, y: b.y + b.height / 2 };
      });
      await d.until(() => /\^C\s*\$\s*$/.test([...document.querySelectorAll(".xterm-rows > div")].map((r) => r.textContent.replace(/\u00a0/g, " ").trimEnd()).join("\n").trimEnd()), 10);
      note("Ctrl-C in it, ms", Date.now() - pressed);
    }
    await d.close();
  }
  console.log("\nmedians:");
  for (const [name, all] of Object.entries(figures)) console.log(`${name}: ${all.toSorted((a, b) => a - b)[all.length >> 1].toFixed(2)}  (${all.map((x) => x.toFixed(x < 20 ? 2 : 0)).join(", ")})`);
} finally {
  await browser.stop();
  await scene.end();
}
