// Builds build/scoreboard: the page with every client, and what drives it.

import { build } from "esbuild";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";

rmSync("build/scoreboard", { recursive: true, force: true });
mkdirSync("build/scoreboard", { recursive: true });

const shared = { bundle: true, format: "esm", target: "es2022", logLevel: "warning", alias: { "@holdfast/live": "../live/dist/index.js" }, tsconfigRaw: {} };

await build({ ...shared, entryPoints: ["scoreboard/page.ts"], outdir: "build/scoreboard" });
writeFileSync("build/scoreboard/page.html", '<!doctype html><meta charset="utf-8"><title>Client</title><script type="module" src="page.js"></script>\n');
writeFileSync("build/scoreboard/elsewhere.html", "<!doctype html><title>Elsewhere</title><p>Another page.\n");
await build({ ...shared, entryPoints: ["scoreboard/main.ts"], outdir: "build/scoreboard", platform: "node", external: ["playwright-core", "ws"] });
