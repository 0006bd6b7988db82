// Builds dist/, what the package ships, and build/test, its tests: node build.mjs.
// With --size it says how large dist/ is and fails over the limits.

import { build } from "esbuild";
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { gzipSync } from "node:zlib";

// Names that the core alone uses, shortened in what is shipped. None of them is
// in an option, the status, a receipt, a channel, a profile or the DOM.
const hidden = [
  ..."start opened inbound sent pause wake tick stop probes dead next".split(" "), // Judge, Effects
  ..."rule evidence probed decided reprieve beaten".split(" "), // its tracks
  ..."retire connect phase fail drain due".split(" "), // Funnel, Action
  ..."connected expire receipt item text".split(" "), // Outbox, Item
];

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
  entryPoints: ["src/index.ts"],
  outdir: "dist",
  define: { FULL: "false" },
  mangleProps: new RegExp(`^(${hidden.join("|")})$`),
  minify: true,
  sourcemap: true,
});
await build({
  ...shared,
  entryPoints: ["src/parts.ts", "src/react.ts", "src/ticker.ts", "src/ticker-worker.ts"],
  outdir: "dist",
  define: { FULL: "true" },
  external: ["react", "./index.js"],
});
await build({
  ...shared,
  entryPoints: readdirSync("test").filter((f) => f.endsWith(".test.ts") || f.endsWith(".test.tsx")).map((f) => `test/${f}`),
  outdir: "build/test",
  platform: "node",
  define: { FULL: "true" },
  packages: "external",
  // Without the paths of tsconfig.json, so that @holdfast/live is what is shipped.
  tsconfigRaw: { compilerOptions: { jsx: "react-jsx" } },
  sourcemap: true,
});

await build({
  ...shared,
  entryPoints: { "vectors-page.test": "test/vectors.test.ts" },
  outdir: "build/test",
  platform: "node",
  define: { FULL: "false" },
  packages: "external",
});

if (process.argv.includes("--size")) {
  // What a site's own build makes of it: one file, minified, gzip -9.
  const measure = async (contents) => {
    const { outputFiles } = await build({
      ...shared,
      stdin: { contents, resolveDir: "dist" },
      external: ["react"],
      minify: true,
      write: false,
    });
    return gzipSync(outputFiles[0].contents, { level: 9 }).length;
  };
  const worker = gzipSync(readFileSync("dist/ticker-worker.js"), { level: 9 }).length;
  const sizes = [
    ["core", await measure('export * from "./index.js"'), 4000],
    ["core, React hook and ticker", (await measure('export * from "./index.js"; export * from "./react.js"; export * from "./ticker.js"')) + worker, 5500],
  ];
  for (const [what, bytes, limit] of sizes) {
    console.log(`${what}: ${bytes} bytes of at most ${limit}, minified and gzipped`);
    if (bytes > limit) process.exitCode = 1;
  }
}
