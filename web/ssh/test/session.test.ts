// What a server may do and may not do with a client that it has let in.

import assert from "node:assert/strict";
import { createPublicKey, verify } from "node:crypto";
import { mock, test } from "node:test";

import { HostKeyError, parsePublicKey, publicKeyLine, SshError, type HostKey } from "@holdfast/ssh";
import { collect, rejects } from "./expect.js";
import { msg, newServerKey, Peer, pinOf, signatureOf, str, u32 } from "./peer.js";
import { admitted, begin, device, key, withChannel, type Scene } from "./scene.js";

const data = (number: number, bytes: Uint8Array | string) => msg(94, u32(number), str(bytes));
const request = (number: number, name: string, reply: boolean, ...rest: Uint8Array[]) => msg(98, u32(number), str(name), Buffer.of(reply ? 1 : 0), ...rest);

test("what breaks the rules of a channel ends the connection", async () => {
  const cases: [string, (s: Scene) => void][] = [
    ["more than the window", (s) => { for (let i = 0; i < 40; i++) s.peer.send(data(s.number, Buffer.alloc(30_000))); }],
    ["more than a message may hold", (s) => s.peer.send(data(s.number, Buffer.alloc(32_768)))],
    ["a window over 4 GiB", (s) => s.peer.send(msg(93, u32(s.number), u32(0xffff_ffff)))],
    ["data after its end", (s) => { s.peer.send(msg(96, u32(s.number))); s.peer.send(data(s.number, "x")); }],
    ["data after its close", (s) => { s.peer.send(msg(97, u32(s.number))); s.peer.send(data(s.number, "x")); }],
    ["closed twice", (s) => { s.peer.send(msg(97, u32(s.number))); s.peer.send(msg(97, u32(s.number))); }],
    ["an unknown channel", (s) => s.peer.send(data(s.number + 1, "x"))],
    ["an answer that nobody wants", (s) => s.peer.send(msg(99, u32(s.number)))],
    ["a refusal that nobody wants", (s) => s.peer.send(msg(100, u32(s.number)))],
    ["a global answer that nobody wants", (s) => s.peer.send(Buffer.of(81))],
    ["opened twice", (s) => s.peer.send(msg(91, u32(s.number), u32(1), u32(1), u32(1)))],
    ["refused when open", (s) => s.peer.send(msg(92, u32(s.number), u32(1), str(""), str("")))],
    ["left over bytes", (s) => s.peer.send(msg(96, u32(s.number), Buffer.of(0)))],
    ["a length beyond the message", (s) => s.peer.send(msg(94, u32(s.number), u32(0xffff_ffff)))],
    ["cut off", (s) => s.peer.send(msg(94, u32(s.number).subarray(2)))],
    ["a name of 200 bytes", (s) => s.peer.send(request(s.number, "n".repeat(200), false))],
    ["authentication again", (s) => s.peer.send(msg(30, str("")))],
    ["a key exchange's reply without one", (s) => s.peer.send(msg(31, str(""), str(""), str("")))],
    ["NEWKEYS without a key exchange", (s) => s.peer.send(Buffer.of(21))],
    ["message 0", (s) => s.peer.send(Buffer.of(0))],
    ["hundreds of keys", (s) => s.peer.send(msg(80, str("hostkeys-00@openssh.com"), Buffer.of(0), ...Array.from({ length: 200 }, () => str(key.blob))))],
    ["a key that is none", (s) => s.peer.send(msg(80, str("hostkeys-00@openssh.com"), Buffer.of(0), str(str("ssh-ed25519"))))],
  ];
  for (const [name, act] of cases) {
    const scene = await withChannel({ onHostKeys() {} });
    scene.channel.onData(() => new Promise(() => {}));
    act(scene);
    const why = await scene.client.closed;
    assert.equal(why.code, "protocol", `${name}: ${why.message}`);
    assert.equal((await scene.channel.exit).lost?.code, name.includes("close") ? undefined : "protocol", name);
    await scene.peer.until(1).catch(() => {});
    assert.equal(scene.peer.seen.at(-1), 1, `${name}: a goodbye`);
  }
});

