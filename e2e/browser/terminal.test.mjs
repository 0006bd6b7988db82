// The terminal on a phone and on a desktop: fingers, sizes, pastes, floods,
// widths, and what a program may do to the device.

import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { DESKTOP, device, drag, FIELD, figure, fresh, line, over, pair, PHONE, prompt, recorder, rows, run, Scene, shell, shows, sleep, spoken, text, tmux, until } from "./lib.mjs";

const scene = new Scene();
let up, d, page, cdp, where;

before(async () => {
  up = await scene.up();
  d = await device(scene, PHONE);
  ({ page, cdp } = d);
  await d.context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await pair(d, await up.link());
  where = page.url();
});
beforeEach(() => fresh(d, where));
after(() => over(scene));

const middle = async () => {
  const b = await page.locator(".screen").boundingBox();
  return { x: b.x + b.width / 2, top: b.y + 40, bottom: b.y + b.height - 40 };
};

test("7: a finger scrolls back, and the page stays where it is", async () => {
  await run(page, "seq 1 300");
  const { x, top, bottom } = await middle();
  await drag(cdp, x, top, bottom);
  await until(async () => +(await rows(page))[0] < 270, () => text(page));
  assert.equal(await page.evaluate(() => scrollY + visualViewport.offsetTop), 0);
  assert.equal(await page.$eval(".screen", (e) => getComputedStyle(e).touchAction), "none");
  await page.getByLabel("To the end").tap();
  await prompt(page);
});

