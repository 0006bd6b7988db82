// The vectors that internal/pairing runs as well.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fromBase64url, sha256, toBase64url } from "../src/pairing/bytes.js";
import { fingerprint, isOwn, keyLine, parseKey } from "../src/pairing/key.js";
import { LinkError, parseLink, prove, relaySecret } from "../src/pairing/link.js";
import { parseResponse, requestLine } from "../src/pairing/subsystem.js";

const vectors = (name: string): any[] => {
  const { cases } = JSON.parse(readFileSync(`../../testdata/vectors/pairing/${name}.json`, "utf8"));
  assert.ok(cases.length > 3);
  return cases;
};
const hex = (b: Uint8Array) => Buffer.from(b).toString("hex");
const unhex = (s: string) => new Uint8Array(Buffer.from(s, "hex"));

test("links are read as the agent reads them", async () => {
  for (const c of vectors("link")) {
    if (c.error) {
      await assert.rejects(parseLink(c.link), (e: unknown) => e instanceof LinkError && e.fault == c.error, c.name);
      continue;
    }
    const l = await parseLink(c.link);
    assert.deepEqual(
      { relay: l.relay, machine: l.machine, keys: l.hostKeys.map(keyLine), secret: hex(l.secret), expires: l.expires },
      { relay: c.relay, machine: c.machine, keys: c.hostKeys, secret: c.secretHex, expires: c.expires },
      c.name,
    );
  }
});

test("every one-character slip in a link is noticed", async () => {
  const link: string = vectors("link")[0].link;
  const start = link.indexOf("hf1.") + 4;
  for (let i = start; i < link.length; i++) {
    const slip = link.slice(0, i) + (link[i] == "A" ? "B" : "A") + link.slice(i + 1);
    await assert.rejects(parseLink(slip), LinkError, `character ${i}`);
    await assert.rejects(parseLink(link.slice(0, i)), (e: unknown) => e instanceof LinkError && e.fault == "cutOff", `cut at ${i}`);
  }
});

test("what is derived from the secret is what relay and agent expect", async () => {
  for (const c of vectors("derive")) {
    const link = { secret: unhex(c.secretHex) };
    const shown = await relaySecret(link);
    assert.equal(shown, c.relaySecret, c.name);
    assert.equal(toBase64url(await sha256(fromBase64url(shown)!)), c.relayHash, c.name);
    const [deviceKey, hostKey] = [await parseKey(c.deviceKey), await parseKey(c.hostKey)];
    const proof = await prove(link, { sessionId: unhex(c.sessionIdHex), deviceKey: deviceKey.blob, hostKey: hostKey.blob, machine: c.machine });
    assert.equal(proof, c.proof, c.name);
  }
});

test("keys are read as the agent reads them", async () => {
  for (const c of vectors("keys")) {
    if (c.error) {
      await assert.rejects(parseKey(c.line), c.name);
      continue;
    }
    const k = await parseKey(c.line);
    assert.deepEqual([k.type, hex(k.blob), await fingerprint(k.blob), isOwn(k)], [c.type, c.blobHex, c.fingerprint, c.device], c.name);
  }
});

test("the machine's answer is read as the command line reads it", async () => {
  for (const c of vectors("subsystem")) {
    if (c.kind != "response") continue;
    if (c.error) {
      await assert.rejects(parseResponse(c.line), c.name);
      continue;
    }
    const want = c.value.ok ? { shell: false, ...c.value } : c.value;
    assert.deepEqual(await parseResponse(c.line), want, c.name);
  }
});

test("the request is one line with a name that moves no cursor", () => {
  const line = requestLine("x", "lap\u001b[2J\ntop\u202e");
  assert.equal(line, '{"v":1,"proof":"x","name":"lap[2Jtop"}\n');
});
