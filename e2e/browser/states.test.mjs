// What holds for every state of the app: it can be used without seeing and
// without pointing, nothing is cut off, it stays small, and it installs.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { appendFileSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before } from "node:test";
import { binary, device, figure, over, pair, PHONE, Scene, sleep, until } from "./lib.mjs";
import { createParts } from "./tools.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const scene = new Scene();
// The agent sees every tmux server of its user: names that nobody else has.
const mine = (name) => `${name}-${process.pid}`;
let up, d, page, id;
const part = createParts(async () => `the page:\n${await page.locator("#app").innerText()}`);
const row = (name, p = page) => p.locator(".list li[data-session]", { hasText: mine(name) });
const home = (p = page) => p.evaluate(() => (location.hash = "#/"));

before(async () => {
  const session = (name, ...command) => scene.tmux("-f", "/dev/null", "new-session", "-d", "-s", mine(name), "-x", "100", "-y", "30", "-c", scene.home, ...command);
  session("plain", "bash", "--norc");
  scene.later(() => scene.tmux("kill-server"));
  session("asks", "bash", "--norc", "-c", 'read -rp "Overwrite notes.md? [y/N] " a; sleep 600');
  session("turns", "bash", "--norc");
  up = await scene.up();
  d = await device(scene, PHONE);
  ({ page } = d);
  await d.context.addInitScript(() => {
    const Real = window.Worker;
    window.workers = [];
    window.Worker = class extends Real {
      constructor(...args) {
        super(...args);
        window.workers.push(this);
      }
    };
    const seen = (window.seenAt = {});
    new MutationObserver(() => {
      if (!seen.row && document.querySelector("li[data-session]")) seen.row = Date.now();
      if (!seen.live && document.querySelector("li[data-session]:not(.stale)")) seen.live = Date.now();
    }).observe(document, { subtree: true, childList: true, attributes: true });
  });
  await pair(d, await up.link());
  id = /#\/m\/([\w-]+)/.exec(page.url())[1];
});
after(() => over(scene));

/** The same link, of a relay that nobody has heard of. */
const elsewhere = (link) => {
  const bytes = Buffer.from(link.split("#hf1.")[1], "base64url");
  const relay = Buffer.from("https://relay.somebody-else.example");
  // The relay stands behind the secret and the time, its length before it; a sum is at the end.
  const made = Buffer.concat([bytes.subarray(0, 20), Buffer.of(relay.length), relay, bytes.subarray(21 + bytes[20])]);
  createHash("sha256").update(made.subarray(0, -4)).digest().copy(made, made.length - 4, 0, 4);
  return `${up.url}/#hf1.${made.toString("base64url")}`;
};

/** Breaches of axe's rules, and what is wider than the screen. */
const faults = async (p) => {
  await p.evaluate(axe);
  const found = await p.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }).then((r) => r.violations.map((v) => `${v.id} (${v.impact}): ${v.nodes.slice(0, 3).map((n) => `${n.html.slice(0, 120)} ${n.failureSummary.split("\n")[1]?.slice(0, 160)}`).join(" | ")}`)));
  const wide = await p.evaluate(() => (document.scrollingElement.scrollWidth > innerWidth ? [`the page is ${document.scrollingElement.scrollWidth} px wide on ${innerWidth}`] : []));
  return [...found, ...wide];
};

const states = {
  home: async (p) => {
    await home(p);
    await row("asks", p).waitFor({ timeout: 20_000 });
  },
  evidence: async (p) => {
    await row("asks", p).locator(".why").click();
    await p.locator(".evidence").first().waitFor();
  },
  "new session": async (p) => {
    await p.getByLabel("New session").click();
    await p.locator(".sheet .form option").last().waitFor({ state: "attached" });
  },
  question: async (p) => {
    await p.keyboard.press("Escape");
    await row("asks", p).locator("a").click();
    await p.locator(".dialog button:enabled").first().waitFor({ timeout: 20_000 });
  },
  session: async (p) => {
    await home(p);
    await row("plain", p).locator("a").click();
    await p.locator(".rows > div").first().waitFor();
    await p.getByLabel("Quick replies").click();
  },
  menu: async (p) => {
    await p.getByLabel("Menu").click();
    await p.locator(".sheet .choices").waitFor();
  },
  "ending one": async (p) => {
    await p.locator(".choices button.danger").click();
    await p.locator(".sheet", { hasText: "cannot be undone" }).waitFor();
  },
  keys: async (p) => {
    await p.keyboard.press("Escape");
    await p.getByLabel("Menu").click();
    await p.locator(".choices button", { hasText: "Show the keys" }).or(p.locator(".choices button").first()).first().click();
    await sleep(100);
  },
  machine: async (p) => {
    await p.evaluate((id) => (location.hash = `#/m/${id}`), id);
    await p.locator("details summary").click();
  },
  pairing: (p) => p.evaluate(() => (location.hash = "#/pair")),
  "a link of another relay": async (p) => {
    await p.locator("textarea.link").fill(elsewhere(await up.link()));
    await p.getByRole("button", { name: /^(Pair|ペアリング)$/ }).click();
    await p.locator("[data-relay]").waitFor();
  },
  devices: async (p) => {
    await p.evaluate(() => (location.hash = "#/devices"));
    await p.locator(".item").first().waitFor();
  },
  about: (p) => p.evaluate(() => (location.hash = "#/about")),
};

