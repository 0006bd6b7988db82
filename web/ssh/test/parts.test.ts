// The parsers alone: values, every split, and a fuzzer.

import assert from "node:assert/strict";
import { createDecipheriv, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { mock, test } from "node:test";

import { printable, Reader, same, Writer } from "../src/bytes.js";
import { SshError } from "../src/errors.js";
import { kexInit, negotiate, parseReply } from "../src/kex.js";
import { deviceSigner, fingerprint, generateDeviceKey, parseBlob, parsePublicKey, publicKeyLine, signWith, verify } from "../src/keys.js";
import { Gcm, Input, open, pad, VersionReader } from "../src/packets.js";
import { deadline } from "../src/secure.js";
import { streamTransport, webSocketTransport, type WebSocketLike } from "../src/transports.js";
import { newServerKey, Peer, signatureOf, str } from "./peer.js";

const protocol = { code: "protocol" };
const hex = (b: Uint8Array) => Buffer.from(b).toString("hex");

test("numbers: RFC 4251's examples, and what is refused", () => {
  for (const [value, want] of [
    ["", "00000000"],
    ["00", "00000000"],
    ["09a378f9b2e332a7", "0000000809a378f9b2e332a7"],
    ["80", "000000020080"],
    ["0000ff", "0000000200ff"],
  ] as const) assert.equal(hex(new Writer().mpint(Buffer.from(value, "hex")).bytes), want);
  const positive = (h: string, max = 32) => new Reader(Buffer.from(h, "hex"), "number").positive(max);
  assert.equal(hex(positive("000000020080")), "80");
  assert.equal(hex(positive("0000000101")), "01");
  for (const wrong of ["00000000", "0000000180", "0000000100", "000000020001", "00000002", "0000002101" + "00".repeat(32), "0000002200" + "ff".repeat(33)]) assert.throws(() => positive(wrong), protocol, wrong);
  assert.equal(positive("00000021" + "00" + "ff".repeat(32)).length, 32);
});

test("writing: text and bytes, and nothing else becomes a message", () => {
  assert.equal(hex(new Writer(1).string("a").string(Uint8Array.of(2)).bytes), "01000000016100000000".slice(0, 12) + "0000000102");
  for (const wrong of [7, undefined, null, [1]]) assert.throws(() => new Writer(1).string(wrong as never), TypeError);
});

test("reading: nothing beyond the end, nothing left", () => {
  const r = new Reader(Buffer.from("0000000161ff", "hex"), "thing");
  assert.equal(r.text(), "a");
  assert.throws(() => r.u32(), protocol);
  assert.throws(() => r.end(), protocol);
  assert.equal(r.byte(), 255);
  r.end();
  assert.throws(() => new Reader(Buffer.from("ffffffff", "hex"), "thing").string(), protocol);
  assert.throws(() => new Reader(str("abc"), "thing").string(2), protocol);
  assert.throws(() => new Reader(str("a,b\n"), "thing").names(), protocol);
  assert.deepEqual(new Reader(str(""), "thing").names(), []);
  assert.equal(printable("a\u0000\u001b[2J\u202eb\n\n  c\u2028"), "a [2J b c");
  assert.equal(printable("x".repeat(1000)).length, 256);
  assert(same(Buffer.from("ab"), Buffer.from("ab")) && !same(Buffer.from("ab"), Buffer.from("abc")) && !same(Buffer.from("abc"), Buffer.from("ab")) && !same(Buffer.from("ab"), Buffer.from("ac")));
});

test("a packet that is being opened needs its bytes no longer: what comes behind it may lie in the same place", async () => {
  const key = await crypto.subtle.generateKey({ name: "AES-GCM", length: 256 }, false, ["encrypt", "decrypt"]);
  const [sealer, opener] = [new Gcm(key, new Uint8Array(12)), new Gcm(key, new Uint8Array(12))];
  const payloads = Array.from({ length: 50 }, (_, i) => randomBytes(1 + i * 600));
  const sealed: Uint8Array[] = [];
  for (const p of payloads) sealed.push(await sealer.seal(pad(p, true)));
  const input = new Input();
  const opening = sealed.map((packet) => {
    input.push(packet);
    const payload = open(input, opener);
    assert.equal(input.length, 0);
    // Over it, at once.
    input.push(new Uint8Array(packet.length).fill(255));
    input.skip(packet.length);
    return payload;
  });
  for (const [i, payload] of opening.entries()) assert.deepEqual(Buffer.from((await payload) as Uint8Array), payloads[i]);
});

test("the nonce counts in its last eight bytes and wraps in them", async () => {
  const raw = randomBytes(32);
  const key = await crypto.subtle.importKey("raw", raw, "AES-GCM", false, ["encrypt", "decrypt"]);
  for (const [start, then] of [
    ["0102030400000000000000ff", "010203040000000000000100"],
    ["01020304ffffffffffffffff", "010203040000000000000000"],
    ["ffffffff7fffffffffffffff", "ffffffff8000000000000000"],
  ] as const) {
    const gcm = new Gcm(key, new Uint8Array(Buffer.from(start, "hex")));
    const sealed = [await gcm.seal(pad(Buffer.from("first"), true)), await gcm.seal(pad(Buffer.from("second"), true))];
    for (const [i, nonce] of [start, then].entries()) {
      const packet = Buffer.from(sealed[i]!);
      const d = createDecipheriv("aes-256-gcm", raw, Buffer.from(nonce, "hex")).setAAD(packet.subarray(0, 4));
      d.setAuthTag(packet.subarray(-16));
      assert(Buffer.concat([d.update(packet.subarray(4, -16)), d.final()]).includes(["first", "second"][i]!));
    }
  }
});

test("packets: each size, padded to the block, and cut at every place", async () => {
  for (let size = 1; size < 80; size++) {
    const payload = randomBytes(size);
    const plain = pad(payload, false);
    assert.equal(plain.length % 8, 0);
    assert(plain[4]! >= 4 && plain.length >= 16);
    for (const cut of [1, 3, plain.length]) {
      const input = new Input();
      let got: unknown = null;
      for (let at = 0; at < plain.length; at += cut) {
        assert.equal(got, null);
        input.push(plain.subarray(at, at + cut));
        got = open(input, null);
      }
      assert.deepEqual(Buffer.from(got as Uint8Array), payload);
      assert.equal(input.length, 0);
    }
  }
  const key = await crypto.subtle.importKey("raw", randomBytes(16), "AES-GCM", false, ["encrypt", "decrypt"]);
  const sealer = new Gcm(key, new Uint8Array(12));
  const opener = new Gcm(key, new Uint8Array(12));
  const input = new Input();
  for (const size of [1, 15, 16, 17, 1000, 32_768]) {
    const payload = randomBytes(size);
    const sealed = await sealer.seal(pad(payload, true));
    assert.equal((sealed.length - 20) % 16, 0);
    input.push(sealed.subarray(0, -1));
    assert.equal(open(input, opener), null);
    input.push(sealed.subarray(-1));
    assert.deepEqual(Buffer.from((await open(input, opener)) as Uint8Array), payload);
  }
});

test("the input keeps its order and its memory", () => {
  const input = new Input();
  const all = randomBytes(300_000);
  let taken = Buffer.alloc(0);
  for (let at = 0; at < all.length; ) {
    const n = 1 + Math.floor(Math.random() * 5000);
    input.push(all.subarray(at, at + n));
    at += n;
    const want = Math.floor(Math.random() * (input.length + 1));
    assert.deepEqual(Buffer.from(input.peek(want)), all.subarray(taken.length, taken.length + want));
    taken = Buffer.concat([taken, input.take(want)]);
  }
  assert.deepEqual(Buffer.concat([taken, input.take(input.length)]), all);
});

test("keys: the shared vectors", async () => {
  const file = JSON.parse(readFileSync(new URL("../../../../testdata/vectors/pairing/keys.json", import.meta.url), "utf8"));
  let right = 0;
  for (const v of file.valid ?? file.keys ?? file.cases ?? file) {
    if (!v.line || !v.fingerprint || !["ssh-ed25519", "ecdsa-sha2-nistp256"].includes(v.type)) continue;
    const key = parsePublicKey(v.line);
    assert.equal(key.type, v.type);
    assert.equal(await fingerprint(key.blob), v.fingerprint);
    if (v.blobHex) assert.equal(hex(key.blob), v.blobHex);
    right++;
  }
  assert(right >= 2, "the vectors hold keys of both types");
});

test("keys: what is made signs, cannot be read out, and survives being stored", async () => {
  for (const type of ["ecdsa-sha2-nistp256", "ssh-ed25519"] as const) {
    const made = await generateDeviceKey(type);
    assert.equal(made.privateKey.extractable, false);
    for (const format of ["pkcs8", "jwk", "raw"] as const) await assert.rejects(crypto.subtle.exportKey(format as "jwk", made.privateKey));
    const stored = structuredClone(made);
    const signer = deviceSigner(stored);
    for (let i = 0; i < 40; i++) {
      const data = new Uint8Array(randomBytes(100));
      const signature = await signWith(signer, data);
      assert.equal(await verify(made.publicBlob, signature, data), true);
      data[0]! ^= 1;
      assert.equal(await verify(made.publicBlob, signature, data), false);
    }
    assert.deepEqual(parsePublicKey(publicKeyLine(made, "my\nphone")).blob, made.publicBlob);
    assert.match(publicKeyLine(made, "my\nphone"), / my phone$/);
  }
  await assert.rejects(signWith({ algorithm: "ssh-ed25519", publicBlob: new Uint8Array(), sign: async () => new Uint8Array(70) }, new Uint8Array()), TypeError);
});

test("a deadline that is called late waits once more", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  let now = 0;
  const clock = mock.method(performance, "now", () => now);
  try {
    const fired: string[] = [];
    deadline(1000, () => fired.push("in time"));
    const stop = deadline(1000, () => fired.push("stopped"));
    stop();
    now = 1000;
    mock.timers.tick(1000);
    assert.deepEqual(fired, ["in time"]);
    deadline(1000, () => fired.push("late"));
    now = 60_000;
    mock.timers.tick(1000);
    assert.deepEqual(fired, ["in time"]);
    now = 600_000; // late again: once is enough
    mock.timers.tick(1000);
    assert.deepEqual(fired, ["in time", "late"]);
  } finally {
    clock.mock.restore();
    mock.timers.reset();
  }
});

