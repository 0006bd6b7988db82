// The page's own files, so that it opens without a network. A newer version is
// fetched beside the one in use and waits until no page is open any more: an
// update interrupts nobody. Nothing but these files ever passes through here.

const VERSION = "__VERSION__";
const FILES = __FILES__;
const root = new URL("./", self.location).href;

self.addEventListener("install", (e) => {
  e.waitUntil(caches.open(VERSION).then((c) => c.addAll(FILES.map((f) => new Request(root + f, { cache: "no-cache" })))));
});

self.addEventListener("activate", (e) => {
  e.waitUntil(caches.keys().then((all) => Promise.all(all.filter((n) => n.startsWith("holdfast-") && n != VERSION).map((n) => caches.delete(n)))));
});

self.addEventListener("fetch", (e) => {
  const { request } = e;
  if (request.method != "GET" || !request.url.startsWith(root)) return;
  const name = request.url.slice(root.length).split(/[?#]/)[0];
  if (!FILES.includes(name)) return;
  e.respondWith(caches.open(VERSION).then((c) => c.match(root + name)).then((r) => r ?? fetch(request)));
});
