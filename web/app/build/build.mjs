// Builds the page into dist/ and puts it where the Go program embeds it:
//
//   node build/build.mjs          build, say the digest, copy to internal/webapp/dist
//   node build/build.mjs --size   build, and say how large it is; fails over a limit
//
// The same sources give the same bytes: no time, no path and no machine is in
// them. The digest that the page shows is over all of its files.

import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join, posix, relative } from "node:path";
import { brotliCompressSync, constants } from "node:zlib";
import { build as bundle } from "esbuild";
import { build } from "vite";

const dist = "dist";
const embedded = "../../internal/webapp/dist";

process.env.NODE_ENV = "production";
await build({ logLevel: "warn" });

// What the first list of sessions waits for comes with the page, or is asked for
// together with its script: each file that only another one names costs a phone a
// round trip more, and one beside the first a connection more.
{
  const at = join(dist, "index.html");
  const links = [];
  let text = readFileSync(at, "utf8").replace(/<link rel="stylesheet" [^>]*href="\.\/(assets\/[^"]+)">/, (_, n) => {
    const style = readFileSync(join(dist, n), "utf8").trim();
    if (/<\/style|url\(/i.test(style)) throw new Error(`${n} cannot stand in the page`);
    rmSync(join(dist, n));
    return `<style>${style}</style>`;
  });
  for (const n of readdirSync(join(dist, "assets"))) if (/^(worker|mlkem)-.*\.js$/.test(n)) links.unshift(`<link rel="modulepreload" href="./assets/${n}">`);
  if (!text.includes("<style>") || links.length != 2) throw new Error("the page's style, its Worker or ML-KEM is not where it was");
  writeFileSync(at, text.replace("</head>", `${links.join("\n    ")}\n  </head>`));
}

const files = (dir) => readdirSync(dir, { withFileTypes: true }).flatMap((f) => (f.isDirectory() ? files(join(dir, f.name)) : [join(dir, f.name)]));
const names = files(dist).map((f) => relative(dist, f).replaceAll("\\", "/")).sort();
const sha256 = (b) => createHash("sha256").update(b).digest("hex");

// The service worker names all other files, and is named after what is in them.
const built = await bundle({
  entryPoints: ["src/push/sw.ts"], bundle: true, write: false, minify: true, format: "iife", target: "es2022", charset: "utf8",
  define: { __VERSION_OF_FILES__: '"@VERSION@"', __FILES__: '"@FILES@"' },
});
const worker = built.outputFiles[0].text;
const version = sha256(names.map((n) => `${sha256(readFileSync(join(dist, n)))}  ${n}\n`).join("") + worker).slice(0, 16);
writeFileSync(join(dist, "sw.js"), worker.replaceAll("@VERSION@", version).replaceAll('"@FILES@"', JSON.stringify(["", ...names.filter((n) => n != "index.html")])));
names.push("sw.js");
names.sort();

// Over names and contents, index.html with its own digest left empty.
const digest = "sha256:" + sha256(names.map((n) => `${sha256(readFileSync(join(dist, n)))}  ${n}\n`).join(""));
// Nothing stands in the page before its script has run: a picture of that costs
// a slow phone a quarter of a second, for which the script would wait.
const page = readFileSync(join(dist, "index.html"), "utf8").replace('<script type="module" ', '<script type="module" blocking="render" ');
if (!page.includes('blocking="render"')) throw new Error("index.html has no script of its own");
const marked = page.replace(/(<meta name="holdfast-digest" content=")(")/, `$1${digest}$2`);
if (marked == page) throw new Error("index.html has no place for its digest");
writeFileSync(join(dist, "index.html"), marked);

const brotli = (b) => brotliCompressSync(b, { params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_LGWIN]: 22, [constants.BROTLI_PARAM_SIZE_HINT]: b.length } });
const sizes = {};
for (const n of names) {
  const plain = readFileSync(join(dist, n));
  const small = brotli(plain);
  sizes[n] = small.length;
  if (small.length < plain.length * 0.9) writeFileSync(join(dist, n + ".br"), small);
}

if (process.argv.includes("--size")) {
  // Whatever the bundler has put apart for two of them is part of each: what a
  // file imports is fetched with it.
  const imports = (n) => (n.endsWith(".js") ? [...readFileSync(join(dist, n), "utf8").matchAll(/\b(?:from|import)\s*"\.\/([^"]+)"/g)].map((m) => posix.join(posix.dirname(n), m[1])) : []);
  const whole = (first) => {
    const all = new Set(first);
    for (const n of all) for (const i of imports(n)) all.add(i);
    return all;
  };
  const sum = (all, without = new Set()) => [...all].filter((n) => !without.has(n)).reduce((s, n) => s + sizes[n], 0);
  const called = (pattern) => whole(names.filter((n) => pattern.test(n)));
  // The page itself, and every file that it names; not the pictures for a home
  // screen, which a browser fetches when the page is put there.
  const opened = whole(names.filter((n) => (!n.includes("/") && !n.endsWith(".png")) || marked.includes(n)));
  const [worker, kem] = [called(/^assets\/worker-/), called(/^assets\/mlkem-/)];
  // The page asks for these two early, for the Worker.
  const shell = sum(opened, new Set([...worker, ...kem]));
  const terminal = sum(called(/^assets\/terminal-/), opened);
  const session = sum(called(/^assets\/session-/), opened);
  let failed = false;
  // In bytes of brotli. The first load is what a person waits for who opens a
  // link and a terminal on a phone: WebGL and other languages are not in it.
  for (const [what, bytes, limit] of [
    ["app shell", shell, 45_000],
    ["Worker, SSH core in it", sum(worker), 22_000],
    ["ML-KEM, when a server offers it", sum(kem), 12_000],
    ["terminal: xterm, addons, style and view", terminal, 90_000],
    ["session: conversation, Markdown and composer", session, 30_000],
    ["first load", shell + sum(worker) + sum(kem) + terminal, 180_000],
  ]) {
    console.log(`${what}: ${bytes} bytes of at most ${limit}, brotli`);
    if (!bytes || bytes > limit) failed = true;
  }
  process.exit(failed ? 1 : 0);
}

// A folder that is half written is never embedded: index.html comes last.
mkdirSync(embedded, { recursive: true });
for (const n of readdirSync(embedded)) if (n != "README") rmSync(join(embedded, n), { recursive: true });
const order = files(dist).sort((a, b) => Number(a.includes("index.html")) - Number(b.includes("index.html")));
for (const f of order) {
  mkdirSync(join(embedded, relative(dist, f), ".."), { recursive: true });
  cpSync(f, join(embedded, relative(dist, f)));
}
const bytes = names.reduce((s, n) => s + statSync(join(dist, n)).size, 0);
console.log(`page: ${names.length} files, ${bytes} bytes, ${digest}`);
