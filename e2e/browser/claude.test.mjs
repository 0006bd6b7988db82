// The real Claude Code and the real Codex, answered from a phone: what a person
// sees and taps, and what the program then did.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before } from "node:test";
import { compose, device, insert, over, pair, PHONE, Scene, sleep, soft, until } from "./lib.mjs";
import { createDesk, createParts, seen } from "./tools.mjs";

const scene = new Scene();
// The agent sees every tmux server of its user: names that nobody else has.
const AI = `ai-${process.pid}`;
const CX = `cx-${process.pid}`;
let desk, up, d, page;
const part = createParts(() => seen(page, desk, AI));

before(async () => {
  desk = await createDesk(scene);
  await desk.claude(AI);
  await desk.codex(CX);
  up = await scene.up();
  d = await device(scene, PHONE);
  ({ page } = d);
  await holdable(d);
});
after(() => over(scene));

/** Lets a test hold up what the machine tells: while window.holding is a list, changes wait in it. */
const holdable = ({ context }) =>
  context.addInitScript(() => {
    const Real = window.Worker;
    window.Worker = class extends Real {
      set onmessage(f) {
        super.onmessage = (e) => (window.holding && e.data.op == "sessionChanged" ? window.holding.push(() => f(e)) : f(e));
      }
    };
  });

const field = () => page.locator("textarea.message");
const card = () => page.locator(".dialog");
const row = (name) => page.locator(".list li[data-session]", { hasText: name }).first();
const state = (is, ms = 30_000) => page.locator(`.state[data-state="${is}"]`).waitFor({ timeout: ms });
const home = () => page.evaluate(() => (location.hash = "#/"));
const rest = () => until(async () => /idle|done/.test(await page.locator(".state[data-state]").getAttribute("data-state")), () => page.locator(".state").innerText(), 30_000);
/** Sends a text from the composer and waits until the program has taken it. */
const send = async (text) => {
  await field().fill(text);
  await page.getByLabel("Send", { exact: true }).tap();
  await page.locator('[data-receipt="accepted"]', { hasText: text.slice(0, 20) }).waitFor({ timeout: 20_000 });
};
const open = async (name) => {
  await home();
  await row(name).locator("a").tap();
  await field().waitFor();
};
/** The card about something, ready to be tapped. */
const asks = async (about) => {
  await card().filter({ hasText: about }).locator("button:enabled").first().waitFor({ timeout: 30_000 });
  return card().getAttribute("data-digest");
};
const verdict = () => page.locator("[data-verdict]");
const made = (name) => until(() => desk.made(name));
const says = (words) => until(async () => (await verdict().allInnerTexts()).join().includes(words), async () => `${words} in: ${await verdict().allInnerTexts()}`);

part("from the link to the answer of a permission dialog", async () => {
  await pair(d, await up.link());
  await row(AI).locator("a").tap();
  await send("do: bash date > one.txt then say All done.");
  await asks("date > one.txt");
  assert.equal(desk.made("one.txt"), false);
  // What the program itself offers, in its own words.
  const options = await card().locator("button").allInnerTexts();
  assert.equal(options[0], "Yes");
  assert.ok(options.some((o) => o.startsWith("No")), options.join(" | "));
  // On the list it is on top, with what is asked.
  await home();
  await page.locator(".group.waiting", { hasText: "date > one.txt" }).waitFor();
  assert.match(await page.title(), /^\(\d+\) Holdfast$/);
  await row(AI).locator("a").tap();
  await asks("date > one.txt");
  await card().getByText("Yes", { exact: true }).tap();
  await made("one.txt");
  await page.locator(".md", { hasText: "All done." }).waitFor({ timeout: 20_000 });
  assert.equal(await card().count(), 0);
  // Its own answer is not taken for somebody else's.
  assert.doesNotMatch((await verdict().allInnerTexts()).join(), /elsewhere/);
  await rest();
});

