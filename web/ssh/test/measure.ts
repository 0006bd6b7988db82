// npm run measure: what the client costs here, in Node and in Chromium's Worker,
// against OpenSSH on this machine.

import { cpus, loadavg } from "node:os";

import { deviceSigner, generateDeviceKey, publicKeyLine } from "@holdfast/ssh";
import { bench, type Figures } from "./bench.js";
import { startBrowser } from "./browser.js";
import { startSshd, user } from "./sshd.js";

const repetitions = 3;
const how = { megabytes: 50, keys: 500 };
const sshd = startSshd();
const device = await generateDeviceKey();
sshd.authorize(publicKeyLine(device));
const browser = await startBrowser({ "/sshd": () => sshd.connection().transport });
sshd.authorize((await browser.order("key", "ecdsa-sha2-nistp256")).line);
const pin = publicKeyLine(sshd.ed25519.blob);

const median = (all: Figures[], of: (f: Figures) => number) => all.map(of).sort((a, b) => a - b)[Math.floor(all.length / 2)]!;
console.log("| where | MB/s from the server | echo p50 / p99 | connect to the first byte of a shell |\n|---|---|---|---|");
for (const [where, once] of [
  ["Node, pipes", () => bench(async () => sshd.connection().transport, { user, hostKeys: [sshd.ed25519], signer: deviceSigner(device) }, how)],
  ["Chromium, Worker, WebSocket", () => browser.order("bench", "/sshd", user, pin, how) as Promise<Figures>],
] as const) {
  const all: Figures[] = [];
  for (let i = 0; i < repetitions; i++) all.push(await once());
  const f = (of: (f: Figures) => number) => median(all, of).toFixed(1);
  console.log(`| ${where} | ${f((x) => x.mbPerS)} | ${f((x) => x.echoP50)} / ${f((x) => x.echoP99)} ms | ${median(all, (x) => x.shellMs).toFixed(0)} ms |`);
}
const raw: number[] = [];
for (let i = 0; i < repetitions; i++) raw.push(await browser.order("raw"));
raw.sort((a, b) => a - b);
console.log(`| Chromium, Worker, a WebSocket alone | ${raw[Math.floor(repetitions / 2)]!.toFixed(1)} | | |`);
console.log(`\nLoad average of this machine: ${loadavg()[0]!.toFixed(0)} on ${cpus().length} processors.`);
await browser.stop();
sshd.stop();