class FakeSocket extends EventTarget {
  binaryType = "";
  readyState = 1;
  bufferedAmount = 0;
  sent: Uint8Array[] = [];
  closed: unknown[] = [];
  send(data: Uint8Array) {
    this.sent.push(data);
  }
  close(...how: unknown[]) {
    this.closed.push(how);
  }
  message(data: unknown) {
    this.dispatchEvent(Object.assign(new Event("message"), { data }));
  }
  gone(code: number, reason: string) {
    this.readyState = 3;
    this.dispatchEvent(Object.assign(new Event("close"), { code, reason }));
  }
}

test("a WebSocket: early messages, waiting for its buffer, text, its end", async () => {
  const socket = new FakeSocket();
  const t = webSocketTransport(socket as unknown as WebSocketLike);
  assert.equal(socket.binaryType, "arraybuffer");
  socket.message(Uint8Array.of(1, 2).buffer);
  const got: number[] = [];
  t.onmessage = (bytes) => got.push(...bytes);
  socket.message(Uint8Array.of(3).buffer);
  socket.message("");
  assert.deepEqual(got, [1, 2, 3]);
  socket.bufferedAmount = 1 << 20;
  let sent = false;
  const sending = Promise.resolve(t.send(Uint8Array.of(9))).then(() => (sent = true));
  await new Promise((r) => setTimeout(r, 50));
  assert.equal(sent, false);
  socket.bufferedAmount = 0;
  await sending;
  const ends: string[] = [];
  t.onclose = (reason) => ends.push(reason);
  socket.gone(1013, "machine agent offline");
  socket.message(Uint8Array.of(4).buffer);
  assert.deepEqual(ends, ["close code 1013: machine agent offline"]);
  assert.deepEqual(got, [1, 2, 3]);
  await assert.rejects(Promise.resolve(t.send(Uint8Array.of(9))), /machine agent offline/);
  const late: string[] = [];
  t.onclose = (reason) => late.push(reason);
  assert.equal(late.length, 1);

  for (const [base64Compat, text, want] of [
    [true, "aGk=", "hi"],
    [true, "!", null],
    [false, "aGk=", null],
  ] as const) {
    const s = new FakeSocket();
    const transport = webSocketTransport(s as unknown as WebSocketLike, { base64Compat });
    let said = "";
    let end = "";
    transport.onmessage = (bytes) => (said += Buffer.from(bytes));
    transport.onclose = (reason) => (end = reason);
    s.message(text);
    assert.equal(said, want ?? "");
    assert.equal(end != "", want === null);
    assert.equal(s.closed.length, want === null ? 1 : 0);
  }
});