part("a card that is being answered says so, step by step", async () => {
  await send("do: bash date > steps.txt then say Stepped.");
  await asks("steps.txt");
  const tool = page.locator(".tool summary", { hasText: "steps.txt" });
  await until(async () => /waits for you$/.test((await tool.innerText()).trim()), () => tool.innerText());
  await page.evaluate(() => {
    window.stages = [];
    new MutationObserver(() => {
      const c = document.querySelector(".dialog");
      if (c?.dataset.answering) window.stages.push(`${c.dataset.answering}: ${c.querySelector(".stage").textContent}`);
    }).observe(document.body, { subtree: true, childList: true, attributes: true });
  });
  await card().getByText("Yes", { exact: true }).tap();
  await says("Answered: Yes");
  const stages = [...new Set(await page.evaluate(() => window.stages))];
  for (const want of [/^sending: Sending/, /^typed: Typed/]) assert.ok(stages.some((s) => want.test(s)), stages.join(" | "));
  await until(async () => /done$/.test((await tool.innerText()).trim()), () => tool.innerText());
  await rest();
});

part("what was answered is not asked again while the machine's news of it is on its way", async () => {
  await send("do: bash date > once.txt then say Once.");
  await asks("once.txt");
  await page.evaluate(() => (window.holding = []));
  await card().getByText("Yes", { exact: true }).tap();
  await page.waitForFunction(() => document.querySelector("[data-verdict]")?.textContent.includes("Answered: Yes") && !document.querySelector(".dialog"), undefined, { timeout: 15_000 });
  await page.evaluate(() => {
    const late = window.holding;
    window.holding = undefined;
    for (const f of late) f();
  });
  await made("once.txt");
  await rest();
});

part("a reply in Japanese, composed, becomes a turn", async () => {
  await field().tap();
  await compose(d.cdp, "に");
  await compose(d.cdp, "日本");
  await soft(d.cdp, () => insert(d.cdp, "日本語で do: say はい、わかりました。"));
  assert.equal(await field().inputValue(), "日本語で do: say はい、わかりました。");
  await page.getByLabel("Send", { exact: true }).tap();
  await page.locator(".md", { hasText: "はい、わかりました。" }).waitFor({ timeout: 20_000 });
  await page.locator(".turn.user", { hasText: "日本語で" }).waitFor();
  await rest();
});

part("two dialogs: a finger on its way to the first never answers the second", async () => {
  await send("do: bash date > first.txt then bash date > second.txt then say Both.");
  const first = await asks("first.txt");
  // Answered at the desk; the second takes the first one's place under the finger.
  await page.evaluate((first) => {
    new MutationObserver((_, o) => {
      const c = document.querySelector(`.dialog:not([data-digest="${first}"])`);
      if (!c) return;
      window.atFirst = c.querySelectorAll("button:enabled").length;
      o.disconnect();
    }).observe(document.body, { subtree: true, childList: true, attributes: true });
  }, first);
  desk.keys(AI, "1");
  await page.locator(`.dialog:not([data-digest="${first}"])`).waitFor({ timeout: 20_000 });
  await says("answered elsewhere");
  assert.equal(await page.evaluate(() => window.atFirst), 0, "a card that came in another's place can be tapped at once");
  const second = await asks("second.txt");
  assert.notEqual(second, first);
  assert.equal(desk.made("second.txt"), false);
  await card().locator("button.danger").tap();
  await rest();
  assert.equal(desk.made("second.txt"), false);
});

part("a late tap is refused by the machine, and it is said that nothing was pressed", async () => {
  await send("do: bash date > early.txt then bash date > late.txt then say Late.");
  const first = await asks("early.txt");
  // News of the machine comes late, as on a bad path: the card is an old one.
  await page.evaluate(() => (window.holding = []));
  desk.keys(AI, "1");
  await made("early.txt");
  await desk.shows(AI, "date > late.txt");
  await desk.shows(AI, "Do you want to proceed?");
  await sleep(1000);
  assert.equal(await card().getAttribute("data-digest"), first);
  await card().getByText("Yes", { exact: true }).tap();
  await says("Nothing was pressed");
  assert.equal(desk.made("late.txt"), false);
  await page.evaluate(() => {
    const late = window.holding;
    window.holding = undefined;
    for (const f of late) f();
  });
  await asks("late.txt");
  await card().locator("button.danger").tap();
  await rest();
  assert.equal(desk.made("late.txt"), false);
});

