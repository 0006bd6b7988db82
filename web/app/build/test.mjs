// Bundles the tests of test/ for Node and runs them: node build/test.mjs [PATTERN].

import { build } from "esbuild";
import { readdirSync, rmSync } from "node:fs";
import { spawnSync } from "node:child_process";

const out = "dist-test";
rmSync(out, { recursive: true, force: true });
await build({
  entryPoints: readdirSync("test").filter((f) => /\.test\.tsx?$/.test(f)).map((f) => `test/${f}`),
  outdir: out,
  bundle: true,
  platform: "node",
  format: "esm",
  target: "es2022",
  define: { FULL: "true", __VERSION__: '"test"' },
  sourcemap: true,
  logLevel: "warning",
});
const only = process.argv[2] ? [`--test-name-pattern=${process.argv[2]}`] : [];
const { status } = spawnSync(process.execPath, ["--test", "--enable-source-maps", "--test-reporter=./test/reporter.mjs", ...only, `${out}/`], { stdio: "inherit" });
rmSync(out, { recursive: true, force: true });
process.exit(status ?? 1);