test("7: in a program with a mouse a finger is its wheel", async () => {
  const r = await recorder(scene, page, "\\033[?1000h\\033[?1006h");
  const { x, top, bottom } = await middle();
  await drag(cdp, x, top, top + (bottom - top) / 4);
  await sleep(2000); // the flick runs out
  const got = r.got();
  await r.end();
  await run(page, "printf '\\033[?1000l\\033[?1006l'");
  assert.match(got, /^(\x1b\[<64;\d+;\d+M)+$/);
});

test("8: a long press opens text that can be selected and copied", async () => {
  await run(page, "clear; echo take-this");
  const { x, top } = await middle();
  await cdp.send("Input.dispatchTouchEvent", { type: "touchStart", touchPoints: [{ x, y: top }] });
  await sleep(700);
  await cdp.send("Input.dispatchTouchEvent", { type: "touchEnd", touchPoints: [] });
  const sheet = page.locator(".selectable");
  assert.match(await sheet.innerText(), /take-this/);
  assert.equal(await sheet.evaluate((e) => getComputedStyle(e).userSelect), "text");
  await page.getByText("Copy the screen").tap();
  await until(async () => (await page.evaluate(() => navigator.clipboard.readText())).includes("take-this"));
  await page.getByText("Close", { exact: true }).tap();
});

test("9: the prompt stays above the keyboard, and the program hears of the size once", async () => {
  await run(page, "clear; winches=0; trap 'winches=$((winches+1))' WINCH; stty size");
  const was = await page.evaluate(() => document.querySelectorAll(".xterm-rows > div").length);
  for (const h of [700, 600, 520, 460, 420]) {
    await page.setViewportSize({ width: 360, height: h });
    await sleep(16);
  }
  await until(async () => (await rows(page)).length < was - 5);
  // The rows are fewer already at a height before the last.
  const ends = () =>
    page.evaluate(() => {
      const last = [...document.querySelectorAll(".xterm-rows > div")].at(-1).getBoundingClientRect();
      const field = document.querySelector("textarea.field").getBoundingClientRect();
      return { last: last.bottom, field: [field.top, field.bottom], height: visualViewport.height };
    });
  await until(async () => {
    const { last, field: [top, bottom], height } = await ends();
    return last <= top && bottom <= height;
  }, async () => JSON.stringify(await ends()));
  await line(page, "echo win''ches=$winches size=$(stty size)");
  await shows(page, /winches=\d+ size=\d+ \d+/);
  const [, times, height] = /winches=(\d+) size=(\d+)/.exec(await text(page));
  assert.ok(+times <= 2, `${times} SIGWINCH for one keyboard`);
  assert.equal(+height, (await rows(page)).length);
  await page.setViewportSize(PHONE.viewport);
  await until(async () => (await rows(page)).length == was);
});

test("10: the field is in sight, is not zoomed into, and the page does not scroll to it", async () => {
  await page.setViewportSize({ width: 360, height: 420 });
  await page.tap(FIELD);
  const f = await page.$eval(FIELD, (f) => ({ size: parseFloat(getComputedStyle(f).fontSize), box: f.getBoundingClientRect().toJSON(), y: scrollY, height: visualViewport.height }));
  await page.setViewportSize(PHONE.viewport);
  assert.ok(f.size >= 16, `${f.size} px`);
  assert.ok(f.box.top >= 0 && f.box.bottom <= f.height, JSON.stringify(f));
  assert.equal(f.y, 0);
});

test("rotation changes the size, and the program hears of it", async () => {
  await page.setViewportSize({ width: 800, height: 360 });
  await until(async () => (await rows(page)).length < 15);
  await run(page, "clear; stty size");
  const [, r, c] = /(\d+) (\d+)/.exec((await rows(page)).find((x) => /^\d+ \d+$/.test(x)));
  assert.equal(+r, (await rows(page)).length);
  assert.ok(+c > 80, `${c} columns`);
  await page.setViewportSize(PHONE.viewport);
  await until(async () => (await rows(page)).length > 25);
});

test("two fingers change the size of the text", async () => {
  const size = () => page.$eval(".xterm-rows", (e) => parseFloat(getComputedStyle(e).fontSize));
  const was = await size();
  const { x } = await middle();
  const fingers = (apart) => [{ x: x - apart, y: 300, id: 1 }, { x: x + apart, y: 300, id: 2 }];
  await cdp.send("Input.dispatchTouchEvent", { type: "touchStart", touchPoints: fingers(40) });
  for (let a = 40; a <= 70; a += 5) await cdp.send("Input.dispatchTouchEvent", { type: "touchMove", touchPoints: fingers(a) });
  await cdp.send("Input.dispatchTouchEvent", { type: "touchEnd", touchPoints: [] });
  await until(async () => (await size()) > was);
  assert.equal(await page.evaluate(() => visualViewport.scale), 1);
  await page.getByLabel("Menu").tap();
  while ((await size()) > was) await page.getByText("Smaller text").tap();
  await page.getByText("Close", { exact: true }).tap();
});

test("a paste cannot break out of its brackets, and keys come after it", async () => {
  const r = await recorder(scene, page, "\\033[?2004h");
  await page.tap(FIELD);
  await page.$eval(FIELD, (f) => {
    const data = new DataTransfer();
    data.setData("text/plain", "safe\x1b[201~; rm -rf /\nmore\u009b");
    f.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  });
  await page.keyboard.insertText("x");
  await page.keyboard.press("Enter");
  const want = "\x1b[200~safe[201~; rm -rf /\rmore\x1b[201~x\r";
  const got = await r.gets(want);
  await r.end();
  assert.equal(got, want);
});

test("a paste that would run line by line asks first", async () => {
  const r = await recorder(scene, page);
  await page.tap(FIELD);
  await page.$eval(FIELD, (f) => {
    const data = new DataTransfer();
    data.setData("text/plain", "one\ntwo\n");
    f.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  });
  await page.waitForSelector(".preview");
  assert.equal(r.bytes(), 0);
  await page.locator("dialog button", { hasText: /^Paste$/ }).tap();
  assert.equal(await r.gets("one\rtwo\r"), "one\rtwo\r");
  await r.end();
});

test("a paste of 1 MB arrives whole, and the key behind it last", { timeout: 60_000 }, async () => {
  const r = await recorder(scene, page, "\\033[?2004h");
  const part = "0123456789abcdef".repeat(64);
  await page.tap(FIELD);
  const began = Date.now();
  await page.$eval(
    FIELD,
    (f, part) => {
      const data = new DataTransfer();
      data.setData("text/plain", part.repeat(1024));
      f.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
    },
    part,
  );
  await page.keyboard.insertText("!");
  const want = part.length * 1024 + 12 + 1;
  await until(() => r.bytes() >= want, () => `${r.bytes()} of ${want}`, 30_000);
  const got = r.got();
  await r.end();
  figure("paste of 1 MB", `${Date.now() - began} ms`);
  assert.equal(got, `\x1b[200~${part.repeat(1024)}\x1b[201~!`);
});

test("50 MB of output, then Ctrl-C ends a flood before it has run out", { timeout: 120_000 }, async () => {
  // 50 MB that do not fit into any buffer on the way; then more, so that the
  // flood still runs when it is interrupted.
  await line(page, "clear; head -c 38000000 /dev/zero | base64; yes flood-''goes-on");
  const began = Date.now();
  await shows(page, "flood-goes-on", 100_000);
  const took = Date.now() - began;
  figure("50 MB of output on a phone-sized screen", `${took} ms, ${Math.round(51.3 / (took / 1000))} MB/s`);
  const pressed = Date.now();
  await page.locator(".keyrow button", { hasText: "^C" }).tap();
  // How soon it is depends on the machine, and stands in docs/performance.md.
  await shows(page, /\^C\s*\$ ?$/, 10_000);
  figure("Ctrl-C in a flood", `${Date.now() - pressed} ms`);
  await run(page, "clear");
});

test("a program writes to the clipboard by consent only, and reads it never", async () => {
  await page.evaluate(() => navigator.clipboard.writeText("mine"));
  const b64 = Buffer.from("from the machine").toString("base64");
  const r = await recorder(scene, page, `\\033]52;c;?\\007\\033]52;c;${b64}\\007`);
  await page.waitForSelector('[role="alertdialog"]');
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "mine");
  assert.equal(r.got(), "", "the clipboard was read out");
  await page.getByText("Refuse").tap();
  await r.end();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "mine");
  await line(page, `printf '\\033]52;c;${b64}\\007'`);
  await page.getByText("Allow").tap();
  await until(async () => (await page.evaluate(() => navigator.clipboard.readText())) == "from the machine");
});

