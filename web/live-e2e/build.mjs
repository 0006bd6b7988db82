// Builds build/page, the example page of web/live with the client that is
// shipped, and the tests.

import { build } from "esbuild";
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";

execFileSync("node", ["build.mjs"], { cwd: "../live", stdio: "inherit" });
rmSync("build", { recursive: true, force: true });
mkdirSync("build/page", { recursive: true });

const shared = {
  bundle: true,
  format: "esm",
  target: "es2022",
  sourcemap: true,
  logLevel: "warning",
  alias: { "@holdfast/live": "../live/dist/index.js" },
  // Without the paths of tsconfig.json: what is shipped runs here.
  tsconfigRaw: {},
};

await build({ ...shared, entryPoints: ["../live/examples/page/page.ts"], outdir: "build/page" });
copyFileSync("../live/examples/page/index.html", "build/page/index.html");
// Somewhere else on the same site, for pages that are left and come back.
writeFileSync("build/page/elsewhere.html", "<!doctype html><title>Elsewhere</title><p>Another page.");

await build({
  ...shared,
  entryPoints: readdirSync("test").filter((f) => f.endsWith(".test.ts")).map((f) => `test/${f}`),
  outdir: "build",
  platform: "node",
  external: ["playwright-core", "ws"],
});
