// What the tests of the page share: the built program as a machine, sshd, a
// faulty path, a browser that looks like a phone, and what arrives at the machine.

import { execFileSync, spawn } from "node:child_process";
import { rm } from "node:fs/promises";
import { createServer } from "node:net";
import { appendFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { chromium } from "playwright-core";

export { sleep };

export const binary = process.env.HOLDFAST_BINARY ?? new URL("../../bin/holdfast", import.meta.url).pathname;
export const CHROMIUM = process.env.HOLDFAST_CHROMIUM ?? "/usr/bin/chromium";

/** Everything that a test started, newest last; end() ends it in the other order. */
export class Scene {
  #undo = [];
  /** More of the environment of what is started. */
  more = {};
  constructor() {
    this.dir = mkdtempSync(join(tmpdir(), "hfb-"));
    this.home = join(this.dir, "home");
    mkdirSync(this.home, { mode: 0o700 });
    // What a plain shell shows must be the same everywhere.
    writeFileSync(join(this.home, ".bashrc"), "PS1='$ '\nunset HISTFILE PROMPT_COMMAND\nbind 'set enable-bracketed-paste on'\n");
    writeFileSync(join(this.home, ".bash_profile"), ". ~/.bashrc\n");
  }
  later(f) {
    this.#undo.push(f);
  }
  async end() {
    // One that throws must not leave the others' processes running.
    const faults = [];
    for (const f of this.#undo.reverse()) {
      try {
        await f();
      } catch (e) {
        faults.push(e);
      }
    }
    this.#undo = [];
    // What was ended may write its last while it goes.
    await rm(this.dir, { recursive: true, force: true, maxRetries: 10, retryDelay: 300 });
    if (faults.length) throw faults[0];
  }
  env() {
    return {
      HOME: this.home, PATH: `${process.env.PATH}:/usr/sbin:/sbin`, LANG: "C.UTF-8", SHELL: "/bin/bash", TERM: "xterm", USER: process.env.USER ?? "root", LOGNAME: process.env.USER ?? "root",
      // tmux servers of the tests are nobody else's.
      TMUX_TMPDIR: this.dir,
      ...this.more,
    };
  }

  /** Starts a program that ends with the scene. */
  start(command, args, options = {}) {
    const child = spawn(command, args, { env: this.env(), cwd: this.home, stdio: ["pipe", "pipe", "pipe"], ...options });
    child.log = "";
    child.stderr.on("data", (d) => (child.log += d));
    child.over = new Promise((resolve) => child.on("exit", resolve));
    child.lines = createInterface({ input: child.stdout });
    this.later(async () => {
      child.kill("SIGTERM");
      const slow = setTimeout(() => child.kill("SIGKILL"), 5000);
      await child.over;
      clearTimeout(slow);
    });
    return child;
  }

  /** Relay and agent of a machine. */
  async up({ sshd = "off", name = "mini", state = join(this.dir, `state-${name}`), listen = "127.0.0.1:0", args = [] } = {}) {
    const child = this.start(binary, ["up", "--json", "--state", state, "--listen", listen, "--name", name, "--sshd", sshd, ...args]);
    const up = { state, child, name, links: [] };
    await new Promise((resolve, reject) => {
      child.over.then(() => reject(new Error(`holdfast up ended: ${child.log}`)));
      child.lines.on("line", (line) => {
        const e = JSON.parse(line);
        if (e.event == "listening") up.url = e.url;
        if (e.event == "link") up.links.push(e.link);
        if (e.event == "machine" && e.state == "connected") resolve();
        if (e.event == "machine" && e.reachable) resolve();
      });
    });
    /** The first link, then new ones. */
    up.link = async () => up.links.shift() ?? JSON.parse(this.holdfast(up, "pair", "--json").trim().split("\n").find((l) => l.includes('"link"'))).link;
    up.stop = async () => {
      child.kill("SIGTERM");
      await child.over;
    };
    return up;
  }

  holdfast(up, ...args) {
    const [first, ...rest] = args;
    return execFileSync(binary, [first, "--state", up.state, ...rest], { env: this.env(), encoding: "utf8" });
  }

  /** The system's sshd, with keys of its own and the scene's authorized_keys. */
  async sshd() {
    const dir = join(this.home, "sshd");
    mkdirSync(dir, { mode: 0o700 });
    for (const kind of ["ed25519", "ecdsa"]) execFileSync("ssh-keygen", ["-q", "-t", kind, "-N", "", "-f", join(dir, kind)]);
    if (process.getuid() == 0) mkdirSync("/run/sshd", { recursive: true });
    const port = await freePort();
    const config = join(dir, "config");
    writeFileSync(config, `ListenAddress 127.0.0.1
Port ${port}
HostKey ${dir}/ed25519
HostKey ${dir}/ecdsa
AuthorizedKeysFile ${this.home}/.ssh/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
UseDNS no
`);
    const child = this.start("/usr/sbin/sshd", ["-D", "-e", "-f", config]);
    await until(() => child.log.includes("Server listening"), () => `sshd: ${child.log}`);
    return `127.0.0.1:${port}`;
  }

  /** A path that can be made half-open; a relay behind it. */
  async faulty() {
    const program = join(this.dir, "fault");
    execFileSync("go", ["build", "-o", program, "./web/app/test/fault"], { cwd: new URL("../..", import.meta.url).pathname });
    const child = this.start(program, [], { env: process.env });
    const answers = child.lines[Symbol.asyncIterator]();
    const addr = (await answers.next()).value;
    const tell = async (line) => {
      child.stdin.write(line + "\n");
      if ((await answers.next()).value != "ok") throw new Error(`fault proxy: ${child.log}`);
    };
    return { addr, tell };
  }

  tmux(...args) {
    return execFileSync("tmux", ["-u", ...args], { env: this.env(), encoding: "utf8" }).trimEnd();
  }
}

export const freePort = () =>
  new Promise((resolve) => {
    const s = createServer().listen(0, "127.0.0.1", () => {
      const { port } = s.address();
      s.close(() => resolve(port));
    });
  });

/** Waits for something to be true. */
export const until = async (test, say = () => String(test), ms = 15_000) => {
  const end = Date.now() + ms;
  for (;;) {
    const got = await test();
    if (got) return got;
    if (Date.now() > end) throw new Error(`waited ${ms} ms for: ${await say()}`);
    await sleep(25);
  }
};

let browser;
export const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

export const launch = async () => (browser ??= await chromium.launch({ executablePath: CHROMIUM, args: flags }));
export const closeBrowser = async () => {
  await browser?.close();
  browser = undefined;
};

/** Ends a scene and the browser, which would keep a test's process for ever, whatever the scene has found. */
export const over = (scene) => scene.end().finally(closeBrowser);

export const PHONE = { viewport: { width: 360, height: 800 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true, userAgent: "Mozilla/5.0 (Linux; Android 15; Pixel 9) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/146.0.0.0 Mobile Safari/537.36" };
export const DESKTOP = { viewport: { width: 1280, height: 800 } };

/** A browser whose camera sees a picture: rows of cells, true for black. */
export const withCamera = async (scene, cells) => {
  const side = 480, scale = Math.floor(side / (cells.length + 8)), margin = (side - scale * cells.length) >> 1;
  const dark = (x, y) => cells[Math.floor((y - margin) / scale)]?.[Math.floor((x - margin) / scale)];
  const luma = Buffer.from(Array.from({ length: side * side }, (_, i) => (dark(i % side, Math.floor(i / side)) ? 16 : 235)));
  const file = join(scene.dir, "camera.y4m");
  writeFileSync(file, Buffer.concat([Buffer.from(`YUV4MPEG2 W${side} H${side} F10:1 Ip A1:1 C420jpeg\nFRAME\n`), luma, Buffer.alloc(side * side / 2, 128)]));
  const own = await chromium.launch({ executablePath: CHROMIUM, args: [...flags, "--use-fake-device-for-media-stream", `--use-file-for-fake-video-capture=${file}`] });
  scene.later(() => own.close());
  return own;
};

/** A browser of one person, fresh; errors on its console fail the test that ends it. */
export const device = async (scene, profile = PHONE, from = undefined) => {
  const context = await (from ?? (await launch())).newContext({ locale: "en-US", ...profile });
  const page = await context.newPage();
  const d = { context, page, faults: [], requests: [] };
  const watch = (p) => {
    p.on("console", (m) => {
      // A refused or lost connection is the browser's own line, and expected; so is
      // a look for an update of the service worker without a network.
      if (m.type() == "error" && !/net::ERR_|WebSocket connection|status of 4\d\d|error occurred when fetching the script/.test(m.text())) d.faults.push(m.text());
    });
    p.on("pageerror", (e) => d.faults.push(String(e)));
  };
  watch(page);
  context.on("request", (r) => d.requests.push(r.url()));
  d.cdp = await context.newCDPSession(page);
  scene.later(async () => {
    await context.close().catch(() => {});
    if (d.faults.length) throw new Error(`errors on the console: ${[...new Set(d.faults)].join("\n")}`);
  });
  return d;
};

/** Has the terminal say its text to a screen reader, which is how a test reads what WebGL draws. */
export const spoken = (d) => d.context.addInitScript(() => location.protocol == "about:" || localStorage.setItem("holdfast.prefs", JSON.stringify({ screenReader: true })));

/** Opens a pairing link, as scanning its code does. */
export const pair = async ({ page }, link) => {
  await page.goto(link);
  await page.waitForURL(/#\/m\/[\w-]+$/, { timeout: 30_000 });
  await page.waitForSelector('.state[data-phase="up"]', { timeout: 20_000 });
};

export const machineId = (page) => /#\/m\/([\w-]+)/.exec(page.url())[1];

/** Opens a plain shell and waits for its prompt. */
export const shell = async (d, ready = /\$ ?$/) => {
  const { page } = d;
  await page.evaluate((id) => (location.hash = `#/m/${id}/shell`), machineId(page));
  const seen = () => page.evaluate(() => `${document.querySelector(".screen")?.dataset.phase}: ${document.body.innerText}`);
  await until(() => page.$('.screen[data-phase="open"]'), seen, 20_000);
  await shows(page, ready);
};

/** A page and a shell of its own for the next test, whatever the last one left behind. */
export const fresh = async (d, where) => {
  const { page } = d;
  await page.setViewportSize(PHONE.viewport);
  // A new address alone would be no new page.
  await page.goto("about:blank");
  await page.goto(where);
  // The shell that was on the screen ended with its page, and would be said to have.
  await page.evaluate(() => sessionStorage.clear());
  await shell(d);
};

export const tmux = async ({ page }, name, fit = "") => {
  await page.evaluate(([id, name, fit]) => (location.hash = `#/m/${id}/tmux/${name}${fit}`), [machineId(page), name, fit]);
  await page.waitForSelector('.screen[data-phase="open"]', { timeout: 20_000 });
};

/** What the terminal shows. */
export const rows = (page) => page.$$eval(".xterm-accessibility-tree > div, .xterm-rows > div", (all) => all.map((r) => r.textContent.replace(/\u00a0/g, " ").trimEnd()));
export const text = async (page) => (await rows(page)).join("\n").trimEnd();
export const shows = (page, what, ms) => until(async () => (what instanceof RegExp ? what.test(await text(page)) : (await text(page)).includes(what)), async () => `${what} in:\n${await text(page)}`, ms);
export const prompt = (page) => shows(page, /\$ ?$/);

export const FIELD = "textarea.field";

/** Types a line as a person with a keyboard does. */
export const line = async (page, command) => {
  await page.focus(FIELD);
  await page.keyboard.insertText(command);
  await page.keyboard.press("Enter");
};

/** Runs a command in the shell and waits until it is done. */
export const run = async (page, command) => {
  const mark = `done${Math.random().toString(36).slice(2)}`;
  await line(page, `${command}; echo ${mark.slice(0, 4)}''${mark.slice(4)}`);
  await shows(page, mark);
};

let recorders = 0;
/** A program that takes every byte as it comes: what the keyboard really sent. */
export const recorder = async (scene, page, before = "") => {
  const file = join(scene.home, `keys-${++recorders}`);
  await line(page, `clear; stty raw -echo; printf '${before}'; echo re''ady; sh -c 'echo $$ > ${file}.pid; exec cat > ${file}'`);
  await shows(page, "ready");
  await until(() => existsSync(file) && existsSync(`${file}.pid`));
  const got = () => readFileSync(file, "utf8");
  return {
    got,
    bytes: () => statSync(file).size,
    /** Waits for bytes, and for nothing to follow them. */
    async gets(want) {
      await until(() => got().length >= want.length || got() == want, () => `${JSON.stringify(want)}, got ${JSON.stringify(got())}`, 5000).catch(() => {});
      await sleep(150);
      return got();
    },
    clear: () => writeFileSync(file, ""),
    async end() {
      process.kill(+readFileSync(`${file}.pid`, "utf8"), "SIGKILL");
      await sleep(100);
      await line(page, "stty sane; clear");
    },
  };
};

/** Soft keyboards send every key as 229, and the text apart from it; CDP wants them in one turn. */
export const soft = (cdp, insert) =>
  Promise.all([
    cdp.send("Input.dispatchKeyEvent", { type: "rawKeyDown", windowsVirtualKeyCode: 229, key: "Unidentified" }),
    insert(),
    cdp.send("Input.dispatchKeyEvent", { type: "keyUp", windowsVirtualKeyCode: 229, key: "Unidentified" }),
  ]);

export const compose = (cdp, text) => cdp.send("Input.imeSetComposition", { text, selectionStart: text.length, selectionEnd: text.length });
export const insert = (cdp, text) => cdp.send("Input.insertText", { text });

/** A finger from one point to another. */
export const drag = async (cdp, x, from, to, steps = 10) => {
  await cdp.send("Input.dispatchTouchEvent", { type: "touchStart", touchPoints: [{ x, y: from }] });
  for (let i = 1; i <= steps; i++) {
    await cdp.send("Input.dispatchTouchEvent", { type: "touchMove", touchPoints: [{ x, y: from + ((to - from) * i) / steps }] });
    await sleep(16);
  }
  await cdp.send("Input.dispatchTouchEvent", { type: "touchEnd", touchPoints: [] });
};

/** Notes a measured figure for people to read. */
export const figure = (name, value) => {
  console.log(`   ${name}: ${value}`);
  if (process.env.HOLDFAST_FIGURES) appendFileSync(process.env.HOLDFAST_FIGURES, `${name}: ${value}\n`);
};