test("addresses are opened after a question, and only http ones", async () => {
  await run(page, "clear; printf '\\033]8;;javascript:alert(1)\\033\\\\click-me\\033]8;;\\033\\\\\\n'; echo https://example.com/x");
  const at = async (word) => {
    const b = await page.locator(".xterm-rows > div", { hasText: new RegExp(`^${word}`) }).boundingBox();
    await page.mouse.move(b.x + 20, b.y + b.height / 2);
    await sleep(200);
    await page.mouse.click(b.x + 20, b.y + b.height / 2);
    await sleep(200);
  };
  await at("click-me");
  assert.equal(await page.locator("dialog").count(), 0);
  await at("https://example");
  const link = page.locator("dialog a.button");
  assert.equal(await link.getAttribute("href"), "https://example.com/x");
  assert.match(await link.getAttribute("rel"), /noopener/);
  await page.getByText("Close", { exact: true }).tap();
});

test("19: the cursor stands where tmux believes it to be, behind wide characters", async () => {
  await tmux(d, "widths");
  await shows(page, "$");
  for (const sample of ["漢字かな", "한국어", "ｆｕｌｌ", "😀😀", "é", "→①│", "✅ok", "Ａ漢a"]) {
    await line(page, `clear; printf '${sample}'; read -n1`);
    await shows(page, sample[0]);
    let theirs, ours;
    // The last of what was typed may still be on its way to either.
    await until(
      async () => {
        theirs = +scene.tmux("display-message", "-p", "-t", "widths", "#{cursor_x}");
        // Of the client that is this page: the agent's own look on as well.
        const cols = +scene.tmux("list-clients", "-t", "widths", "-F", "#{client_control_mode} #{client_width}").match(/^0 (\d+)$/m)[1];
        const at = await page.evaluate(() => {
          const cursor = document.querySelector(".xterm-cursor");
          const row = cursor.closest(".xterm-rows > div").getBoundingClientRect();
          const cell = document.querySelector(".xterm-rows").getBoundingClientRect();
          return { left: cursor.getBoundingClientRect().left - row.left, width: cell.width };
        });
        ours = at.left / (at.width / cols);
        return Math.abs(ours - theirs) < 0.5;
      },
      () => `${sample}: tmux ${theirs}, page ${ours}`,
    );
    await page.keyboard.press("Enter");
  }
  scene.tmux("kill-session", "-t", "widths");
});

test("17: WebGL that loses its context gives way to the DOM", async () => {
  const desk = await device(scene, DESKTOP);
  await spoken(desk);
  await pair(desk, await up.link());
  await shell(desk);
  const { page } = desk;
  // The tests' Chromium draws WebGL in software; where it does not at all, the
  // DOM is what there is from the start.
  await sleep(500);
  const lost = await page.evaluate(async () => {
    const canvas = [...document.querySelectorAll(".xterm canvas")].find((c) => c.getContext("webgl2"));
    if (!canvas) return false;
    canvas.getContext("webgl2").getExtension("WEBGL_lose_context").loseContext();
    return true;
  });
  await run(page, "echo still-''here");
  if (lost) await sleep(3500);
  await shows(page, "still-here");
  assert.equal(await page.locator(".xterm canvas").count(), 0);
});

test("a desktop's keyboard works without the key row", async () => {
  const desk = await device(scene, DESKTOP);
  await spoken(desk);
  await pair(desk, await up.link());
  await shell(desk);
  assert.equal(await desk.page.locator(".keyrow").count(), 0);
  await desk.page.locator(".screen").click();
  await desk.page.keyboard.type("echo typ''ed");
  await desk.page.keyboard.press("Enter");
  await shows(desk.page, "typed");
});

test("an echo comes back soon", { timeout: 60_000 }, async () => {
  await run(page, "clear");
  await page.focus(FIELD);
  const times = [];
  for (let i = 0; i < 60; i++) {
    const took = await page.evaluate(
      (c) =>
        new Promise((resolve) => {
          const rows = document.querySelector(".xterm-rows");
          const was = rows.textContent.length ? rows.textContent.replace(/\s+$/g, "") : "";
          const began = performance.now();
          const seen = new MutationObserver(() => {
            if (rows.textContent.replace(/[\s\u00a0]+$/g, "") == was) return;
            seen.disconnect();
            resolve(performance.now() - began);
          });
          seen.observe(rows, { childList: true, subtree: true, characterData: true });
          document.execCommand("insertText", false, c);
        }),
      "a",
    );
    times.push(took);
    await sleep(30);
  }
  await page.keyboard.press("Control+KeyC");
  times.sort((a, b) => a - b);
  const at = (q) => times[Math.floor(q * (times.length - 1))];
  figure("echo, to the changed screen", `p50 ${at(0.5).toFixed(1)} ms, p90 ${at(0.9).toFixed(1)} ms`);
  // Drawing waits for the next frame, so this bounds waiting, not the network.
  assert.ok(at(0.5) < 150, `p50 ${at(0.5)} ms`);
});
