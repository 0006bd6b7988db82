// x/crypto/ssh and Holdfast's built-in server as peers.

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { after, before, test } from "node:test";

import { connect, deviceSigner, generateDeviceKey, publicKeyLine, type Client, type ConnectOptions, type DeviceKey } from "@holdfast/ssh";
import { collect, long, rejects, run, sha256 } from "./expect.js";
import { startGo, tcpTransport, type GoServer } from "./go.js";

let device: DeviceKey;
const servers: GoServer[] = [];
let usual: GoServer;
const start = async (...flags: string[]): Promise<GoServer> => {
  const server = await startGo(publicKeyLine(device), ...flags);
  servers.push(server);
  return server;
};
before(async () => {
  device = await generateDeviceKey();
  usual = await start();
});
after(() => servers.forEach((s) => s.stop()));

const login = (s: GoServer, more: Partial<ConnectOptions> = {}): Promise<Client> => connect(tcpTransport(s.plain), { user: "somebody", hostKeys: [s.plainKeys[0]!], signer: deviceSigner(device), ...more });

/** Waits until a server saw such a thing. */
async function saw(s: GoServer, what: string, n = 1): Promise<Record<string, unknown>[]> {
  for (const end = Date.now() + 15_000; ; await new Promise((r) => setTimeout(r, 5))) {
    const found = s.saw.filter((line) => line.saw == what);
    if (found.length >= n) return found;
    if (Date.now() > end) assert.fail(`it never saw ${what}: ${JSON.stringify(s.saw)}`);
  }
}

test("x/crypto: post-quantum, and both ends name the same session", async () => {
  const banners: string[] = [];
  const client = await login(usual, { onBanner: (text) => banners.push(text) });
  assert.equal(client.algorithms.kex, "mlkem768x25519-sha256");
  assert.equal(client.algorithms.strict, true);
  assert.equal(client.postQuantum, true);
  assert.deepEqual(banners, ["a banner\n"]);
  const [seen] = await saw(usual, "login");
  assert.equal(seen!.session, Buffer.from(client.sessionId).toString("hex"));
  assert.equal(seen!.user, "somebody");
  assert.equal(seen!.version, "SSH-2.0-Holdfast_1");
  client.disconnect();
  await saw(usual, "end");
});

for (const kex of ["mlkem768x25519-sha256", "curve25519-sha256", "ecdh-sha2-nistp256"]) {
  for (const cipher of ["aes256-gcm@openssh.com", "aes128-gcm@openssh.com"]) {
    test(`x/crypto: ${kex} and ${cipher}, both types of keys`, async () => {
      const server = await start("-kex", kex, "-cipher", cipher);
      for (const hostKey of server.plainKeys) {
        const client = await login(server, { hostKeys: [hostKey] });
        assert.deepEqual(client.algorithms, { kex, hostKey: hostKey.type, cipherIn: cipher, cipherOut: cipher, strict: true });
        assert.equal(client.postQuantum, kex.startsWith("mlkem"));
        const { exit, err, out } = await run(client, "flood 100000");
        assert.equal(exit.code, 0);
        assert.equal(err.length, 64);
        assert(out.length > 0);
        await client.rekey();
        assert.equal((await run(client, "exit 4294967295")).exit.code, 4294967295);
        client.disconnect();
      }
    });
  }
}

test("x/crypto: another host key: the server counts no attempt to log in", async () => {
  const other = await start();
  const server = await start();
  await rejects(login(server, { hostKeys: [other.plainKeys[0]!] }), "host-key");
  await rejects(login(server, { hostKeys: [other.plainKeys[1]!] }), "host-key");
  await saw(server, "failure", 2);
  assert.deepEqual(server.saw.filter((line) => line.saw == "key" || line.saw == "login"), []);
  await rejects(login(server, { signer: deviceSigner(await generateDeviceKey("ssh-ed25519")) }), "auth");
  assert.equal(server.saw.filter((line) => line.saw == "key").length, 1);
});

