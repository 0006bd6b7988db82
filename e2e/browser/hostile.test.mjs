// Transcripts that are hostile or enormous, in a session of the real Claude Code:
// nothing in them runs or loads, and what cannot be seen is shown as what it is.

import assert from "node:assert/strict";
import { createWriteStream, readdirSync, readFileSync } from "node:fs";
import { once } from "node:events";
import { join } from "node:path";
import { after, before } from "node:test";
import { device, figure, over, pair, PHONE, Scene, sleep, until } from "./lib.mjs";
import { createDesk, createParts, seen } from "./tools.mjs";

const scene = new Scene();
// The agent sees every tmux server of its user: names that nobody else has.
const AI = `ai-${process.pid}`;
let desk, up, d, page, config, last;
const part = createParts(() => seen(page, desk, AI));
const files = [];

/** Appends records to a session's transcript, each the answer to the one before it. */
const append = async (file, records) => {
  const out = createWriteStream(file, { flags: "a" });
  for (const r of records) {
    const uuid = crypto.randomUUID();
    const line = JSON.stringify({ parentUuid: last.uuid, isSidechain: false, userType: "external", cwd: desk.project, sessionId: last.sessionId, version: last.version, uuid, timestamp: new Date().toISOString(), ...r }) + "\n";
    last = { ...last, uuid };
    if (!out.write(line)) await once(out, "drain");
  }
  out.end();
  await once(out, "finish");
};
const user = (content) => ({ type: "user", message: { role: "user", content } });
const assistant = (...content) => ({ type: "assistant", requestId: crypto.randomUUID(), message: { id: `msg_${crypto.randomUUID()}`, type: "message", role: "assistant", model: "model<b>", content, stop_reason: null, stop_sequence: null, usage: {} } });
const call = (name, input) => {
  const id = `toolu_${crypto.randomUUID()}`;
  return [assistant({ type: "tool_use", id, name, input }), (content, more = {}) => ({ ...user([{ type: "tool_result", tool_use_id: id, content, ...more }]) })];
};
const field = () => page.locator("textarea.message");

before(async () => {
  desk = await createDesk(scene);
  config = await desk.claude(AI);
  up = await scene.up();
  d = await device(scene, PHONE);
  ({ page } = d);
});
after(() => over(scene));

const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGNgYPiPAw0pCVwaAGYkP8FPbDYaAAAAAElFTkSuQmCC";

part("a session of Claude Code", async () => {
  await pair(d, await up.link());
  await page.locator(".list li[data-session]", { hasText: AI }).locator("a").tap();
  await field().fill("do: say A beginning.");
  await page.getByLabel("Send", { exact: true }).tap();
  await page.locator(".md", { hasText: "A beginning." }).waitFor({ timeout: 30_000 });
  await until(async () => /idle|done/.test(await page.locator(".state[data-state]").getAttribute("data-state")));
  const dir = join(config, "projects");
  for (const p of readdirSync(dir)) for (const f of readdirSync(join(dir, p))) if (f.endsWith(".jsonl")) files.push(join(dir, p, f));
  assert.equal(files.length, 1);
  last = readFileSync(files[0], "utf8").trim().split("\n").map((l) => JSON.parse(l)).filter((r) => r.uuid && (r.type == "user" || r.type == "assistant")).at(-1);
});

