// The example page in Chromium, with the numbers that are shipped, through every
// fault: what the person sees, and how long until the page is in sync again.
// Each has a server and a proxy of its own, so they run side by side; most of
// the time all of them wait.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import type { Browser } from "playwright-core";
import { WebSocket } from "ws";

import { createLive, type SocketLike } from "@holdfast/live";
import { buildSite, startSite, type Site } from "../../live/test/site.js";
import { launch, missing, Window, type Tab } from "./chromium.js";

const here = fileURLToPath(new URL("../", import.meta.url));

/** What a loaded machine adds to a time that is otherwise bounded. */
const SLACK = 6_000;
/** The longest first wait before a reconnect, plus the connect itself. */
const RECONNECT = 3_000 + 1_000;

const pause = (ms: number) => new Promise<void>((done) => setTimeout(done, ms));

const ALL = ["announcements", "records", "record", "selftest", "timing"];

let browser: Browser;
let binary: string;

/** A page on a site of its own. */
class Desk {
  readonly tabs: Tab[] = [];

  constructor(
    readonly site: Site,
    readonly window: Window,
    readonly channels: string[],
  ) {}

  get tab(): Tab {
    return this.tabs[0]!;
  }

  url(more: Record<string, string> = {}): string {
    // Questions about tokens take the same path as the sockets.
    if (more.token) more = { ...more, access: `http://${this.site.proxy}/v1/access` };
    return `http://${this.site.control}/?${new URLSearchParams({ site: this.site.proxy, channels: this.channels.join(), ...more })}`;
  }

  state(channel: string, tab = this.tab): Promise<string> {
    return tab.text(`#${channel} .state`);
  }

  /** Waits until something is seen; how long it took, in ms. */
  async sees(what: string, look: () => Promise<unknown>, within: number): Promise<number> {
    const from = performance.now();
    for (;;) {
      const seen = await look();
      const took = performance.now() - from;
      assert.ok(took <= within + SLACK, `${what}: not within ${within} ms`);
      if (seen) return took;
      await pause(50);
    }
  }

  says(channel: string, words: RegExp, within: number, tab = this.tab): Promise<number> {
    return this.sees(`${channel} says ${words}`, async () => words.test(await this.state(channel, tab)), within);
  }

  /** All of its channels are connected. */
  async connected(within: number, tab = this.tab): Promise<number> {
    return this.sees(
      "every channel says connected",
      async () => (await Promise.all(this.channels.map((c) => this.state(c, tab)))).every((s) => s == "connected"),
      within,
    );
  }

  /** Changes everything on the server, and sees it on the page. */
  async inSync(mark: string, within: number, tab = this.tab): Promise<number> {
    const { site } = this;
    const status = `judging ${mark}`;
    await site.order("post", { id: `${Date.now()}-${mark}`, text: `news ${mark}` });
    await site.order("set", { id: "a", status });
    await site.order("write", { text: `line ${mark}\n` });
    return this.shows(mark, within, tab);
  }

  shows(mark: string, within: number, tab = this.tab): Promise<number> {
    const shown: Record<string, string> = { announcements: `news ${mark}`, records: `a: judging ${mark}`, record: `judging ${mark}`, selftest: `line ${mark}` };
    return this.sees(
      `all that is new (${mark})`,
      async () =>
        (await Promise.all(this.channels.map(async (c) => c == "timing" || (await tab.text(`#${c}`)).includes(shown[c]!)))).every(Boolean),
      within,
    );
  }
}

interface Setting {
  channels?: string[];
  /** Flags of the server. */
  flags?: string[];
  /** More in the page's address. */
  page?: Record<string, string>;
  /** Runs before the page. */
  script?: string;
  pages?: number;
  /** Before any page is opened. */
  first?(site: Site): Promise<void>;
}

/** Pages are opened one after the other: starting one takes a browser more than all that comes after. */
let opening = Promise.resolve();
const inTurn = <T>(f: () => Promise<T>): Promise<T> => {
  const result = opening.then(f);
  opening = result.then(
    () => undefined,
    () => undefined,
  );
  return result;
};

/** A test with pages that are open; whether they are connected is its own business. */
const desk = (name: string, setting: Setting, run: (d: Desk) => Promise<void>) =>
  test(name, async () => {
    const site = await startSite(binary, "-files", `${here}build/page`, ...(setting.flags ?? []));
    const window = await Window.open(browser);
    try {
      await setting.first?.(site);
      const d = new Desk(site, window, setting.channels ?? ALL);
      await inTurn(async () => {
        for (let i = 0; i < (setting.pages ?? 1); i++) {
          const tab = await window.tab(d.url(setting.page), setting.script);
          await d.sees("a page", async () => (await d.state(d.channels[0]!, tab).catch(() => "")) != "", 60_000);
          d.tabs.push(tab);
        }
      });
      await run(d);
    } finally {
      await window.close().catch(() => undefined);
      site.stop();
    }
  });

