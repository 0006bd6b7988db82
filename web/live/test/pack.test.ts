// What `npm pack` makes is what a site gets: packed from a copy, so that the
// build that runs here stays, unpacked beside a program that uses it, imported
// and checked by the compiler as that program is.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../", import.meta.url));

const program = `
import { createLive, hydro, timing, type Status } from "@holdfast/live";
import { createJudge, typing } from "@holdfast/live/parts";
import { useLive } from "@holdfast/live/react";
import { workerTimers } from "@holdfast/live/ticker";
const live = createLive({ url: "ws://localhost/", profile: hydro, channel: timing });
const status: Status = live.status;
export const seen: string = status.state + createJudge(typing).start({ mono: 0, wall: 0 }).state + typeof useLive + typeof workerTimers;
`;

test("npm pack: nothing but the build, usable by a program with its types", () => {
  const dir = mkdtempSync(join(tmpdir(), "live-pack-"));
  try {
    const copy = join(dir, "copy");
    mkdirSync(copy);
    for (const name of ["src", "build.mjs", "package.json", "tsconfig.json", "tsconfig.dist.json", "README.md", "test", "examples"])
      cpSync(join(root, name), join(copy, name), { recursive: true });
    symlinkSync(join(root, "node_modules"), join(copy, "node_modules"));
    const run = (command: string, args: string[], cwd: string) => execFileSync(command, args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
    run("npm", ["pack", "--silent", "--pack-destination", dir], copy);
    const site = join(dir, "site");
    const unpacked = join(site, "node_modules/@holdfast/live");
    mkdirSync(unpacked, { recursive: true });
    run("tar", ["-xzf", join(dir, "holdfast-live-0.1.0.tgz"), "-C", unpacked, "--strip-components=1"], dir);
    symlinkSync(join(root, "node_modules/react"), join(site, "node_modules/react"));
    symlinkSync(join(root, "node_modules/@types"), join(site, "node_modules/@types"));

    const files = run("find", [".", "-type", "f"], unpacked).trim().split("\n");
    for (const name of ["index", "parts", "react", "ticker"]) for (const ext of ["js", "d.ts"]) assert.ok(files.includes(`./dist/${name}.${ext}`), `${name}.${ext}`);
    assert.deepEqual(files.filter((f) => !/^\.\/(dist\/.*|package\.json|README\.md)$/.test(f)), [], "nothing else is shipped");

    writeFileSync(join(site, "package.json"), '{"type":"module"}');
    writeFileSync(join(site, "program.ts"), program);
    writeFileSync(
      join(site, "tsconfig.json"),
      JSON.stringify({ compilerOptions: { target: "es2022", module: "nodenext", strict: true, exactOptionalPropertyTypes: true, types: [], lib: ["es2022", "dom"] }, files: ["program.ts"] }),
    );
    run(join(root, "node_modules/.bin/tsc"), ["-p", "."], site);
    assert.equal(run("node", ["--input-type=module", "-e", 'const { seen } = await import("./program.js"); console.log(seen)'], site).trim(), "connectingconnectingfunctionfunction");
    run("node", ["--input-type=module", "-e", 'import.meta.resolve("@holdfast/live/ticker-worker")'], site);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});
