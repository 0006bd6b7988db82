// OpenSSH as the peer.

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { after, before, test } from "node:test";

import { connect, deviceSigner, generateDeviceKey, HostKeyError, publicKeyLine, SshError, type Channel, type Client, type ConnectOptions, type DeviceKey, type HostKey, type Transport } from "@holdfast/ssh";
import { collect, long, rejects, run, sha256 } from "./expect.js";
import { noSshd, startSshd, user, type Sshd } from "./sshd.js";

const options = { skip: noSshd };
let device: DeviceKey;
const servers: Sshd[] = [];

/** An sshd of the given configuration, which lets the device in. */
function start(...config: string[]): Sshd {
  const sshd = startSshd(...config);
  sshd.authorize(publicKeyLine(device, "a page"));
  servers.push(sshd);
  return sshd;
}
let usual: Sshd;
before(async () => {
  device = await generateDeviceKey();
  if (!noSshd) usual = start();
});
after(() => servers.forEach((s) => s.stop()));

const login = (sshd: Sshd, more: Partial<ConnectOptions> = {}, wrap = (t: Transport) => t): Promise<Client> =>
  connect(wrap(sshd.connection().transport), { user, hostKeys: [sshd.ed25519], signer: deviceSigner(device), ...more });

test("OpenSSH: logs in, runs commands, says how they ended", options, async () => {
  const phases: string[] = [];
  const client = await login(usual, { onPhase: (phase) => phases.push(phase) });
  assert.deepEqual(phases, ["version", "kex", "auth", "ready"]);
  assert.match(client.serverVersion, /^SSH-2\.0-OpenSSH/);
  assert.equal(client.algorithms.strict, true);
  assert.equal(client.algorithms.cipherIn, "aes256-gcm@openssh.com");
  assert.deepEqual(await run(client, "echo out; echo err >&2; exit 7"), { out: "out\n", err: "err\n", exit: { code: 7 } });
  const { exit } = await run(client, "kill -TERM $$");
  assert.equal(exit.signal, "TERM");
  const channel = await client.openSession();
  await channel.env("HOLDFAST_TEST", "grüezi");
  await rejects(channel.env("LD_PRELOAD", "x"), "channel", /refused env/);
  const env = collect(channel);
  await channel.exec("echo $HOLDFAST_TEST");
  assert.equal((await env).out, "grüezi\n");
  client.disconnect("done");
  assert.equal((await client.closed).code, "closed");
  await rejects(client.openSession(), "closed");
  assert.match(usual.log(), /Accepted publickey for/);
});

test("OpenSSH: a shell on a terminal that changes its size and gets an interrupt", options, async () => {
  const client = await login(usual);
  const shell = await client.openSession();
  await shell.requestPty({ term: "xterm-256color", cols: 80, rows: 24, modes: { 53: 0 } });
  let screen = "";
  const seen = async (what: RegExp) => {
    for (const end = Date.now() + 15_000; !what.test(screen); await new Promise((r) => setTimeout(r, 5))) if (Date.now() > end) assert.fail(`${what} is not on the screen: ${screen}`);
  };
  shell.onData((data) => void (screen += Buffer.from(data)));
  await shell.shell();
  const type = (text: string) => shell.write(Buffer.from(text));
  await type("PS1=; stty size; echo term=$TERM\n");
  await seen(/24 80\r\n.*term=xterm-256color/s);
  shell.resize({ cols: 132, rows: 50, width: 1320, height: 1000 });
  await type("stty size\n");
  await seen(/50 132\r\n/);
  await type("sh -c 'trap \"echo caught-\\$((40+2)); exit\" INT; echo armed-$((40+2)); while :; do sleep 0.1; done'\n");
  await seen(/armed-42/);
  await type("\x03");
  await seen(/caught-42/);
  await type("exit 3\n");
  assert.deepEqual(await shell.exit, { code: 3 });
  client.disconnect();
});

test("OpenSSH: subsystem, end of file, signal to a command", options, async () => {
  const client = await login(usual);
  const sftp = await client.openSession();
  const version = new Promise<number>((resolve) => sftp.onData((data) => resolve(data[4]!)));
  await sftp.subsystem("sftp");
  await sftp.write(Buffer.from("000000050100000003", "hex"));
  assert.equal(await version, 2, "SSH_FXP_VERSION");
  await sftp.sendEof();
  await sftp.exit;
  await rejects((await client.openSession()).subsystem("nothing"), "channel", /refused subsystem/);

  const cat = await client.openSession();
  const all = collect(cat);
  await cat.exec("cat");
  await cat.write(Buffer.from("through"));
  await cat.sendEof();
  assert.deepEqual(await all, { out: "through", err: "", exit: { code: 0 } });
  await rejects(cat.write(Buffer.from("late")), "channel");

  // sshd passes signals on to nobody where it runs as the one who logs in; they disturb nothing.
  const sleep = await client.openSession();
  const slept = collect(sleep);
  await sleep.exec("sleep 0.2; echo over");
  sleep.signal("USR2");
  assert.match(JSON.stringify(await slept), /over|USR2/);
  client.disconnect();
});