describe("the page in Chromium", { concurrency: 32, skip: missing() }, () => {
  before(async () => {
    binary = buildSite(fileURLToPath(new URL("../../live/", import.meta.url)));
    browser = await launch();
  });
  after(() => browser?.close());

  for (const dir of ["both", "up", "down"]) {
    desk(`half-open, ${dir == "both" ? "both ways" : `mute ${dir}wards`}: the lease is saved within 20 s, quiet channels are replaced after 130 s`, {}, async (d) => {
      await d.connected(5_000);
      await pause(11_000); // a report, so that there is a lease to save
      await d.site.fault("stall", { dir });
      const from = performance.now();
      await d.site.order("post", { id: "n1", text: "news missed" });
      await d.site.order("set", { id: "a", status: "judging missed" });
      await d.site.order("write", { text: "line missed\n" });
      await d.says("timing", /^(asking|connection lost)/, 17_000);
      await d.says("timing", /^connected$/, 20_000 + RECONNECT - (performance.now() - from));
      const credit = await d.sees("a report", async () => d.site.look<number>("credit"), 1_000).then(() => d.site.look<number>("credit"));
      const spent = performance.now() - from + 11_000;
      assert.ok(credit > 0 && credit <= spent + SLACK, `${credit} ms credited of ${spent}`);
      // Quiet channels: the question at 120 s, the verdict at 130 s. Where the
      // server cannot hear the page, it gives it up after 62.5 s and says so.
      if (dir != "up") await d.says("announcements", /^asking whether the connection still lives; last heard of at /, 121_000);
      await d.connected(130_000 + RECONNECT - (performance.now() - from));
      await d.shows("missed", 1_000);
      // The old links come back to life and end: nobody minds.
      const { accepted } = await d.site.path();
      await d.site.fault("resume");
      await pause(3_000);
      await d.connected(0);
      assert.equal((await d.site.path()).accepted, accepted, "late events of old sockets dial nothing");
    });
  }

  desk("hidden for 85 s, in a browser that is free to throttle: no healthy link is replaced, and a dead one is noticed in time", { page: { idle: "10000", window: "5000" }, channels: ["announcements", "records"] }, async (d) => {
    await d.connected(5_000);
    const { accepted } = await d.site.path();
    const front = await d.window.tab("about:blank");
    await front.show();
    await d.sees("hidden", async () => (await d.tab.value("document.visibilityState")) == "hidden", 3_000);
    await pause(85_000);
    assert.equal((await d.site.path()).accepted, accepted, "no healthy link was replaced");
    await d.connected(0);
    await d.site.order("post", { id: "n1", text: "news hidden" });
    await d.sees("what came while hidden", async () => (await d.tab.text("#announcements")).includes("news hidden"), 2_000);
    await d.site.fault("stall");
    const from = performance.now();
    await d.site.order("post", { id: "n2", text: "news muted" });
    await d.sees("a new link, while hidden", async () => (await d.site.path()).accepted > accepted, 15_000 + RECONNECT);
    await d.sees("what was missed", async () => (await d.tab.text("#announcements")).includes("news muted"), 15_000 + RECONNECT - (performance.now() - from));
    await d.tab.show();
    await d.connected(15_000 + RECONNECT);
  });

  desk("idle links reclaimed without FIN, 300 s compressed to 15 s: keepalive below the limit keeps every channel", { flags: ["-keepalive", "6s"], first: (s) => s.fault("reclaim-idle", { limit: "15s", to: "every" }) }, async (d) => {
    await d.connected(5_000);
    const { accepted } = await d.site.path();
    await pause(40_000);
    await d.connected(0);
    await d.inSync("kept", 2_000);
    assert.equal((await d.site.path()).accepted, accepted, "no link was replaced");
  });

  desk(
    "idle links reclaimed without FIN and without keepalive: each is asked when the page's own time has come, and replaced",
    // 300 s of the path, 400 + 10 s of the page, compressed by 20.
    { flags: ["-keepalive", "-1s"], channels: ["announcements", "records"], page: { idle: "20000", window: "4000" }, first: (s) => s.fault("reclaim-idle", { limit: "15s", to: "every" }) },
    async (d) => {
      await d.connected(5_000);
      const { accepted } = await d.site.path();
      const from = performance.now();
      await pause(16_000);
      assert.equal(await d.state("announcements"), "connected", "nothing can be known yet");
      await d.site.order("post", { id: "n1", text: "news reclaimed" });
      await d.says("announcements", /^(asking|connection lost)/, 24_000 - (performance.now() - from));
      await d.site.fault("disarm");
      await d.connected(24_000 + RECONNECT - (performance.now() - from));
      await d.sees("what was missed", async () => (await d.tab.text("#announcements")).includes("news reclaimed"), 1_000);
      assert.ok((await d.site.path()).accepted >= accepted + 2);
    },
  );

  desk("a handshake that nobody answers: given up after 10 s, and tried again", { first: (s) => s.fault("stall", { dir: "down", to: "every" }) }, async (d) => {
    await d.says("announcements", /^connecting$/, 5_000);
    const from = performance.now();
    await pause(5_000);
    await d.site.fault("disarm");
    await d.says("announcements", /^connection lost, /, 10_000);
    await d.connected(10_000 + RECONNECT - (performance.now() - from));
    await d.inSync("answered", 2_000);
  });

  desk("frozen for 8 s and thawed: in sync within 5 s, with what was missed", {}, async (d) => {
    await d.connected(5_000);
    await d.tab.freeze(true);
    await pause(8_000);
    await d.site.order("post", { id: "n1", text: "news frozen" });
    await d.site.order("set", { id: "a", status: "judging frozen" });
    await d.site.order("write", { text: "line frozen\n" });
    await d.tab.freeze(false);
    await d.shows("frozen", 5_000);
    await d.connected(1_000);
  });

  desk("left and come back to (back-forward cache): in sync within 3 s", { script: "addEventListener('pageshow', (e) => (window.restored = e.persisted))" }, async (d) => {
    await d.connected(5_000);
    await d.site.order("write", { text: "first\n" });
    await d.sees("output", async () => (await d.tab.text("#selftest pre")) == "first", 2_000);
    await d.tab.send("Page.navigate", { url: `http://${d.site.control}/elsewhere.html` });
    await d.sees("the other page", async () => (await d.tab.value("document.title")) == "Elsewhere", 5_000);
    await pause(2_000);
    await d.site.order("post", { id: "n1", text: "news cached" });
    await d.site.order("set", { id: "a", status: "judging cached" });
    await d.site.order("write", { text: "line cached\n" });
    await d.tab.back();
    await d.sees("the page from the cache", async () => (await d.tab.value("window.restored")) == true, 5_000);
    await d.shows("cached", 3_000);
    assert.equal(await d.tab.text("#selftest pre"), "first\nline cached", "the output went on from where the page was");
    await d.connected(1_000);
  });

  desk("offline for 4 s: the page says so, and goes on with the same links", {}, async (d) => {
    await d.connected(5_000);
    const { accepted } = await d.site.path();
    await d.tab.offline(true);
    await d.says("announcements", /^this device says that it has no network; last heard of at /, 2_000);
    await d.site.order("post", { id: "n1", text: "news offline" });
    await d.site.order("set", { id: "a", status: "judging offline" });
    await d.site.order("write", { text: "line offline\n" });
    await pause(4_000);
    await d.tab.offline(false);
    await d.connected(2_000);
    await d.shows("offline", 3_000);
    assert.equal((await d.site.path()).accepted, accepted, "nothing was closed");
  });

  desk(
    "the wall clock steps an hour on and a day back: nothing is replaced, and a dead link is still noticed",
    { channels: ["announcements", "timing"], script: "{ const now = Date.now; window.step = 0; Date.now = () => now() + window.step; }" },
    async (d) => {
      await d.connected(5_000);
      const { accepted } = await d.site.path();
      await d.tab.value("window.step += 3_600_000");
      await pause(12_000);
      await d.connected(0);
      await d.tab.value("window.step -= 86_400_000");
      await pause(12_000);
      await d.connected(0);
      assert.equal((await d.site.path()).accepted, accepted, "no healthy link was replaced");
      await d.site.fault("stall");
      const from = performance.now();
      await d.says("timing", /^(asking|connection lost)/, 20_000);
      await d.says("timing", /^connected$/, 20_000 + RECONNECT - (performance.now() - from));
    },
  );

  desk("a restart under five pages and 295 clients: all are back within 10 s, spread, and in sync", { pages: 5 }, async (d) => {
    for (const tab of d.tabs) await d.connected(10_000, tab);
    const back: number[] = [];
    const clients = Array.from({ length: 295 }, () => {
      let readies = 0;
      const live = createLive({
        url: `ws://${d.site.proxy}/holdfast/inbox`,
        socket: (url, protocols) => new WebSocket(url, protocols) as unknown as SocketLike,
        ready: () => readies++ && back.push(performance.now()),
      });
      live.reopen();
      return live;
    });
    try {
      await d.sees("all clients", async () => clients.every((c) => c.status.state == "live"), 15_000);
      const from = performance.now();
      await d.site.order("restart", { spread: "5s", down: "500ms" });
      await d.sees("all clients again", async () => clients.every((c) => c.status.state == "live") && back.length >= 295, 10_000);
      for (const tab of d.tabs) await d.connected(10_000 + RECONNECT - (performance.now() - from), tab);
      for (const tab of d.tabs) await d.inSync(`restart ${d.tabs.indexOf(tab)}`, 2_000, tab);
      const seconds = new Map<number, number>();
      for (const t of back) seconds.set(Math.floor((t - from) / 1_000), (seconds.get(Math.floor((t - from) / 1_000)) ?? 0) + 1);
      // A wave would be all of them in the first second that the server is there.
      assert.ok(Math.max(...seconds.values()) < 295 / 2, `by second: ${JSON.stringify([...seconds])}`);
    } finally {
      for (const c of clients) c.close();
    }
  });

  desk(
    "the server dies and is away for 3 s: back within 15 s",
    {},
    async (d) => {
      await d.connected(5_000);
      await d.site.fault("refuse", { to: "every" });
      await d.site.fault("cut");
      await d.says("announcements", /^connection lost, next attempt at .*last heard of at /, 2_000);
      await d.site.order("post", { id: "n1", text: "news died" });
      await pause(3_000);
      await d.site.fault("disarm");
      await d.connected(15_000);
      await d.sees("what was missed", async () => (await d.tab.text("#announcements")).includes("news died"), 1_000);
    },
  );

  desk(
    "an error frame, then silence for ever: the page says why, and stops",
    // The close behind the error never arrives, nor anything else.
    { channels: ["announcements"], page: { base: "/holdfast/refused?code=0&" }, first: (s) => s.fault("stall", { dir: "down", frame: "2", to: "every" }) },
    async (d) => {
      await d.says("announcements", /^not allowed: PermissionError$/, 3_000);
      const { accepted } = await d.site.path();
      await pause(20_000);
      assert.equal((await d.site.path()).accepted, accepted);
      assert.equal(await d.state("announcements"), "not allowed: PermissionError");
    },
  );

  desk("an accepted socket on which nothing ever comes: given up after 15 s", { channels: ["announcements", "records"], first: (s) => s.fault("stall", { dir: "down", frame: "1", to: "every" }) }, async (d) => {
    await d.says("announcements", /^connecting$/, 5_000);
    const from = performance.now();
    await pause(5_000);
    await d.site.fault("disarm");
    await d.says("announcements", /^connection lost, /, 15_000);
    await d.connected(15_000 + RECONNECT - (performance.now() - from));
  });

  desk("a refused token: the page asks why, says it, and stops", { channels: ["announcements"], page: { base: "/holdfast/guarded?", token: "hf_old" } }, async (d) => {
    await d.says("announcements", /^not allowed: token-revoked$/, 5_000);
    const { accepted, asked } = await d.site.path();
    assert.equal(asked, 1, "it asked once");
    await pause(20_000);
    assert.deepEqual(await d.site.path(), { accepted, asked, links: (await d.site.path()).links }, "it does not come back");
  });

  desk("a good token goes out as a subprotocol, and nobody is asked", { channels: ["announcements"], page: { base: "/holdfast/guarded?", token: "hf_good" } }, async (d) => {
    await d.connected(5_000);
    assert.equal((await d.site.path()).asked, 0, "who is let in asks nobody");
  });

  desk("a healthy page: five channels, state on open, changes, an acknowledgement from button to receipt", {}, async (d) => {
    await d.connected(5_000);
    await d.inSync("one", 2_000);
    await d.sees("the button", async () => (await d.tab.text("#announcements button")) == "Acknowledge", 1_000);
    await d.tab.click("#announcements button");
    await d.sees("nothing unread", async () => (await d.tab.text("#announcements ul")) == "", 2_000);
    await d.site.order("set", { id: "a", status: "accepted" });
    await d.sees("the end of the record", async () => (await d.state("record")) == "finished", 3_000);
    await d.site.order("set", { id: "a", status: "judging again" });
    await d.tab.click("#record button");
    await d.sees("the record, judged anew", async () => (await d.tab.text("#record output")) == "judging again", 3_000);
  });
});