test("what comes before there is a reader is kept in few pieces, and in order", async () => {
  const { peer, channel, number } = await withChannel();
  const error = (bytes: string) => msg(95, u32(number), u32(1), str(bytes));
  const answered = async () => {
    peer.send(request(number, "keepalive@openssh.com", true));
    await peer.receive();
  };
  const bytes = Buffer.from(Array.from({ length: 40_000 }, (_, i) => i % 251));
  for (const b of bytes.subarray(0, 3000)) peer.send(data(number, Buffer.of(b)));
  peer.send(data(number, bytes.subarray(3000, 20_000)));
  peer.send(data(number, bytes.subarray(20_000)));
  peer.send(error("first"));
  peer.send(error(" second"));
  peer.send(data(number, "last"));
  await answered();
  const got: [string, Uint8Array][] = [];
  channel.onData((b, stream) => void got.push([stream, b]));
  assert.deepEqual(got.map(([stream, b]) => `${stream} ${b.length}`), ["stdout 32704", "stdout 7296", "stderr 12", "stdout 4"]);
  assert.deepEqual(Buffer.concat(got.slice(0, 2).map(([, b]) => b)), bytes);
  assert.equal(Buffer.from(got[2]![1]).toString(), "first second");

  const scene = await withChannel();
  for (let i = 0; i < 600; i++) {
    scene.peer.send(data(scene.number, "x"));
    scene.peer.send(msg(95, u32(scene.number), u32(1), str("x")));
  }
  assert.equal((await scene.client.closed).code, "protocol");
});

test("what is unusual and allowed does not", async () => {
  const { peer, client, channel, number } = await withChannel();
  let out = "";
  let eof = 0;
  channel.onEof = () => eof++;
  channel.onData((bytes, stream) => void (out += `${stream}:${Buffer.from(bytes)} `));
  peer.send(msg(2, str("ignored")));
  peer.send(msg(4, Buffer.of(1), str("debug"), str("")));
  peer.send(msg(3, u32(1)));
  peer.send(data(number, ""));
  peer.send(msg(95, u32(number), u32(7), str("a stream that nobody knows")));
  peer.send(msg(95, u32(number), u32(1), str("error")));
  peer.send(request(number, "xon-xoff", false, Buffer.of(1)));
  peer.send(request(number, "eow@openssh.com", false));
  peer.send(request(number, "keepalive@openssh.com", true));
  assert.equal((await peer.receive())[0], 100);
  peer.send(msg(80, str("keepalive@openssh.com"), Buffer.of(1)));
  assert.equal((await peer.receive())[0], 82);
  peer.send(msg(80, str("hostkeys-00@openssh.com"), Buffer.of(0), str(key.blob)));
  peer.send(msg(90, str("forwarded-tcpip"), u32(3), u32(1), u32(1)));
  const refusal = await peer.receive();
  assert.deepEqual([refusal[0], refusal.readUInt32BE(1), refusal.readUInt32BE(5)], [92, 3, 1]);
  peer.send(Buffer.of(192, 1, 2));
  assert.deepEqual([...(await peer.receive())].slice(0, 1), [3]);
  peer.send(data(number, "out"));
  peer.send(msg(96, u32(number)));
  peer.send(request(number, "exit-signal", false, str("ABRT\u202e\x1b[2J"), Buffer.of(0), str("core\n\x07 dumped"), str("")));
  peer.send(msg(97, u32(number)));
  assert.deepEqual(await channel.exit, { signal: "ABRT [2J", message: "core dumped" });
  assert.equal(out, "stderr:error stdout:out ");
  assert.equal(eof, 1);
  await peer.until(97);
  client.disconnect();
  const goodbye = await peer.until(1);
  assert.equal(goodbye.readUInt32BE(1), 11);
});

test("UNIMPLEMENTED names the message that was meant, counted from the last keys", async () => {
  const { peer, client } = await admitted();
  // SERVICE_ACCEPT and USERAUTH_SUCCESS were 0 and 1.
  for (const [sent, want] of [
    [msg(2, str("")), null],
    [Buffer.of(192), 3],
    [Buffer.of(193), 4],
  ] as const) {
    peer.send(sent);
    if (want !== null) assert.equal((await peer.receive()).readUInt32BE(1), want);
  }
  const done = client.rekey();
  await peer.exchange({}, await peer.until(20));
  await done;
  peer.send(Buffer.of(192));
  assert.equal((await peer.until(3)).readUInt32BE(1), 0);
  client.disconnect();
});

