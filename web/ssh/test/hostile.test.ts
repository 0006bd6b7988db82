// Servers that break the rules, and somebody on the way who changes bytes.

import assert from "node:assert/strict";
import { test } from "node:test";

import { HostKeyError, SshError, type ConnectOptions, type ErrorCode } from "@holdfast/ssh";
import { rejects } from "./expect.js";
import { msg, newServerKey, pack, Peer, pinOf, signatureOf, str, u32, type Tricks } from "./peer.js";
import { admitted, begin, key, withChannel } from "./scene.js";

/** Says that a connection does not come to be, and that no authentication was tried. */
async function refused(tricks: Tricks, code: ErrorCode, words?: RegExp, more: Partial<ConnectOptions> = {}): Promise<SshError> {
  const peer = new Peer(key);
  const client = begin(peer, more);
  const serving = peer
    .hello()
    .then(() => peer.exchange(tricks))
    .then(() => peer.until(50))
    .then(
      () => assert.fail("authentication was tried"),
      () => {},
    );
  const error = await rejects(client, code, words);
  await serving;
  assert(!peer.seen.includes(5) && !peer.seen.includes(50), `the client sent ${peer.seen}`);
  assert(peer.closedByClient);
  return error;
}

test("the peer of these tests is a good server when it is told nothing else", async () => {
  for (const type of ["ssh-ed25519", "ecdsa-sha2-nistp256"] as const) {
    for (const kex of ["curve25519-sha256", "ecdh-sha2-nistp256"]) {
      const own = newServerKey(type);
      const peer = new Peer(own);
      const client = begin(peer, { hostKeys: [pinOf(own)] });
      await peer.admit({ kex });
      assert.deepEqual(Buffer.from((await client).sessionId), peer.sessionId);
      (await client).disconnect();
    }
  }
});

test("another key of the pinned type: no authentication, both fingerprints", async () => {
  const other = newServerKey();
  const error = await refused({ key: other }, "host-key");
  assert(error instanceof HostKeyError);
  assert.equal(error.pinned.length, 1);
  assert.notEqual(error.pinned[0], error.shown);
});

test("a key of another type only: no authentication", async () => {
  await refused({ hostKey: "ecdsa-sha2-nistp256", key: newServerKey("ecdsa-sha2-nistp256") }, "host-key", /ecdsa/);
  await refused({ hostKey: "ssh-rsa,ssh-dss" }, "host-key", /ssh-rsa/);
  // It promises the pinned type and shows another.
  await refused({ key: newServerKey("ecdsa-sha2-nistp256") }, "host-key");
  // Two pins: the agreed type decides which of them counts.
  const ecdsa = newServerKey("ecdsa-sha2-nistp256");
  await refused({ key: ecdsa }, "host-key", undefined, { hostKeys: [pinOf(key), pinOf(ecdsa)] });
});

test("a key that is nearly the pinned one", async () => {
  await refused({ reply: (r) => ({ ...r, blob: Buffer.concat([r.blob, Buffer.of(0)]) }) }, "host-key");
  await refused({ reply: (r) => ({ ...r, blob: r.blob.subarray(0, -1) }) }, "host-key");
  await refused({ reply: (r) => ({ ...r, blob: Buffer.alloc(0) }) }, "host-key");
  for (const at of [0, 4, 10, 15, 19, 40]) {
    await refused(
      {
        reply: (r) => {
          const blob = Buffer.from(r.blob);
          blob[at]! ^= 1;
          return { ...r, blob };
        },
      },
      "host-key",
    );
  }
});

test("the pinned key without its private half", async () => {
  const other = newServerKey();
  await refused({ reply: (r) => ({ ...r, signature: signatureOf(other, Buffer.alloc(32)) }) }, "host-key-proof", /in the middle/);
  await refused({ reply: (r) => ({ ...r, signature: signatureOf(key, Buffer.alloc(32)) }) }, "host-key-proof");
  await refused({ reply: (r) => ({ ...r, signature: Buffer.concat([str("ecdsa-sha2-nistp256"), r.signature.subarray(15)]) }) }, "protocol", /another type/);
  await refused({ reply: (r) => ({ ...r, signature: Buffer.concat([str("ssh-ed25519"), str(Buffer.alloc(63))]) }) }, "protocol", /length/);
  await refused({ reply: (r) => ({ ...r, signature: Buffer.concat([r.signature, Buffer.of(0)]) }) }, "protocol");
  await refused({ reply: (r) => ({ ...r, signature: Buffer.alloc(0) }) }, "protocol");
  // Another share than the one that was signed for.
  await refused({ reply: (r) => ({ ...r, share: Buffer.concat([Buffer.of(9), r.share.subarray(1)]) }) }, "host-key-proof");
});

