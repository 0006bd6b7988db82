// Runs the tests of this folder one after the other: node run.mjs [NAME].

import { existsSync, readdirSync } from "node:fs";
import { spawnSync } from "node:child_process";
import { binary, CHROMIUM } from "./lib.mjs";

for (const [what, path, how] of [["the program", binary, "make build"], ["Chromium", CHROMIUM, "scripts/setup test"]]) {
  if (existsSync(path)) continue;
  console.error(`browser: error: ${what} is not there: ${how}`);
  process.exit(1);
}
// What hangs is a failure that says its name, long before whoever waits for all of them gives up.
const FILE_LIMIT = 600_000;
const here = new URL(".", import.meta.url).pathname;
const files = readdirSync(here).filter((f) => f.endsWith(".test.mjs")).map((f) => here + f);
const only = process.argv[2] ? [`--test-name-pattern=${process.argv[2]}`] : [];
const reporter = new URL("../../web/app/test/reporter.mjs", import.meta.url).href;
const { status } = spawnSync(process.execPath, ["--test", "--test-concurrency=1", `--test-timeout=${FILE_LIMIT}`, `--test-reporter=${reporter}`, ...only, ...files], { stdio: "inherit", env: { ...process.env, HOLDFAST_SUITE: "e2e/browser" } });
process.exit(status ?? 1);