const variants: [string, string[], Partial<Client["algorithms"]>][] = [
  ["curve25519 and AES-256", ["KexAlgorithms curve25519-sha256", "Ciphers aes256-gcm@openssh.com"], { kex: "curve25519-sha256", cipherOut: "aes256-gcm@openssh.com" }],
  ["nistp256 and AES-128", ["KexAlgorithms ecdh-sha2-nistp256", "Ciphers aes128-gcm@openssh.com"], { kex: "ecdh-sha2-nistp256", cipherIn: "aes128-gcm@openssh.com" }],
];
for (const [name, config, want] of variants) {
  for (const hostKey of ["ed25519", "ecdsa"] as const) {
    for (const deviceType of ["ssh-ed25519", "ecdsa-sha2-nistp256"] as const) {
      test(`OpenSSH: ${name}, ${hostKey} host key, ${deviceType} device key`, options, async () => {
        const sshd = start(...config);
        const key = await generateDeviceKey(deviceType);
        sshd.authorize(publicKeyLine(key));
        // Signatures differ in the length of their numbers; several connections see most of them.
        for (let i = 0; i < 4; i++) {
          const client = await login(sshd, { hostKeys: [sshd[hostKey]], signer: deviceSigner(key) });
          assert.deepEqual({ ...client.algorithms, ...want }, client.algorithms);
          assert.equal(client.postQuantum, false);
          assert.equal((await run(client, "echo yes")).out, "yes\n");
          client.disconnect();
        }
      });
    }
  }
}

test("OpenSSH: nothing in common is said in words", options, async () => {
  await rejects(login(start("KexAlgorithms diffie-hellman-group14-sha256")), "algorithms", /key exchanges.*diffie-hellman-group14/);
  await rejects(login(start("Ciphers chacha20-poly1305@openssh.com,aes256-ctr")), "algorithms", /ciphers.*aes256-ctr/);
});

test("OpenSSH: another host key, of the same type and of another, ends before any authentication", options, async () => {
  const other = startSshd();
  servers.push(other);
  const error = await rejects(login(usual, { hostKeys: [other.ed25519] }), "host-key", /not the machine that was paired/);
  assert(error instanceof HostKeyError && error.pinned.length == 1 && error.pinned[0]!.startsWith("SHA256:") && error.shown.startsWith("SHA256:") && error.shown != error.pinned[0]);
  const ecdsa = start("HostKeyAlgorithms ecdsa-sha2-nistp256");
  await rejects(login(ecdsa), "host-key", /ecdsa-sha2-nistp256/);
  assert.doesNotMatch(ecdsa.log(), /publickey|Failed|Accepted|user /);
  // Two pins, of which the server has one.
  const client = await login(ecdsa, { hostKeys: [other.ed25519, ecdsa.ecdsa] });
  assert.equal(client.hostKey.type, "ecdsa-sha2-nistp256");
  client.disconnect();
});

