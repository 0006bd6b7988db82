// A page with one channel of each kind: announcements, a list of records, one
// record, a self-test's output and the time that is credited. Each says in words
// what it knows about its connection.
//
// In the address: site, where the channels are (host:port; absent: this page's
// own); token and access, for channels that ask for one; idle and window, other
// waits of the quiet channels in ms; channels, which of the five to open.

import { createLive, quiet, timing, type Live, type LiveOptions, type Receipt, type Status } from "@holdfast/live";

const asked = new URLSearchParams(location.search);
const base = `ws://${asked.get("site") ?? location.host}${asked.get("base") ?? "/holdfast"}`;
const wanted = asked.get("channels")?.split(",");

const clock = (wall: number) => new Date(wall).toLocaleTimeString();

/** What a person is told about a connection. */
const words = ({ state, proof, why, retryAt }: Status): string => {
  const last = proof > 0 ? `; last heard of at ${clock(proof)}` : "";
  switch (state) {
    case "connecting":
      return "connecting";
    case "live":
      return "connected";
    case "suspect":
      return `asking whether the connection still lives${last}`;
    case "reconnecting":
      return (retryAt < Infinity ? `connection lost, next attempt at ${clock(retryAt)}` : "connection lost, trying again") + last;
    case "offline":
      return `this device says that it has no network${last}`;
    case "ended":
      return "finished";
    case "refused":
      return `not allowed: ${why?.reason || why?.code}`;
  }
};

/** Opens one channel and keeps the words under its heading true. */
const open = (id: string, path: string, options: Partial<LiveOptions> = {}): { live: Live; article: HTMLElement } | undefined => {
  if (wanted && !wanted.includes(id)) return;
  const article = document.getElementById(id)!;
  const live = createLive({
    url: base + path,
    channel: { ...quiet, tracks: quiet.tracks.map((t) => ({ ...t, idle: Number(asked.get("idle") ?? t.idle), window: Number(asked.get("window") ?? t.window) })) },
    token: asked.get("token") ?? undefined,
    access: asked.get("access") ?? undefined,
    ...options,
  });
  const tell = () => {
    article.dataset.state = live.status.state;
    article.querySelector(".state")!.textContent = words(live.status);
  };
  live.subscribe(tell);
  tell();
  live.reopen();
  return { live, article };
};

const item = (text: string) => Object.assign(document.createElement("li"), { textContent: text });

// Announcements: every push is the whole state, so it replaces what is shown.
const said: Record<Receipt["state"], string> = {
  queued: "waiting for the connection",
  sent: "sent, not confirmed yet",
  confirmed: "done",
  expired: "not sent: too old. Acknowledge again",
  dropped: "not sent. Acknowledge again",
};
const receipts = new Map<string, Receipt>();
const announcements = open("announcements", "/inbox", {
  message: (m) => {
    if (!m.inbox) return;
    announcements!.article.querySelector("ul")!.replaceChildren(
      ...m.inbox.map(({ id, data }: { id: string; data: string }) => {
        const button = document.createElement("button");
        button.dataset.id = id;
        button.onclick = () =>
          receipts.set(id, announcements!.live.send({ op: "acknowledge", id }, { confirm: (n) => n.inbox && !n.inbox.some((o: { id: string }) => o.id == id) }));
        const li = item(data + " ");
        li.append(button);
        return li;
      }),
    );
    label();
  },
});
/** A button says what its receipt says, and can be pressed only where nothing was sent. */
const label = () => {
  for (const button of announcements!.article.querySelectorAll("button")) {
    const state = receipts.get(button.dataset.id!)?.state;
    button.textContent = state ? said[state] : "Acknowledge";
    button.disabled = state == "queued" || state == "sent" || state == "confirmed";
  }
};
announcements?.live.subscribe(label);

// Records: the server is told what the page looks at, again after each reconnect.
const records = new Map<string, string>();
const list = open("records", "/watch", {
  message: (m) => {
    if (!m.id) return;
    records.set(m.id, m.status);
    list!.article.querySelector("ul")!.replaceChildren(...[...records].sort().map(([id, status]) => item(`${id}: ${status}`)));
  },
});
list?.live.report("watch", { op: "watch", ids: ["a", "b"] });

// One record: ends by itself when it is judged; judged anew it can be opened again.
const record = open("record", "/detail?id=a", {
  message: (m) => {
    if (m.status) record!.article.querySelector("output")!.textContent = m.status;
  },
});
if (record) {
  const again = record.article.querySelector("button")!;
  again.onclick = record.live.reopen;
  record.live.subscribe(() => (again.hidden = record.live.status.state != "ended"));
}

// The self-test's output goes on from where this page is.
let position = 0;
const decoder = new TextDecoder();
const selftest = open("selftest", "/run", {
  message: ({ at, data, gap }) => {
    const shown = selftest!.article.querySelector("pre")!;
    if (gap) {
      shown.append(`\n… ${gap.to - gap.from} bytes are gone …\n`);
      position = gap.to;
    }
    if (data === undefined) return;
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    shown.append(decoder.decode(bytes, { stream: true }));
    position = at + bytes.length;
  },
});
selftest?.live.report("run", () => ({ op: "run", from: position }));

// The time at a problem is credited by the server while this page proves, every
// ten seconds and whenever it changes, that a person is there.
const lease = open("timing", "/lease", {
  channel: timing,
  message: (m) => {
    if (m.elapsed !== undefined) lease!.article.querySelector("output")!.textContent = `${Math.round(m.elapsed / 1e3)} s credited`;
  },
});
if (lease) {
  const report = () => lease.live.report("active", () => ({ active: document.visibilityState == "visible" }));
  report();
  setInterval(report, 1e4);
  document.addEventListener("visibilitychange", report);
}