part("a hostile transcript: nothing runs, nothing is loaded, and all of it is text", async () => {
  await page.evaluate(() => (window.pwned = []));
  const run = "window.pwned.push(1)";
  const [bash, result] = call("constructor", { command: `<img src=x onerror="${run}">`, description: "__proto__" });
  const [shot, picture] = call("Read", { file_path: "/tmp/\u202egnp.exe" });
  await append(files[0], [
    user(`<script>${run}</script> \u202egpj.exe\u2066 \u001b[31mred\u0007 <img src="https://evil.example/a.png" onerror="${run}">`),
    assistant({
      type: "text",
      text: [
        `<script>${run}</script>`,
        `<svg onload="${run}"><a href="javascript:${run}">x</a></svg>`,
        `<iframe src="javascript:parent.${run}"></iframe><style>body{display:none}</style><link rel=stylesheet href=https://evil.example/c.css>`,
        `[a script](javascript:${run}) [data](data:text/html,<script>${run}</script>) [an address](https://good.example/path?q=1)`,
        `![a picture](https://evil.example/p.png "t") <https://auto.example/>`,
        "| a | b |\n|---|---|\n| <b onclick=alert(1)>x</b> | `<i>` |",
        "> ".repeat(200) + "deep",
        "```html\n<script>code()</script>\n```",
        "invisible: a\u200bb\u2060c\u{e0041}d, spoofed: \u202eabc\u202c",
      ].join("\n\n"),
    }),
    bash,
    result(`</pre><script>${run}</script>\u001b]8;;javascript:${run}\u0007link\u001b]8;;\u0007`),
    shot,
    picture([
      { type: "image", source: { type: "base64", media_type: "image/svg+xml", data: Buffer.from(`<svg xmlns="http://www.w3.org/2000/svg" onload="${run}"/>`).toString("base64") } },
      { type: "image", source: { type: "base64", media_type: "image/png", data: PNG } },
      { type: "image", source: { type: "base64", media_type: "image/png", data: Buffer.from("no picture ".repeat(200)).toString("base64") } },
    ]),
    { type: "user", message: { role: "user", content: { toString: "no list" } } },
    { type: "assistant", message: null },
    assistant({ type: "text", text: "The end of it." }),
  ]);
  await page.locator(".md", { hasText: "The end of it." }).waitFor({ timeout: 15_000 });
  for (const f of await page.locator(".tool > summary").all()) await f.tap();
  await page.getByRole("button", { name: /Show picture/ }).first().tap();
  await page.getByRole("button", { name: /Show picture/ }).first().tap();
  await page.locator("img.picture").first().waitFor();
  await page.getByText("The picture cannot be shown.").waitFor();
  const seen = await page.evaluate(() => {
    const items = document.querySelector(".items");
    return {
      elements: [...new Set([...items.querySelectorAll("*")].map((e) => e.localName))],
      handlers: [...items.querySelectorAll("*")].filter((e) => e.getAttributeNames().some((n) => n.startsWith("on"))).length,
      links: [...document.querySelectorAll("[href]")].map((e) => e.getAttribute("href")),
      sources: [...items.querySelectorAll("[src]")].map((e) => e.src.slice(0, 5)),
      text: items.textContent,
      pwned: window.pwned,
    };
  });
  assert.deepEqual(seen.pwned, []);
  for (const e of ["script", "svg", "iframe", "style", "link", "object", "a"]) assert.ok(!seen.elements.includes(e), `<${e}> in the conversation`);
  assert.equal(seen.handlers, 0);
  assert.deepEqual(seen.sources, ["blob:"]);
  assert.ok(!seen.links.some((l) => /javascript|data:/i.test(l)), seen.links.join(" "));
  assert.ok(seen.text.includes(`<script>${run}</script>`), "what it says is there to be read");
  assert.ok(seen.text.includes("␛[31mred␇"), "control characters are shown");
  assert.doesNotMatch(seen.text, /[\u202a-\u202e\u2066-\u2069\u2060]|\u{e0041}/u);
  assert.ok(seen.text.includes("[image/svg+xml]"));
  // An address is opened after a question that shows all of it.
  assert.equal(await page.getByRole("button", { name: "a script" }).count(), 0);
  await page.getByRole("button", { name: "an address" }).tap();
  const link = page.locator(".sheet a.button");
  assert.equal(await link.getAttribute("href"), "https://good.example/path?q=1");
  assert.match(await link.getAttribute("rel"), /noopener noreferrer/);
  await page.locator(".sheet").getByText("Close").tap();
  const strange = d.requests.filter((r) => !r.startsWith(up.url) && !r.startsWith("blob:"));
  assert.deepEqual(strange, []);
});

part("a line of 10 MB is cut, and all of it is a tap away", async () => {
  const [bash, result] = call("Bash", { command: "cat large" });
  await append(files[0], [bash, result("0123456789abcdef\n".repeat(650_000)), assistant({ type: "text", text: "After the large one." })]);
  await page.locator(".md", { hasText: "After the large one." }).waitFor({ timeout: 20_000 });
  const tool = page.locator(".tool", { hasText: "cat large" });
  await tool.locator("summary").tap();
  assert.ok((await tool.locator("pre").last().innerText()).length < 40_000);
  await tool.getByText(/Show all of it \(1\d\.\d MB\)/).waitFor();
  await field().fill("the page still answers");
  assert.equal(await field().inputValue(), "the page still answers");
  await field().fill("");
});

