// Real Chromium, real sshd, x/crypto: the client in a Worker under a strict policy.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { publicKeyLine } from "@holdfast/ssh";
import { noChromium, startBrowser, type Browser } from "./browser.js";
import { startGo, tcpTransport, type GoServer } from "./go.js";
import { noSshd, startSshd, user, type Sshd } from "./sshd.js";

const options = { skip: noChromium ?? noSshd, timeout: 120_000 };
let browser: Browser;
let sshd: Sshd;
let go: GoServer | undefined;
before(async () => {
  if (options.skip) return;
  sshd = startSshd();
  browser = await startBrowser({ "/sshd": () => sshd.connection().transport, "/go": () => tcpTransport(go!.builtin) });
});
after(async () => {
  await browser?.stop();
  sshd?.stop();
  go?.stop();
});

test("Chromium: a key that cannot be read out, kept in IndexedDB, logs in to OpenSSH", options, async () => {
  for (const type of ["ssh-ed25519", "ecdsa-sha2-nistp256"]) {
    const { line, refused } = await browser.order("key", type);
    assert.deepEqual(refused, ["InvalidAccessError", "InvalidAccessError", "InvalidAccessError"]);
    assert(line.startsWith(type));
    sshd.authorize(line);
    const done = await browser.order("run", "/sshd", user, publicKeyLine(sshd.ed25519.blob), "echo marker-$((40+2)) >&2; echo marker-$((40+2))");
    assert.match(done.out, /marker-42\n/);
    assert.deepEqual(done.exit, { code: 0 });
    assert.equal(done.kex, "curve25519-sha256");
  }
  assert(!browser.recorded().includes("marker-42"), "whoever carries it reads nothing");
  assert(browser.recorded().includes("SSH-2.0-OpenSSH"), "and it was carried");
});

test("Chromium: post-quantum with the built-in server, whose part is loaded then and not before", options, async () => {
  const { line } = await browser.order("key", "ecdsa-sha2-nistp256");
  go = await startGo(line);
  const mlkem = async () => ((await browser.order("loaded")) as string[]).filter((name) => /mlkem/.test(name)).length;
  assert.equal(await mlkem(), 0);
  const done = await browser.order("run", "/go", "anybody", publicKeyLine(go.builtinKeys[0]!.blob), "echo $((40+2))");
  assert.deepEqual({ ...done, rtt: 0 }, { out: "42\n", exit: { code: 0 }, kex: "mlkem768x25519-sha256", rtt: 0 });
  assert.equal(await mlkem(), 1);
});

test("Chromium: another host key", options, async () => {
  const done = await browser.order("run", "/sshd", user, publicKeyLine(go!.builtinKeys[0]!.blob), "true");
  assert.equal(done.code, "host-key");
  assert.match(done.shown, /^SHA256:/);
});

test("Chromium: large output and keystrokes", options, async () => {
  const { line } = await browser.order("key", "ecdsa-sha2-nistp256");
  sshd.authorize(line);
  const figures = await browser.order("bench", "/sshd", user, publicKeyLine(sshd.ed25519.blob), { megabytes: 20, keys: 50 });
  // No measurement on a machine that does other things; a client that is ten times too slow is found.
  assert(figures.mbPerS > 0.5 && figures.echoP50 < 500, JSON.stringify(figures));
});