for (const [name, width, scheme, language] of [
  ["a small phone, light", 320, "light", "en"],
  ["a phone, dark", 360, "dark", "en"],
  ["a desktop, light", 1280, "light", "en"],
])
  part(`every state on ${name}: axe finds nothing, and nothing is cut off`, { timeout: 120_000 }, async () => {
    await page.setViewportSize({ width, height: 800 });
    await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
    const all = [];
    for (const [state, go] of Object.entries(states)) {
      await go(page);
      await sleep(150);
      for (const f of await faults(page)) all.push(`${state}: ${f}`);
    }
    assert.deepEqual(all, []);
  });

part("by the keyboard alone: from the list to an answer", async () => {
  await page.setViewportSize({ width: 360, height: 800 });
  await home();
  await row("asks").waitFor();
  await page.locator('.search input[type="search"]').focus();
  for (let n = 0; n < 20 && !(await page.evaluate((name) => document.activeElement.closest("li")?.textContent.includes(name), mine("asks"))); n++) await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.locator(".dialog button:enabled").first().waitFor({ timeout: 20_000 });
  for (let n = 0; n < 20 && !(await page.evaluate(() => document.activeElement.closest(".options"))); n++) await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle), "solid", "where the focus is can be seen");
  await page.keyboard.press("Enter");
  await page.locator(".dialog").waitFor({ state: "detached", timeout: 20_000 });
});

part("a change on the machine is on the screen soon", { timeout: 300_000 }, async () => {
  await home();
  await row("turns").waitFor();
  const took = [];
  const waiting = page.locator('li[data-state="waiting"]', { hasText: mine("turns") });
  await page.evaluate((name) => {
    new MutationObserver(() => {
      if (!window.cameAt && [...document.querySelectorAll('li[data-state="waiting"]')].some((e) => e.textContent.includes(name))) window.cameAt = Date.now();
    }).observe(document.body, { subtree: true, childList: true, attributes: true });
  }, mine("turns"));
  for (let n = 0; n < 12; n++) {
    await page.evaluate(() => (window.cameAt = 0));
    const at = Date.now();
    scene.tmux("send-keys", "-t", `=${mine("turns")}:`, `clear; read -rp "Overwrite file${n}.md? [y/N] " a`, "Enter");
    await waiting.waitFor({ timeout: 20_000 });
    took.push((await page.evaluate(() => window.cameAt)) - at);
    scene.tmux("send-keys", "-t", `=${mine("turns")}:`, "n", "Enter");
    await waiting.waitFor({ state: "detached", timeout: 20_000 });
  }
  took.sort((a, b) => a - b);
  figure("app: from a question in a pane to the phone's list, 12 times", `median ${took[5]} ms, at most ${took.at(-1)} ms`);
  assert.ok(took[5] < 5000);
});

part("10,000 changes of status take no memory for good", { timeout: 180_000 }, async () => {
  await page.setViewportSize({ width: 1280, height: 800 });
  await home();
  await row("plain").locator("a").click();
  await page.locator(".rows > div").first().waitFor();
  const feed = (from, count) =>
    page.evaluate(
      async ([from, count]) => {
        const worker = window.workers.at(-1);
        const states = ["waiting", "working", "done", "idle", "background"];
        for (let n = from; n < from + count; n++) {
          const state = states[n % 5];
          const session = {
            id: `fake:%${n % 40}`, name: `fake ${n % 40}`, window: "", index: "0.0", title: `Title ${n}`, tool: "claude", dir: "/home/me/src", cols: 80, rows: 24, attached: 0, conversation: true,
            status: { state, kind: state == "waiting" ? "permission" : undefined, exitCode: undefined, since: Date.now(), confirmed: Date.now(), evidence: [{ source: "screen", detail: `seen ${n}`, at: Date.now() }], dialog: state == "waiting" ? { digest: `d${n}`, title: `Proceed with ${n}?`, text: "x".repeat(500), options: [] } : undefined },
          };
          worker.dispatchEvent(new MessageEvent("message", { data: { op: "sessionChanged", session, at: Date.now() } }));
          if (n % 25 == 24) await new Promise(requestAnimationFrame);
        }
      },
      [from, count],
    );
  const heap = async () => {
    await sleep(1500);
    for (let i = 0; i < 3; i++) await d.cdp.send("HeapProfiler.collectGarbage");
    return (await d.cdp.send("Runtime.getHeapUsage")).usedSize;
  };
  await feed(0, 1000);
  const before = await heap();
  await feed(1000, 10_000);
  const after = await heap();
  figure("app: heap after collection, before and after 10,000 status changes", `${(before / 1e6).toFixed(2)} and ${(after / 1e6).toFixed(2)} MB`);
  assert.ok(after < before * 1.1, `${before} bytes became ${after}`);
  await page.setViewportSize({ width: 360, height: 800 });
  await page.reload();
  await home();
});

