// Runs the tests of this folder: node run.mjs [NAME].
//
// Two files at a time, each in a process of its own, since both mainly wait. An
// agent sees every tmux server of its user, the other file's and the person's, so
// each has a network of its own, in which it finds only what was started there.
// Where that cannot be had (it takes root, and Linux) they run one after the other.

import { existsSync, readdirSync, statSync } from "node:fs";
import { spawn, spawnSync } from "node:child_process";
import { binary, CHROMIUM } from "./lib.mjs";

for (const [what, path, how] of [["the program", binary, "make build"], ["Chromium", CHROMIUM, "scripts/setup test"]]) {
  if (existsSync(path)) continue;
  console.error(`browser: error: ${what} is not there: ${how}`);
  process.exit(1);
}
// What hangs is a failure that says its name, long before whoever waits for all of them gives up.
const FILE_LIMIT = 600_000;
const here = new URL(".", import.meta.url).pathname;
// The longest first, so that none of them is what everybody waits for in the end.
const files = readdirSync(here).filter((f) => f.endsWith(".test.mjs")).sort((a, b) => statSync(here + b).size - statSync(here + a).size);
const only = process.argv[2] ? [`--test-name-pattern=${process.argv[2]}`] : [];
const reporter = new URL("../../web/app/test/reporter.mjs", import.meta.url).href;

const env = { ...process.env, PATH: `${process.env.PATH}:/usr/sbin:/sbin` };
const apart = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"];
const [own, ...how] = apart;
const alone = spawnSync(own, [...how, "true"], { env }).status != 0;
if (alone) console.log("   no network of its own for each file (that takes root): one after the other, and among the tmux servers of this user");

const running = new Set();
for (const signal of ["SIGINT", "SIGTERM"]) {
  process.on(signal, () => {
    for (const child of running) child.kill("SIGTERM");
    process.exit(1);
  });
}

/** Runs one file and prints what it says in one piece. */
const run = (file) =>
  new Promise((resolve) => {
    const [command, ...args] = [...(alone ? [] : apart), process.execPath, "--test", "--test-concurrency=1", `--test-timeout=${FILE_LIMIT}`, `--test-reporter=${reporter}`, ...only, here + file];
    const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"], env: { ...env, HOLDFAST_SUITE: `e2e/browser/${file.replace(".test.mjs", "")}` } });
    running.add(child);
    let said = "";
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (d) => (said += d));
    child.on("error", (e) => (said += `   ${file}: ${e.message}\n`));
    child.on("close", (status) => {
      running.delete(child);
      process.stdout.write(said);
      resolve(status === 0);
    });
  });

let good = true;
const worker = async () => {
  for (let file = files.shift(); file; file = files.shift()) good = (await run(file)) && good;
};
await Promise.all(alone ? [worker()] : [worker(), worker()]);
process.exit(good ? 0 : 1);
