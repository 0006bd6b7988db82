// When it is certain that this device is let in no more, and what goes then.

import assert from "node:assert/strict";
import { test } from "node:test";
import { HostKeyError, SshError } from "@holdfast/ssh";
import { isIn, outBy } from "../src/access.js";
import { keptName, keyOf, keptOf } from "../src/terminal/kept.js";
import type { LinkState, Why } from "../src/worker/messages.js";
import { whyOf } from "../src/worker/words.js";

const state = (why: Why | undefined, change: Partial<LinkState> = {}): LinkState => ({ phase: "stopped", suspect: false, proof: undefined, retryAt: undefined, why, postQuantum: undefined, service: "ssh", server: undefined, ...change });
const close = (code: number): Why => ({ code, kind: "close", text: "" });

test("the relay's word that access has ended, and the machine's that the key is not let in, are certain", () => {
  assert.equal(outBy(state(close(4401))), "relay");
  assert.equal(outBy(state(close(4401), { service: "sshd" })), "relay");
  assert.equal(outBy(state(whyOf(new SshError("auth", "the server lets the key in no more")))), "machine");
});

test("a broken path, a machine that is away and a stranger's answer say nothing about it", () => {
  for (const code of [1000, 1005, 1006, 1011, 1012, 1013, 4000, 4104, 4129, 4403, 4404, 4426, 4502]) assert.equal(outBy(state(close(code))), undefined, `${code}`);
  for (const e of [new SshError("timeout", ""), new SshError("transport", ""), new SshError("integrity", ""), new HostKeyError(["a"], "b", ""), new Error("x")]) assert.equal(outBy(state(whyOf(e))), undefined, String(e));
  assert.equal(outBy(state(undefined)), undefined);
  // What is still being tried is not over.
  assert.equal(outBy(state(close(4401), { phase: "waiting" })), undefined);
  // A key that this device cannot use, and an sshd that has lost a line, are no word of the machine's.
  assert.equal(outBy(state(whyOf(new SshError("auth", "signing with the device's key", new Error("gone"))))), undefined);
  assert.equal(outBy(state({ code: 4000, kind: "auth" }, { service: "sshd" })), undefined);
});

test("a connection that comes up shows that the device is let in, one that was up shows nothing", () => {
  const [up, down] = [state(undefined, { phase: "up" }), state(close(4401))];
  assert.ok(isIn(down, up));
  assert.ok(isIn(state(undefined, { phase: "auth" }), up));
  assert.ok(!isIn(up, state(undefined, { phase: "up", suspect: true })));
  assert.ok(!isIn(up, down));
  // The machine's own sshd lets in whom it likes.
  assert.ok(!isIn(down, { ...up, service: "sshd" }));
});

test("screens are told by their machine", () => {
  const name = keptName(keyOf("a-1", { kind: "shell" }));
  assert.ok(keptOf(name, "a-1"));
  for (const other of ["a", "a-11", "-1", ""]) assert.ok(!keptOf(name, other), other);
  assert.ok(!keptOf("holdfast.prefs", "a-1"));
});
