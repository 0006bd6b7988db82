// What a relay answers, and what of it reaches the screen.

import assert from "node:assert/strict";
import { test } from "node:test";
import { listDevices, listMachines, listNotices, RelayError } from "../src/relay.js";

const relay = "https://relay.example";

/** Has the relay answer with this for one call. */
const answering = async <T>(body: BodyInit, act: () => Promise<T>, status = 200, headers: Record<string, string> = {}): Promise<T> => {
  const before = globalThis.fetch;
  globalThis.fetch = async () => new Response(body, { status, headers });
  try {
    return await act();
  } finally {
    globalThis.fetch = before;
  }
};

test("an answer that does not end is left, whether or not it says its length", async () => {
  let pulled = 0;
  let cancelled = false;
  const endless = new ReadableStream<Uint8Array>({
    pull(c) {
      pulled++;
      c.enqueue(new Uint8Array(64 << 10).fill(32));
    },
    cancel() {
      cancelled = true;
    },
  });
  await assert.rejects(answering(endless, () => listMachines(relay, "t")), (e: unknown) => e instanceof RelayError && e.code == 1006 && /too long/.test(e.message));
  assert.ok(pulled < 30, `${pulled} pieces of 64 KiB`);
  assert.ok(cancelled, "the connection is still held");
});

test("what is no answer of a relay is said to be none", async () => {
  for (const body of ["", "<html>", "null", "7"]) await assert.rejects(answering(body, () => listMachines(relay, "t")), (e: unknown) => e instanceof RelayError && e.code == 1006, body);
  // Without the relay's own header a portal's 401 is nobody's word.
  await assert.rejects(answering("no", () => listMachines(relay, "t"), 401), (e: unknown) => e instanceof RelayError && e.code == 1006);
  await assert.rejects(answering('{"detail":"revoked\\u202e"}', () => listMachines(relay, "t"), 401, { "Holdfast-Refusal": "revoked" }), (e: unknown) => e instanceof RelayError && e.code == 4401 && e.message == "revoked");
});

test("lists are bounded, and their words change no direction of text", async () => {
  const machines = [
    { machine: "mini", state: "unreachable", reason: "a\u202eb\nc" + "x".repeat(1000), provenAt: "2026-03-01T09:30:12Z" },
    { machine: "later", state: "dreaming", reason: 7 },
    { machine: "../x" },
    null,
    ...Array.from({ length: 2000 }, (_, i) => ({ machine: `m${i}`, state: "offline" })),
  ];
  const got = await answering(JSON.stringify({ machines }), () => listMachines(relay, "t"));
  assert.equal(got.length, 999); // of 1,000, one is no name
  assert.deepEqual(got.slice(0, 2), [
    { machine: "mini", state: "unreachable", provenAt: "2026-03-01T09:30:12Z", reason: "abc" + "x".repeat(297) },
    { machine: "later", state: undefined, provenAt: undefined, reason: "" },
  ]);
  const devices = [{ id: "d1", name: "a\u2066phone", created: "2026-03-01T09:30:12Z", this: 1, key: "ssh-ed25519 AAAA" }, { id: 7, name: "x" }];
  assert.deepEqual(await answering(JSON.stringify({ devices }), () => listDevices(relay, "t")), [{ id: "d1", name: "aphone", created: "2026-03-01T09:30:12Z", used: undefined, this: false }]);
  const notices = [{ id: "n1", at: "never", text: "x".repeat(9000) }, { id: "n2", text: "read", read: "2026-03-01T09:30:12Z" }];
  const [notice, ...none] = await answering(JSON.stringify({ notices }), () => listNotices(relay, "t"));
  assert.deepEqual([notice!.text.length, notice!.at, none.length], [4096, "", 0]);
});