test("ECDSA signatures in odd forms", async () => {
  const ecdsa = newServerKey("ecdsa-sha2-nistp256");
  const forms: [string, Buffer][] = [
    ["zero", Buffer.concat([str(""), str("")])],
    ["negative", Buffer.concat([str(Buffer.alloc(32, 0x80)), str(Buffer.of(1))])],
    ["not shortest", Buffer.concat([str(Buffer.of(0, 1)), str(Buffer.of(1))])],
    ["33 bytes", Buffer.concat([str(Buffer.alloc(33, 1)), str(Buffer.of(1))])],
    ["endless", u32(0xffff_ffff)],
    ["left over", Buffer.concat([str(Buffer.of(1)), str(Buffer.of(1)), Buffer.of(1)])],
  ];
  for (const [name, form] of forms) {
    await refused({ key: ecdsa, hostKey: ecdsa.type, reply: (r) => ({ ...r, signature: Buffer.concat([str(ecdsa.type), str(form)]) }) }, "protocol", undefined, { hostKeys: [pinOf(ecdsa)] }).catch((error) => assert.fail(`${name}: ${error.message}`));
  }
  await refused({ key: ecdsa, hostKey: ecdsa.type, reply: (r) => ({ ...r, signature: Buffer.concat([str(ecdsa.type), str(Buffer.concat([str(Buffer.of(1)), str(Buffer.of(1))]))]) }) }, "host-key-proof", undefined, { hostKeys: [pinOf(ecdsa)] });
});

test("shares that are none", async () => {
  const shares: [string, Buffer][] = [
    ["zero, of low order", Buffer.alloc(32)],
    ["one, of low order", Buffer.concat([Buffer.of(1), Buffer.alloc(31)])],
    ["short", Buffer.alloc(31, 9)],
    ["long", Buffer.alloc(33, 9)],
    ["none", Buffer.alloc(0)],
  ];
  for (const [, share] of shares) await refused({ reply: (r) => ({ ...r, share }) }, "protocol", /share/);
  const points = [Buffer.alloc(65), Buffer.alloc(65, 4), Buffer.concat([Buffer.of(2), Buffer.alloc(32, 1)]), Buffer.of(0)];
  for (const share of points) await refused({ kex: "ecdh-sha2-nistp256", reply: (r) => ({ ...r, share }) }, "protocol", /share/);
});

const ignore = msg(2, str("padding"));
const debug = msg(4, Buffer.of(0), str("words"), str(""));
const unimplemented = msg(3, u32(0));

test("strict key exchange: whatever is inserted ends it", async () => {
  for (const inserted of [ignore, debug, unimplemented, msg(7, u32(0)), msg(80, str("keepalive@openssh.com"), Buffer.of(1)), msg(6, str("ssh-userauth")), Buffer.of(52), Buffer.of(0), Buffer.of(255), Buffer.of(21), msg(30, str("x"))]) {
    for (const place of ["beforeInit", "afterInit", "beforeNewKeys"] as const) {
      await refused({ [place]: [inserted] }, "protocol").catch((error) => assert.fail(`${inserted[0]} ${place}: ${error.stack}`));
    }
  }
});

test("strict key exchange: what is left out, doubled or moved ends it", async () => {
  await refused({ noReply: true }, "protocol");
  await refused({ twice: true }, "protocol");
  await refused({ newKeysFirst: true }, "protocol");
  await refused({ afterInit: [new Peer(key).kexInit()] }, "protocol");
  // The reply alone, and then silence under keys that the client does not use yet.
  const peer = new Peer(key);
  const client = begin(peer, { timeoutMs: 100 });
  await peer.hello();
  await peer.exchange({ noNewKeys: true });
  peer.send(msg(6, str("ssh-userauth")));
  await rejects(client, "protocol");
});

test("a server that does not know strict key exchange may say something in between, once it is one", async () => {
  const { client } = await admitted({}, { strict: false, beforeInit: [ignore, debug], afterInit: [ignore], beforeNewKeys: [debug] });
  assert.equal(client.algorithms.strict, false);
  client.disconnect();
  await refused({ strict: false, beforeNewKeys: [Buffer.of(52)] }, "protocol");
  await refused({ strict: false, beforeInit: [msg(6, str("ssh-userauth"))] }, "protocol");
});

test("Terrapin: a message inserted before and one taken away behind the new keys", async () => {
  for (const strict of [true, false]) {
    const peer = new Peer(key);
    const client = begin(peer);
    await peer.hello();
    const exchanged = peer.exchange({ strict, beforeNewKeys: [ignore] }).catch(() => {});
    if (strict) {
      await rejects(client, "protocol");
      await exchanged;
      continue;
    }
    await exchanged;
    // The first message under keys, such as the one that announces extensions, never arrives.
    peer.onwire = () => null;
    peer.send(msg(7, u32(0)));
    peer.onwire = (bytes) => bytes;
    peer.send(msg(6, str("ssh-userauth")));
    await rejects(client, "integrity");
  }
});