part("search finds what is far above, and a tap goes there", async () => {
  await append(files[0], [
    ...Array.from({ length: 500 }, (_, i) => [user(`Question ${i}`), assistant({ type: "text", text: i == 40 ? "Here is the needle in it." : `Answer ${i}` })]).flat(),
  ]);
  await page.locator(".md", { hasText: "Answer 499" }).waitFor({ timeout: 20_000 });
  const search = async (words) => {
    await page.getByLabel("Menu").tap();
    await page.locator(".choices button", { hasText: "Search" }).tap();
    await page.locator(".sheet input").fill(words);
    await page.locator(".sheet input").press("Enter");
    await page.locator(".hits button").first().waitFor({ timeout: 15_000 });
    await page.locator(".hits button").first().tap();
  };
  // Near: with all that lies between.
  await search("Answer 450");
  await page.locator(".found", { hasText: "Answer 450" }).waitFor();
  assert.ok(await page.locator(".found").evaluate((e) => e.getBoundingClientRect().top > 0 && e.getBoundingClientRect().bottom < innerHeight), "it is on the screen");
  await page.locator(".md", { hasText: /^Answer 451$/ }).waitFor({ state: "attached" });
  // Far: by itself with what came before it, and back to the newest.
  await search("needle");
  await page.locator(".found", { hasText: "needle" }).waitFor({ timeout: 15_000 });
  await page.locator(".md", { hasText: /^Answer 39$/ }).waitFor({ state: "attached" });
  await page.getByRole("button", { name: /To the newest/ }).tap();
  await page.locator(".md", { hasText: "Answer 499" }).waitFor();
  assert.equal(await page.locator(".found").count(), 0);
});

part("paging upward holds the place", async () => {
  const scroller = page.locator(".scroller");
  await until(() => scroller.evaluate((e) => e.scrollHeight - e.scrollTop - e.clientHeight < 50));
  let jumps = 0;
  for (let n = 0; n < 4; n++) {
    const before = await scroller.evaluate((e) => {
      e.scrollTop = 500;
      const at = [...e.querySelectorAll("[data-item]")].find((x) => x.getBoundingClientRect().top > e.getBoundingClientRect().top);
      window.anchor = at.dataset.item;
      window.count = e.querySelectorAll("[data-item]").length;
      return at.getBoundingClientRect().top;
    });
    await scroller.evaluate((e) => (e.scrollTop -= 150));
    await until(() => page.evaluate(() => document.querySelectorAll("[data-item]").length > window.count));
    await sleep(150);
    const now = await page.evaluate(() => document.querySelector(`[data-item="${CSS.escape(window.anchor)}"]`).getBoundingClientRect().top);
    if (Math.abs(now - (before + 150)) > 4) jumps++;
  }
  assert.equal(jumps, 0);
});

part("a transcript of 1 GB opens like any other", { timeout: 240_000 }, async () => {
  await page.evaluate(() => (location.hash = "#/"));
  const text = "x".repeat(120_000);
  const many = function* () {
    for (let n = 0; n < 4500; n++) {
      const [bash, result] = call("Bash", { command: `step ${n}` });
      yield bash;
      yield result(text + n + text);
    }
    yield assistant({ type: "text", text: "The newest of a gigabyte." });
  };
  await append(files[0], many());
  await sleep(1000);
  const began = Date.now();
  await page.locator(".list li[data-session]", { hasText: AI }).locator("a").tap();
  await page.locator(".md", { hasText: "The newest of a gigabyte." }).waitFor({ timeout: 30_000 });
  const took = Date.now() - began;
  figure("app: from the tap to the newest of a conversation of 1 GB", `${took} ms`);
  assert.ok(took < 10_000);
  const shown = await page.locator("[data-item]").count();
  await page.locator(".scroller").evaluate((e) => (e.scrollTop = 0));
  await until(async () => (await page.locator("[data-item]").count()) > shown);
});