test("the windows of both directions, to the byte", async () => {
  const { peer, client, channel, number } = await withChannel({ limits: { windowBytes: 1000 } }, { window: 10, maxPacket: 4 });
  // Out: packets of four bytes, ten in all, then nothing before there is room.
  let written = false;
  const write = channel.write(Buffer.from("abcdefghijklmno")).then(() => (written = true));
  const got: string[] = [];
  for (let i = 0; i < 3; i++) got.push((await peer.until(94)).subarray(9).toString());
  assert.deepEqual(got, ["abcd", "efgh", "ij"]);
  await new Promise((r) => setTimeout(r, 20));
  assert.equal(written, false);
  peer.send(msg(93, u32(number), u32(1)));
  assert.equal((await peer.until(94)).subarray(9).toString(), "k");
  peer.send(msg(93, u32(number), u32(100)));
  assert.equal((await peer.until(94)).subarray(9).toString(), "lmno");
  await write;
  // In: the window is opened again by half of it, when the reader is done with it.
  const waiting: (() => void)[] = [];
  channel.onData(() => new Promise<void>((resolve) => waiting.push(resolve)));
  for (let i = 0; i < 10; i++) peer.send(data(number, Buffer.alloc(100)));
  while (waiting.length < 10) await new Promise((r) => setTimeout(r, 1));
  for (let i = 0; i < 5; i++) waiting[i]!();
  const adjust = await peer.until(93);
  assert.equal(adjust.readUInt32BE(5), 500);
  peer.send(data(number, Buffer.alloc(500)));
  peer.send(data(number, Buffer.alloc(1)));
  assert.match((await client.closed).message, /window/);
});

test("what a reader gets is its own: it may give the memory away, and is counted all the same", async () => {
  const { peer, client, channel, number } = await withChannel({ limits: { windowBytes: 1000 } });
  const got: Uint8Array[] = [];
  const waiting: (() => void)[] = [];
  channel.onData((data) => {
    // As postMessage does it: what is left here has no bytes any more.
    got.push(structuredClone(data, { transfer: [data.buffer as ArrayBuffer] }));
    assert.equal(data.length, 0);
    return got.length % 2 ? new Promise<void>((resolve) => waiting.push(resolve)) : undefined;
  });
  for (let i = 0; i < 10; i++) peer.send(data(number, Buffer.alloc(100, i)));
  while (got.length < 10) await new Promise((r) => setTimeout(r, 1));
  for (const done of waiting) done();
  for (const [i, bytes] of got.entries()) assert.deepEqual(Buffer.from(bytes), Buffer.alloc(100, i));
  assert.equal((await peer.until(93)).readUInt32BE(5), 500);
  assert.equal((await peer.until(93)).readUInt32BE(5), 500);
  client.disconnect();
});

test("one promise for several deliveries stands for all of them, and is listened to once", async () => {
  const { peer, client, channel, number } = await withChannel({ limits: { windowBytes: 1000 } });
  let [got, listeners] = [0, 0];
  let settle!: () => void;
  const fresh = () => {
    const p = new Promise<void>((resolve) => (settle = resolve));
    const then = p.then.bind(p);
    p.then = ((...args: Parameters<typeof then>) => (listeners++, then(...args))) as typeof p.then;
    return p;
  };
  let unread = fresh();
  channel.onData((data) => {
    got += data.length;
    return unread;
  });
  const say = async (times: number) => {
    const want = got + 50 * times;
    for (let i = 0; i < times; i++) peer.send(data(number, Buffer.alloc(50)));
    while (got < want) await new Promise((r) => setTimeout(r, 1));
  };
  await say(10);
  assert.equal(listeners, 1);
  settle();
  assert.equal((await peer.until(93)).readUInt32BE(5), 500);
  // One that has settled counts for what comes later, too.
  await say(9);
  unread = fresh();
  await say(11);
  settle();
  assert.equal((await peer.until(93)).readUInt32BE(5), 1000);
  client.disconnect();
});

test("a reader that fails ends its channel and nothing else", async () => {
  for (const fail of [() => { throw new Error("no room"); }, () => Promise.reject(new Error("no room"))]) {
    const { peer, client, channel, number } = await withChannel();
    channel.onData(fail);
    peer.send(data(number, "x"));
    assert.match((await channel.exit).lost!.message, /reading what came: no room/);
    await peer.until(97);
    peer.send(data(number, "late"));
    peer.send(msg(97, u32(number)));
    const pong = client.ping();
    await peer.until(80);
    peer.send(Buffer.of(82));
    await pong;
    client.disconnect();
  }
});

