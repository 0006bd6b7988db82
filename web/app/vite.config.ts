// One page, one Worker script that every machine's Worker runs, and the terminal
// in a part of its own. Nothing depends on where the page is served from.

import { readFileSync } from "node:fs";
import { defineConfig } from "vite";

const { version } = JSON.parse(readFileSync("package.json", "utf8")) as { version: string };
const shared = {
  define: { FULL: "true", __VERSION__: JSON.stringify(version) },
  alias: {
    "@holdfast/live/parts": new URL("../live/src/parts.ts", import.meta.url).pathname,
    "@holdfast/ssh": new URL("../ssh/src/index.ts", import.meta.url).pathname,
  },
};

export default defineConfig({
  base: "./",
  define: shared.define,
  resolve: { alias: shared.alias },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  worker: { format: "es", rollupOptions: { output: { entryFileNames: "assets/worker-[hash].js", chunkFileNames: "assets/[name]-[hash].js" } } },
  build: {
    target: "es2022",
    outDir: "dist",
    assetsInlineLimit: 0,
    // Every browser that has what the page needs preloads modules by itself.
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        // What the first screen takes is one file: each further one costs a slow
        // phone as much as running it does.
        codeSplitting: { groups: [{ name: "page", tags: ["$initial"] }] },
        entryFileNames: "assets/app-[hash].js",
        chunkFileNames: "assets/[name]-[hash].js",
        assetFileNames: "assets/[name]-[hash][extname]",
      },
    },
  },
});