test("streams carry a connection too", async () => {
  const there = new TransformStream<Uint8Array, Uint8Array>();
  const back = new TransformStream<Uint8Array, Uint8Array>();
  const t = streamTransport({ readable: back.readable, writable: there.writable });
  const got: number[] = [];
  const ended = new Promise<string>((resolve) => (t.onclose = resolve));
  t.onmessage = (bytes) => got.push(...bytes);
  const reader = there.readable.getReader();
  void t.send(Uint8Array.of(1));
  assert.deepEqual([...(await reader.read()).value!], [1]);
  const writer = back.writable.getWriter();
  await writer.write(Uint8Array.of(2, 3));
  await writer.close();
  assert.equal(await ended, "the stream ended");
  assert.deepEqual(got, [2, 3]);
  t.close();
});

// Seeded, so that a failure can be had again: HOLDFAST_FUZZ_SEED. HOLDFAST_FUZZ
// says for how many seconds.
test("fuzz: no parser throws anything but an SshError, or takes its time", { timeout: 600_000 }, async () => {
  const seconds = Number(process.env.HOLDFAST_FUZZ ?? 5);
  let seed = Number(process.env.HOLDFAST_FUZZ_SEED ?? Date.now() % 1_000_000_007) >>> 0;
  const first = seed;
  const random = (n: number) => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return Math.floor((seed / 0x1_0000_0000) * n);
  };
  const key = newServerKey();
  const ecdsa = newServerKey("ecdsa-sha2-nistp256");
  const hostTypes = ["ssh-ed25519", "ecdsa-sha2-nistp256"] as const;
  const kex = ["curve25519-sha256"];
  const reply = Buffer.concat([Buffer.of(31), str(key.blob), str(randomBytes(32)), str(signatureOf(key, randomBytes(32)))]);
  const signed = new Uint8Array(32);
  const feed = (bytes: Buffer, what: (input: Input) => unknown) => {
    const input = new Input();
    for (let at = 0; at < bytes.length; ) {
      const n = 1 + random(bytes.length);
      input.push(bytes.subarray(at, at + n));
      at += n;
      while (what(input) !== null);
    }
  };
  const targets: [string, () => Buffer, (bytes: Buffer) => unknown][] = [
    ["KEXINIT", () => Buffer.from(kexInit(kex, hostTypes, true)), (b) => negotiate(new Uint8Array(b), kex, hostTypes)],
    ["their KEXINIT", () => new Peer(key).kexInit(), (b) => negotiate(new Uint8Array(b), kex, hostTypes)],
    ["reply", () => reply, (b) => parseReply(new Uint8Array(b))],
    ["key", () => (random(2) ? key.blob : ecdsa.blob), (b) => parseBlob(b)],
    ["signature", () => signatureOf(ecdsa, signed), (b) => verify(ecdsa.blob, b, signed)],
    ["key and signature", () => ecdsa.blob, (b) => verify(b, signatureOf(ecdsa, signed), signed)],
    ["packet", () => Buffer.concat([pad(randomBytes(1 + random(100)), false), pad(randomBytes(1 + random(100)), false)]), (b) => feed(b, (input) => open(input, null))],
    ["version", () => Buffer.from("hello\r\nSSH-2.0-x y\r\n"), (b) => feed(b, (input) => new VersionReader().read(input))],
    ["line", () => Buffer.from(publicKeyLine(key.blob)), (b) => parsePublicKey(b.toString("latin1"))],
  ];
  const end = performance.now() + seconds * 1000;
  let runs = 0;
  while (performance.now() < end) {
    for (const [name, make, target] of targets) {
      let bytes = Buffer.from(make());
      for (let n = random(4); n > 0; n--) {
        const at = random(bytes.length + 1);
        switch (random(6)) {
          case 0:
            bytes[at % Math.max(1, bytes.length)] = random(256);
            break;
          case 1:
            bytes = bytes.subarray(0, at);
            break;
          case 2:
            bytes = Buffer.concat([bytes.subarray(0, at), randomBytes(random(20)), bytes.subarray(at)]);
            break;
          case 3:
            bytes = Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + random(8))]);
            break;
          case 4:
            if (bytes.length >= 4) bytes.writeUInt32BE([0, 1, 0x7fff_ffff, 0xffff_ffff, bytes.length, 255][random(6)]!, random(bytes.length - 3));
            break;
          default:
            bytes = Buffer.concat([bytes, bytes.subarray(at)]);
        }
      }
      const from = performance.now();
      try {
        await target(bytes);
      } catch (error) {
        const fine = error instanceof SshError || (name == "line" && error instanceof TypeError);
        assert(fine, `${name} with seed ${first}: ${(error as Error).stack}\n${bytes.toString("hex")}`);
      }
      const took = performance.now() - from;
      assert(took < 2000, `${name} with seed ${first} took ${took} ms: ${bytes.toString("hex")}`);
      runs++;
    }
  }
  assert(runs > 1000, `${runs} runs`);
});