test("closing: what was asked is refused, what still comes is dropped, the number is not used before the server agrees", async () => {
  const { peer, client, channel, number } = await withChannel({ limits: { channels: 1 } });
  const asked = channel.exec("x");
  let got = 0;
  channel.onData(() => void got++);
  await peer.until(98);
  channel.close();
  channel.close();
  await rejects(asked, "channel", /closed/);
  await rejects(channel.shell(), "channel");
  channel.resize({ cols: 1, rows: 1 });
  await peer.until(97);
  peer.send(data(number, "late"));
  peer.send(msg(99, u32(number)).subarray(0, 5));
  await assert.rejects(client.openSession());
  await client.closed.then((why) => assert.equal(why.code, "protocol"));
  assert.equal(got, 0);
});

test("a server that asks and asks, and reads no answer, is not answered for ever", async () => {
  const { peer, client } = await admitted();
  peer.transport.send = () => new Promise(() => {});
  const question = msg(80, str("keepalive@openssh.com"), Buffer.of(1));
  let ended = false;
  void client.closed.then(() => (ended = true));
  for (let i = 0; i < 30_000 && !ended; i++) {
    peer.send(question);
    if (i % 100 == 0) await new Promise((r) => setImmediate(r));
  }
  const why = await client.closed;
  assert.equal(why.code, "protocol");
  assert.match(why.message, /more than/);
});

test("more than can be kept unread ends the connection", async () => {
  const { peer, client } = await admitted({ limits: { inputBytes: 100_000 } });
  for (let i = 0; i < 10; i++) peer.transport.onmessage?.(Buffer.concat([u32(34_992), Buffer.alloc(30_000)]));
  assert.match((await client.closed).message, /100000 bytes|wrong packet|changed/);
  const slow = await admitted({ limits: { inputBytes: 100_000 } });
  slow.peer.transport.onmessage?.(Buffer.alloc(100_001));
  assert.match((await slow.client.closed).message, /100000 bytes/);
});

test("new keys by the server's wish: what was written meanwhile comes after, and no other message may", async () => {
  const { peer, client, channel, number } = await withChannel();
  let write: Promise<void> | undefined;
  await peer.exchange({ between: () => (write = channel.write(Buffer.from("meanwhile"))) });
  assert.equal((await peer.until(94)).subarray(9).toString(), "meanwhile");
  await write;
  peer.send(data(number, "under new keys"));
  assert.equal(client.algorithms.kex, "curve25519-sha256");
  client.disconnect();

  const broken: [string, Parameters<Peer["exchange"]>[0]][] = [
    ["data behind its KEXINIT", { afterInit: [data(0, "x")] }],
    ["an answer behind its KEXINIT", { afterInit: [Buffer.of(82)] }],
    ["data before its NEWKEYS", { beforeNewKeys: [data(0, "x")] }],
    ["two KEXINITs", { afterInit: [new Peer(key).kexInit()] }],
    ["NEWKEYS first", { newKeysFirst: true }],
    ["another host key", { key: newServerKey() }],
    ["another host key type", { hostKey: "ecdsa-sha2-nistp256" }],
    ["no common cipher", { cipher: "aes256-ctr" }],
  ];
  for (const [name, tricks] of broken) {
    const scene = await withChannel();
    scene.peer.exchange(tricks).catch(() => {});
    const why = await scene.client.closed;
    assert(["protocol", "host-key", "algorithms"].includes(why.code), `${name}: ${why.code}: ${why.message}`);
    assert.equal(why instanceof HostKeyError, name.includes("host key"), name);
  }
});

test("padding and ignorable messages during a later key exchange are allowed, in strict mode as well", async () => {
  const { peer, client } = await admitted();
  const done = client.rekey();
  await peer.exchange({ afterInit: [msg(2, str("x"))], beforeNewKeys: [msg(4, Buffer.of(0), str(""), str(""))] });
  await done;
  client.disconnect();
});

test("data on its way when the page asks for new keys is taken", async () => {
  const { peer, client, channel, number } = await withChannel();
  let out = "";
  channel.onData((bytes) => void (out += Buffer.from(bytes)));
  const done = client.rekey();
  const init = await peer.until(20);
  for (let i = 0; i < 100; i++) peer.send(data(number, `${i} `));
  await peer.exchange({}, init);
  await done;
  assert.equal(out, Array.from({ length: 100 }, (_, i) => `${i} `).join(""));
  client.disconnect();
});