test("x/crypto: what is asked on a channel arrives as it was meant", async () => {
  const client = await login(usual);
  const channel = await client.openSession();
  await channel.requestPty({ term: "xterm", cols: 100, rows: 30, width: 800, height: 600, modes: { 53: 1 } });
  await rejects(channel.shell(), "channel", /refused shell/);
  await rejects(channel.env("A", "b"), "channel");
  channel.resize({ cols: 40, rows: 60 });
  channel.signal("INT");
  assert.equal((await saw(usual, "signal"))[0]!.payload, "00000003494e54");
  assert.equal((await saw(usual, "window-change"))[0]!.payload, "000000280000003c0000000000000000");
  assert.equal((await saw(usual, "pty-req"))[0]!.payload, "00000005787465726d000000640000001e0000032000000258" + "00000006" + "3500000001" + "00");
  channel.close();
  assert.deepEqual(await channel.exit, {});
  assert.deepEqual((await run(client, "signal")).exit, { signal: "TERM", message: "told [2J to" });
  client.disconnect();
});

test("x/crypto: new keys by either side with both directions full", { timeout: 240_000 }, async () => {
  const size = (long ? 1024 : 64) << 20;
  for (const [name, flags, more, bytes] of [
    ["by the server", ["-rekey", "1000000"], {}, size],
    ["by both", ["-rekey", "1000000"], { rekey: { bytes: 1 << 20 } }, 16 << 20],
  ] as const) {
    const server = await start(...flags);
    const client = await login(server, more);
    const channel = await client.openSession();
    let received = 0;
    let summary = "";
    channel.onData((data, stream) => {
      if (stream == "stderr") summary += Buffer.from(data);
      else received += data.length;
    });
    await channel.exec(`both ${bytes}`);
    const hash = createHash("sha256");
    const block = randomBytes(100_000);
    let sent = 0;
    for (let i = 0; sent < bytes; i++) {
      block.writeUInt32BE(i);
      hash.update(block);
      await channel.write(Buffer.from(block));
      sent += block.length;
    }
    await channel.sendEof();
    assert.equal((await channel.exit).code, 0, name);
    assert.equal(received, bytes, name);
    assert.equal(summary, `${sent} ${hash.digest("hex")}`, name);
    client.disconnect();
  }
});

test("x/crypto: thousands of messages of one byte", async () => {
  const client = await login(usual);
  const channel = await client.openSession();
  const got: number[] = [];
  channel.onData((data) => void got.push(...data));
  await channel.exec("chatter 5000");
  await channel.exit;
  assert.deepEqual(got, Array.from({ length: 5000 }, (_, i) => i & 255));
  client.disconnect();
});

test("x/crypto: a large paste arrives whole", async () => {
  const client = await login(usual);
  const channel = await client.openSession();
  const all = collect(channel);
  await channel.exec("sink");
  const paste = randomBytes(5 << 20);
  // Many calls at a time keep their order.
  await Promise.all(Array.from({ length: 320 }, (_, i) => channel.write(paste.subarray(i * 16384, (i + 1) * 16384))));
  await channel.sendEof();
  assert.equal((await all).out, `${paste.length} ${sha256(paste)}`);
  client.disconnect();
});

test("the built-in server: post-quantum, terminal, host keys, what it does not know", async () => {
  for (const pin of usual.builtinKeys) {
    const client = await connect(tcpTransport(usual.builtin), { user: "anybody", hostKeys: [pin], signer: deviceSigner(device) });
    assert.equal(client.postQuantum, true);
    assert.equal(client.hostKey.type, pin.type);
    const channel = await client.openSession();
    const all = collect(channel);
    await channel.requestPty({ term: "xterm-256color", cols: 80, rows: 24 });
    await channel.exec("stty size");
    const { out, exit } = await all;
    assert.deepEqual(exit, { code: 0 });
    assert.equal(out, "24 80\r\n");
    assert((await client.ping()) >= 0);
    await client.rekey();
    assert.equal((await run(client, "exit 5")).exit.code, 5);
    await rejects((await client.openSession()).subsystem("unheard-of"), "channel");
    client.disconnect();
  }
  const keys = await new Promise<string[]>((resolve, reject) => {
    connect(tcpTransport(usual.builtin), {
      user: "anybody",
      hostKeys: [usual.builtinKeys[0]!],
      signer: deviceSigner(device),
      onHostKeys: (all) => resolve(all.map((k) => publicKeyLine(k.blob)).sort()),
    }).catch(reject);
  });
  assert.deepEqual(keys, usual.builtinKeys.map((k) => publicKeyLine(k.blob)).sort());
});
