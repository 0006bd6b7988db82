// Builds dist/, what the package ships, and build/test, its tests: node build.mjs.
// With --size it says how large dist/ is and fails over the limits.

import { build } from "esbuild";
import { existsSync, readdirSync, rmSync } from "node:fs";
import { brotliCompressSync, constants } from "node:zlib";

const shared = {
  bundle: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  logLevel: "warning",
};

rmSync("dist", { recursive: true, force: true });
rmSync("build", { recursive: true, force: true });

await build({
  ...shared,
  entryPoints: ["src/index.ts", "src/mlkem.ts"],
  outdir: "dist",
  // The application's own build minifies.
  external: ["@noble/*"],
  splitting: true,
});

if (existsSync("test")) {
  await build({
    ...shared,
    entryPoints: readdirSync("test").filter((f) => f.endsWith(".test.ts")).map((f) => `test/${f}`),
    outdir: "build/test",
    platform: "node",
    packages: "external",
    // Without the paths of tsconfig.json, so that @holdfast/ssh is what is shipped.
    tsconfigRaw: {},
    sourcemap: true,
  });
  await build({ ...shared, entryPoints: ["test/measure.ts"], outdir: "build/measure", platform: "node", packages: "external", tsconfigRaw: {} });
  // As an application builds it: one Worker, and ML-KEM beside it.
  await build({ ...shared, entryPoints: ["test/page/page.ts", "test/page/worker.ts"], outdir: "build/page", tsconfigRaw: {}, splitting: true });
}

if (process.argv.includes("--size")) {
  // What an application's own build makes of it.
  const { outputFiles } = await build({
    ...shared,
    entryPoints: { core: "dist/index.js" },
    outdir: "/",
    splitting: true,
    minify: true,
    write: false,
  });
  const sizes = { "core": [0, 15_000], "ML-KEM": [0, 12_000] };
  for (const { path, contents } of outputFiles) {
    const part = path.endsWith("/core.js") || !path.includes("mlkem") ? "core" : "ML-KEM";
    sizes[part][0] += brotliCompressSync(contents, { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } }).length;
  }
  for (const [what, [bytes, limit]] of Object.entries(sizes)) {
    console.log(`${what}: ${bytes} bytes of at most ${limit}, minified, brotli`);
    if (bytes > limit || bytes == 0) process.exitCode = 1;
  }
}