test("a wrong guess of the server is passed over, once, a right one is a server's mistake", async () => {
  const guessed = msg(31, str("guess"), str("guess"), str("guess"));
  const { client } = await admitted({}, { guess: true, kex: "diffie-hellman-group1-sha1,curve25519-sha256", afterInit: [guessed] });
  client.disconnect();
  await refused({ guess: true, kex: "diffie-hellman-group1-sha1,curve25519-sha256", afterInit: [guessed, guessed] }, "host-key");
  await refused({ guess: true, kex: "diffie-hellman-group1-sha1,curve25519-sha256", afterInit: [Buffer.of(52)] }, "protocol");
});

test("lengths that cannot be end the connection as soon as they are read", async () => {
  const plain = [0, 1, 4, 8, 11, 13, 35_004, 0x7fff_ffff, 0xffff_ffff];
  for (const length of plain) {
    const peer = new Peer(key);
    const client = begin(peer);
    await peer.hello();
    peer.raw(u32(length));
    await rejects(client, "protocol", /length/);
  }
  for (const length of [0, 1, 12, 15, 17, 35_008, 0x8000_0000, 0xffff_fff0]) {
    const { peer, client } = await admitted();
    peer.raw(u32(length));
    assert.equal((await client.closed).code, "protocol", `${length}`);
  }
});

test("padding that cannot be", async () => {
  const packets = [
    Buffer.concat([u32(12), Buffer.of(3), Buffer.alloc(11)]),
    Buffer.concat([u32(12), Buffer.of(0), Buffer.alloc(11)]),
    Buffer.concat([u32(12), Buffer.of(11), Buffer.alloc(11)]),
    Buffer.concat([u32(12), Buffer.of(255), Buffer.alloc(11)]),
  ];
  for (const packet of packets) {
    const peer = new Peer(key);
    const client = begin(peer);
    await peer.hello();
    peer.raw(packet);
    await rejects(client, "protocol", /padding/);
  }
  for (const padding of [0, 3, 15, 16, 200, 255]) {
    const { peer, client } = await admitted();
    peer.packet(Buffer.concat([u32(16), Buffer.of(padding), Buffer.alloc(15)]));
    assert.equal((await client.closed).code, "protocol", `${padding}`);
  }
  // All that are allowed.
  const { peer, client } = await admitted();
  for (let padding = 4; padding <= 255; padding++) {
    if ((1 + ignore.length + padding) % 16 == 0) peer.packet(pack(ignore, 16, 1, padding));
  }
  const pong = client.ping();
  await peer.until(80);
  peer.send(Buffer.of(82));
  await pong;
  client.disconnect();
});

test("version lines: what comes before, what is none, what never ends", async () => {
  const answers: [string, ErrorCode | null][] = [
    ["SSH-2.0-x\r\n", null],
    ["SSH-2.0-x\n", null],
    ["SSH-1.99-x\r\n", null],
    ["Welcome.\r\nTo this machine.\r\nSSH-2.0-x with a comment\r\n", null],
    ["SSH-1.5-old\r\n", "version"],
    ["SSH-3.0-new\r\n", "version"],
    ["HTTP/1.1 400 Bad Request\r\n".padEnd(9000, "x"), "version"],
    ["\n".repeat(9000), "version"],
    ["SSH-2.0-" + "x".repeat(300) + "\r\n", "version"],
    ["SSH-2.0-" + "x".repeat(300), "version"],
    ["SSH-2.0-a\0b\r\n", "version"],
    ["SSH-2.0-\u00e9\r\n", "version"],
  ];
  for (const [line, code] of answers) {
    for (const size of [1, 1 << 20]) {
      const peer = new Peer(key);
      let phase = "";
      const client = begin(peer, { onPhase: (p) => (phase = p) });
      await peer.started();
      for (let at = 0; at < line.length; at += size) peer.raw(Buffer.from(line.slice(at, at + size)));
      if (code) await rejects(client, code);
      else {
        assert.equal(phase, "kex", line);
        peer.hangUp();
        await rejects(client, "transport", /hung up/);
      }
    }
  }
});

test("packets that never end meet the time-out, and those that are cut off the end", async () => {
  const peer = new Peer(key);
  const client = begin(peer, { timeoutMs: 300 });
  await peer.hello();
  peer.raw(u32(34_996));
  const trickle = setInterval(() => peer.raw(Buffer.of(0)), 5);
  await rejects(client, "timeout");
  clearInterval(trickle);

  const cut = new Peer(key);
  const other = begin(cut);
  await cut.hello();
  cut.raw(pack(cut.kexInit(), 8, 5).subarray(0, -3));
  cut.hangUp();
  await rejects(other, "transport");
});