test("a key exchange that the server does not finish ends the connection", async () => {
  const { peer, client } = await admitted();
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const done = client.rekey();
    await peer.until(20);
    mock.timers.tick(119_000);
    mock.timers.tick(2_000);
    await rejects(done, "timeout", /new keys/);
    assert.equal((await client.closed).code, "timeout");
  } finally {
    mock.timers.reset();
  }
});

test("host keys: those that are proved are told, the others are not", async () => {
  const extra = newServerKey("ecdsa-sha2-nistp256");
  const liar = newServerKey();
  let told!: (keys: HostKey[]) => void;
  const keys = new Promise<HostKey[]>((resolve) => (told = resolve));
  const { peer, client } = await admitted({ onHostKeys: told });
  const rsa = Buffer.concat([str("ssh-rsa"), str(Buffer.of(1, 0, 1)), str(Buffer.alloc(257, 1))]);
  peer.send(msg(80, str("hostkeys-00@openssh.com"), Buffer.of(0), ...[rsa, key.blob, extra.blob, liar.blob].map(str)));
  const asked = await peer.until(80);
  assert(asked.includes("hostkeys-prove-00@openssh.com") && !asked.includes("ssh-rsa"));
  const proof = (of: Buffer) => Buffer.concat([str("hostkeys-prove-00@openssh.com"), str(peer.sessionId!), str(of)]);
  peer.send(msg(81, str(signatureOf(key, proof(key.blob))), str(signatureOf(extra, proof(extra.blob))), str(signatureOf(key, proof(liar.blob)))));
  assert.deepEqual((await keys).map((k) => publicKeyLine(k.blob)), [key, extra].map((k) => publicKeyLine(k.blob)));
  client.disconnect();

  // Refused, or answered with nonsense.
  for (const [answer, code] of [
    [Buffer.of(82), "closed"],
    [msg(81, str("")), "protocol"],
    [msg(81), "protocol"],
  ] as const) {
    const other = await admitted({ onHostKeys: () => assert.fail("nothing was proved") });
    other.peer.send(msg(80, str("hostkeys-00@openssh.com"), Buffer.of(0), str(key.blob)));
    await other.peer.until(80);
    other.peer.send(answer);
    await new Promise((r) => setTimeout(r, 20));
    other.client.disconnect();
    assert.equal((await other.client.closed).code, code);
  }
});