part("time to the list, cold and warm", { timeout: 90_000 }, async () => {
  const figures = { cold: [], warm: [] };
  const measure = async (kind) => {
    const at = Date.now();
    await page.goto(`${up.url}/#/`);
    await page.reload();
    const { row, live } = await until(() => page.evaluate(() => window.seenAt.live && window.seenAt));
    const began = await page.evaluate(() => performance.timeOrigin);
    figures[kind].push([row - began, live - began, at]);
  };
  await home();
  await row("plain").waitFor({ timeout: 20_000 });
  for (let n = 0; n < 3; n++) {
    await d.cdp.send("Network.enable");
    await d.cdp.send("Network.clearBrowserCache");
    await d.cdp.send("Network.setBypassServiceWorker", { bypass: true });
    await page.evaluate(() => new Promise((r) => (indexedDB.deleteDatabase("holdfast.sessions").onsuccess = r)));
    await measure("cold");
    await d.cdp.send("Network.setBypassServiceWorker", { bypass: false });
  }
  await page.evaluate(() => navigator.serviceWorker.ready.then(() => 0));
  await sleep(1500);
  for (let n = 0; n < 3; n++) await measure("warm");
  const median = (kind, i) => figures[kind].map((f) => Math.round(f[i])).sort((a, b) => a - b)[1];
  figure("app: list of sessions, nothing kept", `first row and live after ${median("cold", 1)} ms`);
  figure("app: list of sessions, opened again", `what was known after ${median("warm", 0)} ms, live after ${median("warm", 1)} ms`);
  assert.ok(median("warm", 0) <= median("warm", 1));
});

part("the app can be installed: its manifest and icons are whole", async () => {
  const { errors } = await d.cdp.send("Page.getAppManifest");
  assert.deepEqual(errors, []);
  const said = (await d.cdp.send("Page.getInstallabilityErrors")).installabilityErrors.map((e) => e.errorId).filter((e) => e != "in-incognito");
  assert.deepEqual(said, []);
  const manifest = await (await fetch(`${up.url}/manifest.webmanifest`)).json();
  for (const icon of [...manifest.icons, ...manifest.shortcuts.flatMap((s) => s.icons)]) {
    const r = await fetch(`${up.url}/${icon.src}`);
    assert.equal(r.status, 200, icon.src);
    assert.equal(r.headers.get("content-type"), icon.type);
    if (icon.type != "image/png") continue;
    const b = Buffer.from(await r.arrayBuffer());
    assert.equal(`${b.readUInt32BE(16)}x${b.readUInt32BE(20)}`, icon.sizes, icon.src);
  }
  assert.ok(manifest.icons.some((i) => i.purpose == "maskable"));
  for (const s of manifest.shortcuts) {
    await page.goto("about:blank");
    await page.goto(`${up.url}/${s.url}`);
    await page.locator("h1").first().waitFor();
  }
  await page.goto(`${up.url}/#/new`);
  await page.locator(".sheet .form").waitFor();
});

part("an update waits, says that it is ready, and interrupts nothing", { timeout: 60_000 }, async () => {
  // The page of a static host, whose files can be changed under it.
  const site = join(scene.dir, "site");
  execFileSync(binary, ["web", "export", site, "--state", up.state], { env: scene.env() });
  const kinds = { html: "text/html", js: "text/javascript", css: "text/css", svg: "image/svg+xml", png: "image/png", webmanifest: "application/manifest+json" };
  const server = createServer((q, r) => {
    const name = q.url.split("?")[0].slice(1) || "index.html";
    try {
      const body = readFileSync(join(site, name));
      r.writeHead(200, { "Content-Type": kinds[name.split(".").at(-1)] ?? "text/plain" }).end(body);
    } catch {
      r.writeHead(404).end();
    }
  });
  await new Promise((r) => server.listen(0, "127.0.0.1", r));
  const other = await device(scene, PHONE);
  try {
    await other.page.goto(`http://127.0.0.1:${server.address().port}/`);
    await until(() => other.page.evaluate(async () => (await navigator.serviceWorker.getRegistration())?.active?.state == "activated"), undefined, 30_000);
    assert.equal(await other.page.locator("[data-update]").count(), 0, "the first version is no update");
    appendFileSync(join(site, "sw.js"), "\n// newer\n");
    await other.page.reload();
    await other.page.evaluate(() => (window.untouched = true));
    await other.page.locator("[data-update]", { hasText: "new version of this page is ready" }).waitFor({ timeout: 30_000 });
    assert.equal(await other.page.evaluate(() => window.untouched), true, "the page was reloaded under the person");
    assert.equal(await other.page.evaluate(async () => !!(await navigator.serviceWorker.getRegistration()).waiting), true);
  } finally {
    await other.context.close();
    server.closeAllConnections();
    server.close();
  }
});