part("answered at the desk: the card retracts, here and on the list", async () => {
  await send("do: bash date > desk.txt then say Fine.");
  await asks("desk.txt");
  desk.keys(AI, "1");
  await made("desk.txt");
  await card().waitFor({ state: "detached", timeout: 15_000 });
  await says("answered elsewhere");
  await home();
  await row(AI).waitFor();
  await until(async () => (await page.locator(".group.waiting li", { hasText: AI }).count()) == 0);
  await open(AI);
  await rest();
});

part("a question is answered by one of its own choices", async () => {
  await send("do: ask 1 then say Thanks.");
  await card().filter({ hasText: "Which colour" }).locator("button:enabled").first().waitFor({ timeout: 30_000 });
  assert.ok((await card().locator("button").count()) >= 4);
  await card().locator("button", { hasText: "Blue" }).tap();
  await page.locator(".md", { hasText: "Thanks." }).waitFor({ timeout: 20_000 });
  await page.locator(".turn.question .chosen", { hasText: "Blue" }).waitFor();
  await rest();
});

part("Esc ends a turn, and the page says idle soon after", async () => {
  writeFileSync(join(desk.project, "notes.txt"), "notes\n");
  await send("do: read notes.txt then wait 60 say Too late.");
  await desk.shows(AI, "Read");
  await state("working");
  await page.getByLabel("Menu").tap();
  await page.locator(".choices button", { hasText: "Esc" }).tap();
  const start = Date.now();
  await rest();
  assert.ok(Date.now() - start < 10_000, `idle only ${Date.now() - start} ms after Esc`);
  await page.locator(".mark", { hasText: "You stopped it here" }).last().waitFor({ timeout: 15_000 });
});

part("work that goes on in the background is neither working nor idle", async () => {
  await send("do: background sleep 10 then say Started it.");
  await state("background");
  await page.locator(".md", { hasText: "Started it." }).waitFor();
  await home();
  await page.locator(".group.background li", { hasText: AI }).waitFor();
  await open(AI);
  await rest();
});

part("a sub-agent's conversation is a tap away", async () => {
  await send("do: agent say Found it. then say Back again.");
  await page.getByText("Open its conversation").first().waitFor({ timeout: 30_000 });
  await page.locator(".md", { hasText: "Back again." }).waitFor({ timeout: 30_000 });
  await page.getByText("Open its conversation").first().tap();
  await page.locator(".md", { hasText: "Found it." }).waitFor({ timeout: 15_000 });
  await page.getByLabel("Back").tap();
  await page.locator(".md", { hasText: "Back again." }).waitFor();
  await rest();
});

part("a text in the tool's input box is never typed over", async () => {
  desk.keys(AI, "half a thought");
  await desk.shows(AI, "half a thought");
  await field().fill("do: say Behind it.");
  await page.getByLabel("Send", { exact: true }).tap();
  await page.locator('[data-receipt="composer"]', { hasText: "half a thought" }).waitFor({ timeout: 15_000 });
  await page.getByRole("button", { name: "Edit", exact: true }).tap();
  assert.equal(await field().inputValue(), "do: say Behind it.");
  await field().fill("");
  desk.keys(AI, "C-u");
});

part("the real Codex: allowed, then refused", async () => {
  await open(CX);
  await send("do: bash date > codex.txt then say はい、できました。");
  await asks("date > codex.txt");
  await card().locator("button:not(.second)").first().tap();
  await made("codex.txt");
  await page.locator(".md", { hasText: "はい、できました。" }).waitFor({ timeout: 20_000 });
  await rest();
  await send("do: bash date > never.txt then say No.");
  await asks("never.txt");
  await card().locator("button.danger").last().tap();
  await rest();
  assert.equal(desk.made("never.txt"), false);
});