test("authentication: only what belongs to it, and what the server says about it", async () => {
  const cases: [string, Uint8Array[], string, RegExp?][] = [
    ["a success before the service", [Buffer.of(52)], "protocol"],
    ["another service", [msg(6, str("ssh-connection"))], "protocol"],
    ["the service twice", [msg(6, str("ssh-userauth")), msg(6, str("ssh-userauth"))], "protocol"],
    ["a success with more", [msg(6, str("ssh-userauth")), Buffer.of(52, 0)], "protocol"],
    ["a question for a password", [msg(6, str("ssh-userauth")), msg(60, str("Password:"), str(""))], "protocol"],
    ["a channel before it is in", [msg(6, str("ssh-userauth")), msg(90, str("x"), u32(0), u32(0), u32(0))], "protocol"],
    ["a thousand banners", [msg(6, str("ssh-userauth")), ...Array.from({ length: 100 }, () => msg(53, str("hello"), str("")))], "protocol"],
    ["refused", [msg(6, str("ssh-userauth")), msg(51, str("password"), Buffer.of(0))], "auth", /would accept: password/],
    ["half a success", [msg(6, str("ssh-userauth")), msg(51, str("keyboard-interactive"), Buffer.of(1))], "auth", /wants more.*keyboard-interactive/],
    ["other keys only", [msg(7, u32(1), str("server-sig-algs"), str("rsa-sha2-512,ssh-ed25519")), msg(6, str("ssh-userauth")), msg(51, str("publickey"), Buffer.of(0))], "auth", /accepts no ecdsa-sha2-nistp256 keys/],
    ["extensions without end", [msg(7, u32(0xffff_ffff), str("a"), str("b"))], "protocol"],
    ["a goodbye", [msg(1, u32(2), str("too many\x1b[31m\n\u202eusers"), str(""))], "disconnected", /too many \[31m users$/],
    ["a goodbye without words", [msg(1, u32(12), str(""), str(""))], "disconnected", /reason 12/],
  ];
  for (const [name, answers, code, words] of cases) {
    const peer = new Peer(key);
    const banners: string[] = [];
    const client = begin(peer, { onBanner: (text) => banners.push(text) });
    await peer.hello();
    await peer.exchange();
    for (const answer of answers) peer.send(answer);
    await rejects(client, code as SshError["code"], words).catch((error) => assert.fail(`${name}: ${error.message}`));
    if (name.includes("banners")) assert.equal(banners.length, 16);
  }
  const { client } = await admitted();
  client.disconnect();
});

const keyOf = (blob: Uint8Array) => ({ raw: Buffer.from(blob).subarray(-65) });

test("the client sends its name and key under keys only, and the signature is for this very connection", async () => {
  const sent: Buffer[] = [];
  const peer = new Peer(key);
  const inner = peer.transport.send;
  peer.transport.send = (bytes) => {
    sent.push(Buffer.from(bytes));
    return inner(bytes);
  };
  const client = begin(peer, { user: "a-name-that-is-seen" });
  await peer.hello();
  await peer.exchange();
  const service = await peer.until(5);
  assert.equal(service.subarray(5).toString(), "ssh-userauth");
  peer.send(msg(6, str("ssh-userauth")));
  const auth = await peer.until(50);
  assert(auth.includes("a-name-that-is-seen"));
  assert(!Buffer.concat(sent).includes("a-name-that-is-seen"));
  // The signature, a string, is what stands last: an algorithm and r and s behind it.
  const body = auth.subarray(0, auth.indexOf(device.publicBlob) + device.publicBlob.length);
  const signature = auth.subarray(body.length + 4);
  assert.equal(auth.readUInt32BE(body.length), signature.length);
  const { raw } = keyOf(device.publicBlob);
  const numbers = signature.subarray(4 + 19 + 4);
  const r = numbers.subarray(4, 4 + numbers.readUInt32BE(0));
  const s = numbers.subarray(4 + r.length + 4);
  const fixed = (n: Buffer) => Buffer.concat([Buffer.alloc(32), n]).subarray(-32);
  const jwk = { kty: "EC", crv: "P-256", x: raw.subarray(1, 33).toString("base64url"), y: raw.subarray(33).toString("base64url") };
  const right = (sessionId: Buffer) => verify("sha256", Buffer.concat([str(sessionId), body]), { key: createPublicKey({ key: jwk, format: "jwk" }), dsaEncoding: "ieee-p1363" }, Buffer.concat([fixed(r), fixed(s)]));
  assert.equal(right(peer.sessionId!), true);
  assert.equal(right(Buffer.alloc(32)), false);
  peer.send(Buffer.of(52));
  (await client).disconnect();
});

test("wrong arguments are told before anything is sent", async () => {
  const peer = new Peer(key);
  peer.transport.send = () => assert.fail("something was sent");
  for (const wrong of [{ user: "" }, { user: "x".repeat(2000) }, { hostKeys: [] }, { hostKeys: [{ type: "ssh-rsa" as never, blob: key.blob }] }, { hostKeys: [{ type: "ecdsa-sha2-nistp256" as const, blob: key.blob }] }, { hostKeys: [{ ...pinOf(key), blob: key.blob.subarray(1) }] }]) {
    await assert.rejects(begin(peer, wrong), TypeError);
  }
  for (const line of ["", "ssh-ed25519", "ssh-ed25519 !!", "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ==", `ssh-ed25519 ${publicKeyLine(newServerKey("ecdsa-sha2-nistp256").blob).split(" ")[1]}`]) assert.throws(() => parsePublicKey(line), TypeError);
});

test("a callback that fails is heard of and disturbs nothing", async () => {
  const heard: unknown[] = [];
  const listener = (error: unknown) => heard.push((error as Error).message);
  process.prependListener("uncaughtException", listener);
  const others = process.listeners("uncaughtException").filter((l) => l != listener);
  for (const other of others) process.removeListener("uncaughtException", other);
  try {
    const { client } = await admitted({ onPhase: () => { throw new Error("in onPhase"); } });
    await new Promise((r) => setTimeout(r, 10));
    client.disconnect();
    assert.deepEqual(new Set(heard), new Set(["in onPhase"]));
  } finally {
    process.removeListener("uncaughtException", listener);
    for (const other of others) process.on("uncaughtException", other);
  }
});

test("what came before there was a reader is kept for it", async () => {
  const { peer, client, channel, number } = await withChannel();
  peer.send(data(number, "early "));
  peer.send(request(number, "exit-status", false, u32(0)));
  peer.send(msg(97, u32(number)));
  assert.deepEqual(await channel.exit, { code: 0 });
  assert.deepEqual(await collect(channel), { out: "early ", err: "", exit: { code: 0 } });
  client.disconnect();
});

test("too long a command is the caller's mistake", async () => {
  const { client, channel } = await withChannel();
  await assert.rejects(channel.exec("x".repeat(20_000)), TypeError);
  client.disconnect();
});

test("fuzz: changed messages on a connection that is up end it with an SshError, or change nothing", { timeout: 600_000 }, async () => {
  const seconds = Number(process.env.HOLDFAST_FUZZ ?? 5);
  let seed = Number(process.env.HOLDFAST_FUZZ_SEED ?? Date.now() % 1_000_000_007) >>> 0;
  const first = seed;
  const random = (n: number) => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return Math.floor((seed / 0x1_0000_0000) * n);
  };
  const uncaught: unknown[] = [];
  const listener = (error: unknown) => void uncaught.push(error);
  process.on("unhandledRejection", listener);
  const ends = new Map<string, number>();
  const end = performance.now() + seconds * 1000;
  while (performance.now() < end) {
    const { peer, client, channel, number } = await withChannel({ onHostKeys() {} });
    channel.onData(() => {});
    channel.exec("x").catch(() => {});
    client.ping().catch(() => {});
    const makers = [
      () => data(number, "some bytes"),
      () => msg(95, u32(number), u32(1), str("some bytes")),
      () => msg(93, u32(number), u32(1000)),
      () => request(number, "exit-status", false, u32(3)),
      () => request(number, "exit-signal", false, str("TERM"), Buffer.of(0), str("words"), str("")),
      () => request(number, "keepalive@openssh.com", true),
      () => msg(80, str("hostkeys-00@openssh.com"), Buffer.of(0), str(key.blob)),
      () => msg(80, str("keepalive@openssh.com"), Buffer.of(1)),
      () => msg(90, str("x11"), u32(1), u32(1), u32(1)),
      () => msg(99, u32(number)),
      () => Buffer.of(82),
      () => msg(96, u32(number)),
      () => msg(97, u32(number)),
      () => msg(1, u32(2), str("bye"), str("")),
      () => msg(2, str("x")),
      () => msg(4, Buffer.of(0), str("x"), str("")),
      () => peer.kexInit(),
      () => msg(31, str(key.blob), str(Buffer.alloc(32)), str(Buffer.alloc(83))),
      () => Buffer.of(random(256), random(256)),
    ];
    let over = false;
    void client.closed.then((why) => {
      over = true;
      assert(why instanceof SshError);
      ends.set(why.code, (ends.get(why.code) ?? 0) + 1);
    });
    for (let i = 0; i < 30 && !over; i++) {
      let bytes = Buffer.from(makers[random(makers.length)]!());
      if (random(3)) {
        const at = random(bytes.length);
        const how = random(4);
        if (how == 0) bytes[at] = random(256);
        else if (how == 1) bytes = bytes.subarray(0, Math.max(1, at));
        else if (how == 2) bytes = Buffer.concat([bytes, bytes.subarray(at)]);
        else if (bytes.length > 5) bytes.writeUInt32BE([0, 0xffff_ffff, 0x7fff_ffff, bytes.length][random(4)]!, 1 + random(bytes.length - 4));
      }
      peer.send(bytes);
      if (random(3) == 0) await new Promise((r) => setImmediate(r));
    }
    peer.hangUp();
    await client.closed;
    const { lost } = await channel.exit;
    assert(lost === undefined || lost instanceof SshError);
  }
  await new Promise((r) => setImmediate(r));
  process.removeListener("unhandledRejection", listener);
  assert.deepEqual(uncaught, [], `seed ${first}`);
  assert(ends.get("protocol")! > 0, JSON.stringify([...ends]));
  // What went wrong inside the client is not the server's doing.
  assert(!ends.has("closed"), JSON.stringify([...ends]));
});