test("OpenSSH: a device that is not let in is told so", options, async () => {
  const stranger = await generateDeviceKey();
  await rejects(login(usual, { signer: deviceSigner(stranger) }), "auth", /does not let this device's key in as/);
  await rejects(login(start("PubkeyAcceptedAlgorithms ssh-ed25519")), "auth");
  await rejects(login(start("AuthenticationMethods publickey,publickey")), "auth", /wants more/);
  const signer = { ...deviceSigner(device), sign: () => Promise.reject(new Error("the key is gone")) };
  await rejects(login(usual, { signer }), "auth", /signing.*the key is gone/);
});

test("OpenSSH: tells its host keys and proves them", options, async () => {
  let announced!: (keys: HostKey[]) => void;
  const keys = new Promise<HostKey[]>((resolve) => (announced = resolve));
  const client = await login(usual, { onHostKeys: announced });
  const lines = (await keys).map((key) => publicKeyLine(key.blob)).sort();
  assert.deepEqual(lines, [usual.ed25519, usual.ecdsa].map((key) => publicKeyLine(key.blob)).sort());
  client.disconnect();
});

test("OpenSSH: asks whether the page is alive, and is asked", options, async () => {
  const client = await login(start("ClientAliveInterval 1", "ClientAliveCountMax 1"));
  let inbound = 0;
  const more = await login(usual, { onInbound: () => inbound++ });
  const before = inbound;
  const rtt = await more.ping();
  assert(rtt > 0 && rtt < 5000 && inbound > before && performance.now() - more.lastInbound < 5000);
  more.disconnect();
  await new Promise((r) => setTimeout(r, 3500));
  assert.equal((await run(client, "echo alive")).out, "alive\n");
  client.disconnect();
});

test("OpenSSH: keys are exchanged in both directions' traffic, by either side and both", { ...options, timeout: 240_000 }, async () => {
  const megabytes = long ? 1024 : 100;
  const cases: [string, string[], Partial<ConnectOptions>, number][] = [
    ["by the server", ["RekeyLimit 1M"], {}, megabytes],
    ["by the page", [], { rekey: { bytes: 1 << 20 } }, 20],
    ["by both", ["RekeyLimit 1M"], { rekey: { bytes: 1 << 20 } }, 20],
  ];
  for (const [name, config, more, size] of cases) {
    const sshd = start("LogLevel DEBUG1", ...config);
    const client = await login(sshd, more);
    const id = client.sessionId;
    const blocks = (size << 20) / 2 / 65_536;
    const block = randomBytes(65_536);
    const channel = await client.openSession();
    const back = createHash("sha256");
    let received = 0;
    channel.onData((data, stream) => {
      // A debugging sshd says a line there before it runs the command.
      if (stream == "stderr") return;
      back.update(data);
      received += data.length;
    });
    await channel.exec("cat");
    const there = createHash("sha256");
    for (let i = 0; i < blocks; i++) {
      block.writeUInt32BE(i);
      there.update(block);
      await channel.write(Buffer.from(block));
    }
    await channel.sendEof();
    assert.deepEqual(await channel.exit, { code: 0 }, name);
    assert.equal(received, blocks * 65_536, name);
    assert.equal(back.digest("hex"), there.digest("hex"), name);
    assert.deepEqual(client.sessionId, id, name);
    const exchanges = sshd.log().match(/SSH2_MSG_KEXINIT received/g)!.length;
    assert(exchanges > size / 3, `${name}: ${exchanges} key exchanges for ${size} MiB`);
    client.disconnect();
  }
});

test("OpenSSH: rekey() on a quiet connection, several at once, and during a flood", options, async () => {
  const client = await login(usual);
  await Promise.all([client.rekey(), client.rekey()]);
  await client.rekey();
  const channel = await client.openSession();
  let received = 0;
  channel.onData((data) => void (received += data.length));
  await channel.exec("head -c 20000000 /dev/zero");
  const exit = channel.exit;
  for (let i = 0; i < 5; i++) await client.rekey();
  assert.deepEqual(await exit, { code: 0 });
  assert.equal(received, 20_000_000);
  assert.equal((await run(client, "echo on")).out, "on\n");
  client.disconnect();
});

test("OpenSSH: thousands of small packets keep their order", options, async () => {
  const client = await login(usual);
  const channel = await client.openSession();
  let out = "";
  channel.onData((data) => void (out += Buffer.from(data).toString("latin1")));
  await channel.exec("cat");
  let sent = "";
  const writes: Promise<void>[] = [];
  for (let i = 0; i < 5000; i++) {
    const word = `${i},`;
    sent += word;
    writes.push(channel.write(Buffer.from(word)));
  }
  await Promise.all(writes);
  await channel.sendEof();
  await channel.exit;
  assert.equal(out, sent);
  client.disconnect();
});

test("OpenSSH: where the pieces of the stream are cut does not matter", options, async () => {
  const cuts: [string, (bytes: Uint8Array) => number][] = [
    ["single bytes", () => 1],
    ["three", () => 3],
    ["random", (bytes) => 1 + Math.floor(Math.random() * bytes.length)],
  ];
  for (const [name, next] of cuts) {
    const client = await login(usual, {}, (inner) => {
      const outer: Transport = { send: (bytes) => inner.send(bytes), close: () => inner.close(), onmessage: null, onclose: null };
      // One buffer for all pieces: the client must not keep what it was shown.
      const piece = new Uint8Array(1 << 16);
      inner.onmessage = (bytes) => {
        for (let at = 0; at < bytes.length; ) {
          const part = bytes.subarray(at, at + Math.min(next(bytes), piece.length));
          piece.set(part);
          outer.onmessage?.(piece.subarray(0, part.length));
          piece.fill(0xee, 0, part.length);
          at += part.length;
        }
      };
      inner.onclose = (reason) => outer.onclose?.(reason);
      return outer;
    });
    const { out } = await run(client, "seq 20000");
    assert.equal(sha256(out), sha256(Array.from({ length: 20_000 }, (_, i) => `${i + 1}\n`).join("")), name);
    client.disconnect();
  }
});

test("OpenSSH: a reader that reads nothing stops its own channel at the window, and no other", options, async () => {
  const windowBytes = 256 << 10;
  const client = await login(usual, { limits: { windowBytes } });
  const slow = await client.openSession();
  let received = 0;
  const waiting: (() => void)[] = [];
  let reading = false;
  slow.onData((data) => {
    received += data.length;
    return reading ? undefined : new Promise<void>((resolve) => waiting.push(resolve));
  });
  await slow.exec("head -c 3000000 /dev/zero");
  const unread = await client.openSession(); // with no reader at all
  await unread.exec("head -c 3000000 /dev/zero");
  for (let i = 0; i < 20; i++) assert.equal((await run(client, `echo ${i}`)).out, `${i}\n`);
  assert.equal(received, windowBytes);
  await new Promise((r) => setTimeout(r, 200));
  assert.equal(received, windowBytes, "nothing beyond the window");
  reading = true;
  for (const resolve of waiting) resolve();
  assert.deepEqual(await slow.exit, { code: 0 });
  assert.equal(received, 3_000_000);
  const rest = collect(unread);
  assert.equal((await rest).out.length, 3_000_000);
  client.disconnect();
});

test("OpenSSH: a writer waits for the server, and ends with the channel or the connection", options, async () => {
  const client = await login(usual);
  for (const end of ["channel", "connection"] as const) {
    const channel = await client.openSession();
    await channel.exec("sleep 60");
    let done = false;
    const write = channel.write(new Uint8Array(32 << 20)).then(
      () => assert.fail("32 MiB went to a reader that does not read"),
      (error: SshError) => ((done = true), error),
    );
    await new Promise((r) => setTimeout(r, 200));
    assert.equal(done, false);
    if (end == "channel") {
      channel.close();
      assert.equal((await write)!.code, "channel");
      assert.equal((await run(client, "echo on")).out, "on\n");
    } else {
      client.disconnect();
      assert.equal((await write)!.code, "closed");
      assert.equal((await channel.exit).lost?.code, "closed");
    }
  }
});

test("OpenSSH: many channels at a time, no more than the limit", options, async () => {
  const client = await login(start("MaxSessions 100"), { limits: { channels: 20 } });
  const sleeping: Channel[] = [];
  for (let i = 0; i < 20; i++) {
    const channel = await client.openSession();
    await channel.exec("cat");
    sleeping.push(channel);
  }
  await rejects(client.openSession(), "channel", /20 channels/);
  const ends = sleeping.map((channel) => collect(channel));
  await Promise.all(sleeping.map((channel, i) => channel.write(Buffer.from(`channel ${i}`))));
  await Promise.all(sleeping.map((channel) => channel.sendEof()));
  assert.deepEqual(
    (await Promise.all(ends)).map((e) => e.out),
    sleeping.map((_, i) => `channel ${i}`),
  );
  assert.equal((await run(client, "echo free again")).out, "free again\n");
  client.disconnect();
});

test("OpenSSH: refuses a session beyond its own limit, and the connection lives", options, async () => {
  const client = await login(start("MaxSessions 1"));
  const only = await client.openSession();
  await rejects(client.openSession(), "channel", /opens no session/);
  const all = collect(only);
  await only.exec("echo still");
  assert.equal((await all).out, "still\n");
  client.disconnect();
});

test("OpenSSH: a server that dies takes the channels with it, after their last bytes", options, async () => {
  const { transport, process } = usual.connection();
  const client = await connect(transport, { user, hostKeys: [usual.ed25519], signer: deviceSigner(device) });
  const channel = await client.openSession();
  let out = "";
  channel.onData((data) => void (out += Buffer.from(data)));
  await channel.exec("echo last words; kill -9 $PPID; sleep 5");
  process.kill("SIGKILL");
  const why = await client.closed;
  assert.equal(why.code, "transport");
  assert.equal((await channel.exit).lost, why);
  await rejects(client.ping(), "transport");
  await rejects(channel.write(new Uint8Array(1)), "transport");
});

test("OpenSSH: giving up, before and after", options, async () => {
  const early = new AbortController();
  early.abort();
  await rejects(login(usual, { signal: early.signal }), "aborted");
  const late = new AbortController();
  const client = await login(usual, { signal: late.signal });
  late.abort();
  assert.equal((await client.closed).code, "aborted");
  const silent: Transport = { send() {}, close() {}, onmessage: null, onclose: null };
  await rejects(connect(silent, { user, hostKeys: [usual.ed25519], signer: deviceSigner(device), timeoutMs: 50 }), "timeout", /within 0.05 s/);
});