test("a replayed, a left out and an exchanged packet are noticed, and nothing behind them is delivered", async () => {
  for (const how of ["replay", "drop", "swap"] as const) {
    const { peer, client, channel, number } = await withChannel();
    let got = "";
    channel.onData((data) => void (got += Buffer.from(data)));
    const data = (text: string) => msg(94, u32(number), str(text));
    peer.send(data("one"));
    const held: Buffer[] = [];
    peer.onwire = (bytes) => (held.push(bytes), null);
    peer.send(data("two"));
    peer.send(data("three"));
    peer.onwire = (bytes) => bytes;
    const [two, three] = held as [Buffer, Buffer];
    for (const packet of { replay: [two, two], drop: [three], swap: [three, two] }[how]) peer.raw(packet);
    peer.send(data("four"));
    assert.equal((await client.closed).code, "integrity", how);
    assert.equal(got, how == "replay" ? "onetwo" : "one");
    assert.equal((await channel.exit).lost?.code, "integrity");
  }
});

// At every byte of the first 4 KiB one bit is changed on the way. Of the plain
// packets the random padding is covered by nothing and means nothing; every
// other change ends the connection, and what is delivered before is right.
test("one bit changed anywhere in the first 4 KiB: nothing of it is delivered", { timeout: 300_000 }, async () => {
  const output = Buffer.alloc(200, "the quick brown fox jumps over the lazy dog. ");
  const packets = 20;
  const session = async (flip: number) => {
    const peer = new Peer(key);
    let at = 0;
    let flipped = "no" as "no" | "padding" | "yes";
    let watch: ReturnType<typeof setTimeout> | undefined;
    let paddingFrom = 0;
    peer.onwire = (bytes) => {
      const end = at + bytes.length;
      if (flip >= at && flip < end) {
        flipped = "yes";
        bytes[flip - at]! ^= 1 << (flip % 8);
        if (flip - at >= paddingFrom) flipped = "padding";
        // A length that became larger waits for bytes that never come.
        else watch = setTimeout(() => peer.hangUp(), 150);
      }
      at = end;
      return bytes;
    };
    // Where in the next piece the padding begins: the packets before the keys.
    const plain = peer.packet.bind(peer);
    peer.packet = (packet) => {
      paddingFrom = peer.sealing ? Infinity : packet.length - packet[4]!;
      plain(packet);
    };
    let delivered = Buffer.alloc(0);
    const client = begin(peer);
    const script = async () => {
      paddingFrom = Infinity;
      await peer.admit();
      const number = await peer.confirm();
      await peer.until(98);
      peer.send(msg(99, u32(number)));
      for (let i = 0; i < packets; i++) peer.send(msg(94, u32(number), str(output)));
      peer.send(msg(97, u32(number)));
      await peer.until(97);
    };
    const serving = script().then(
      () => peer.hangUp(),
      () => {},
    );
    let why: SshError | null = null;
    try {
      const c = await client;
      const channel = await c.openSession();
      channel.onData((data) => void (delivered = Buffer.concat([delivered, data])));
      await channel.exec("x");
      const { lost } = await channel.exit;
      why = lost ?? null;
      if (!why) c.disconnect();
    } catch (error) {
      assert(error instanceof SshError, `byte ${flip}: ${(error as Error).stack}`);
      why = error;
    }
    if (flipped == "yes" && !why) assert.fail(`byte ${flip}: not noticed`);
    clearTimeout(watch);
    peer.hangUp();
    await serving;
    return { why, delivered, flipped, total: at, sent: Buffer.concat(Array.from({ length: packets }, () => output)) };
  };

  const right = await session(-1);
  assert.equal(right.why, null);
  assert.deepEqual(right.delivered, right.sent);
  assert(right.total > 4096, `${right.total} bytes`);
  const codes = new Map<string, number>();
  const one = async (flip: number) => {
    const { why, delivered, flipped, sent } = await session(flip);
    assert.notEqual(flipped, "no", `byte ${flip}`);
    if (flipped == "padding") assert(why === null || why.code != "integrity", `byte ${flip}`);
    else codes.set(why!.code, (codes.get(why!.code) ?? 0) + 1);
    assert.deepEqual(delivered, sent.subarray(0, delivered.length), `byte ${flip}`);
    assert.equal(delivered.length % output.length, 0, `byte ${flip}`);
    if (flipped == "yes") assert(delivered.length < sent.length, `byte ${flip}`);
  };
  for (let flip = 0; flip < 4096; flip += 32) await Promise.all(Array.from({ length: 32 }, (_, i) => one(flip + i)));
  assert(codes.get("integrity")! > 1000, JSON.stringify([...codes]));
});
