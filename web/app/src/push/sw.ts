// The service worker: the page's own files, so that it opens without a network,
// and notifications while no page is open. A newer version is fetched beside the
// one in use and waits until no page is open any more: an update interrupts
// nobody. Nothing but the page's files ever passes through here.

import { cacheOf, left, windowsOf } from "./files.js";
import { keepPushChanged, pushDevice } from "./kept.js";
import { renew, type Renewal } from "./renew.js";
import { show, type Shown } from "./show.js";

declare const __VERSION_OF_FILES__: string;
declare const __FILES__: string[];

interface Waiting extends Event {
  waitUntil(p: Promise<unknown>): void;
}
interface Page {
  url: string;
  visibilityState: string;
  focus(): Promise<Page>;
  postMessage(m: unknown): void;
}
interface Scope {
  location: Location;
  registration: Parameters<typeof show>[0] & { pushManager: Pick<Renewal, "subscribe"> };
  clients: { matchAll(o: object): Promise<Page[]>; openWindow(url: string): Promise<unknown> };
  navigator: { setAppBadge?(n: number): Promise<void>; clearAppBadge?(): Promise<void> };
  addEventListener(type: string, f: (e: any) => void): void;
}
const scope = self as unknown as Scope;

const VERSION = __VERSION_OF_FILES__;
const FILES = __FILES__;
const root = new URL("./", scope.location.href).href;
const CACHE = cacheOf(root, VERSION);

scope.addEventListener("install", (e: Waiting) => {
  e.waitUntil(caches.open(CACHE).then((c) => c.addAll(FILES.map((f) => new Request(root + f, { cache: "no-cache" })))));
});

scope.addEventListener("activate", (e: Waiting) => {
  e.waitUntil(caches.keys().then((all) => Promise.all(left(all, root, VERSION).map((n) => caches.delete(n)))));
});

scope.addEventListener("fetch", (e: Event & { request: Request; respondWith(r: Promise<Response>): void }) => {
  const { request } = e;
  if (request.method != "GET" || !request.url.startsWith(root)) return;
  const name = request.url.slice(root.length).split(/[?#]/)[0]!;
  if (!FILES.includes(name)) return;
  e.respondWith(caches.open(CACHE).then((c) => c.match(root + name)).then((r) => r ?? fetch(request)));
});

const pages = async (): Promise<Page[]> => windowsOf(await scope.clients.matchAll({ type: "window", includeUncontrolled: true }), root);

const badge = (n: number): void => void (n ? scope.navigator.setAppBadge?.(n) : scope.navigator.clearAppBadge?.())?.catch(() => undefined);

/** One after the other: two at once would each see the notifications that the other is about to change. */
let queue: Promise<unknown> = Promise.resolve();

scope.addEventListener("push", (e: Waiting & { data: { text(): string } | null }) => {
  const text = e.data?.text();
  queue = queue.then(() => show(scope.registration, text, badge)).catch(() => undefined);
  e.waitUntil(queue);
});

scope.addEventListener("pushsubscriptionchange", (e: Waiting & { newSubscription?: unknown }) => {
  e.waitUntil(
    renew(!!e.newSubscription, {
      device: pushDevice,
      keepChanged: keepPushChanged,
      subscribe: (o) => scope.registration.pushManager.subscribe(o),
      async tell() {
        for (const page of await pages()) page.postMessage({ op: "renewed" });
      },
    }),
  );
});

scope.addEventListener("notificationclick", (e: Waiting & { notification: { data: Shown | null; close(): void } }) => {
  const { notification } = e;
  notification.close();
  const hash = notification.data?.hash ?? "#/";
  e.waitUntil(
    pages().then(async (all) => {
      const page = all.find((c) => c.visibilityState == "visible") ?? all[0];
      if (!page) return scope.clients.openWindow(root + hash);
      page.postMessage({ op: "go", hash });
      return page.focus();
    }),
  );
});
