// A clock that runs only when told, sockets whose other end is the test, and a
// page that has nothing but events.

import type { LiveOptions, SocketLike } from "@holdfast/live";

interface Timer {
  id: number;
  at: number;
  f: () => void;
}

export class FakeClock {
  mono = 0;
  wall = Date.UTC(2026, 2, 1);
  #timers: Timer[] = [];
  #last = 0;

  readonly now = () => ({ mono: this.mono, wall: this.wall });
  readonly timers = {
    setTimeout: (f: () => void, ms = 0) => {
      this.#timers.push({ id: ++this.#last, at: this.mono + Math.max(ms, 0), f });
      return this.#last;
    },
    clearTimeout: (id: unknown) => {
      this.#timers = this.#timers.filter((t) => t.id != id);
    },
  };

  /** Lets time pass; every timer fires when it is due. */
  advance(ms: number) {
    const end = this.mono + ms;
    for (;;) {
      const next = this.#timers.reduce<Timer | undefined>((a, b) => (a && (a.at < b.at || (a.at == b.at && a.id < b.id)) ? a : b), undefined);
      if (!next || next.at > end) break;
      this.#move(Math.max(0, next.at - this.mono));
      this.timers.clearTimeout(next.id);
      next.f();
    }
    this.#move(end - this.mono);
  }

  /** The process is stopped: time passes on both clocks, and no timer fires. */
  stop(ms: number) {
    this.#move(ms);
  }

  /** The machine sleeps: only the wall clock goes on. */
  sleep(ms: number) {
    this.wall += ms;
  }

  get pending() {
    return this.#timers.length;
  }

  #move(ms: number) {
    this.mono += ms;
    this.wall += ms;
  }
}

export class FakeSocket implements SocketLike {
  onopen: SocketLike["onopen"] = null;
  onmessage: SocketLike["onmessage"] = null;
  onerror: SocketLike["onerror"] = null;
  onclose: SocketLike["onclose"] = null;
  readonly sent: string[] = [];
  /** Given up by the client. */
  closed = false;
  /** Its close event has been delivered; after that a WebSocket delivers nothing. */
  ended = false;
  broken = false;

  constructor(
    readonly url: string,
    readonly protocols: string[],
  ) {}

  get readyState(): number {
    throw new Error("readyState is no evidence and must not be read");
  }

  send(data: string) {
    if (this.broken) throw new Error("broken");
    this.sent.push(data);
  }

  /** As on a half-open link: it returns, and no event follows until the test sends one. */
  close() {
    this.closed = true;
  }

  open() {
    if (!this.ended) this.onopen?.({ type: "open" });
  }

  message(data: unknown) {
    if (!this.ended) this.onmessage?.({ type: "message", data: typeof data == "string" ? data : JSON.stringify(data) });
  }

  end(code = 1006, reason = "") {
    if (this.ended) return;
    if (code == 1006) this.onerror?.({ type: "error" });
    this.ended = true;
    this.onclose?.({ type: "close", code, reason });
  }
}

export class FakePage extends EventTarget {
  readonly document = Object.assign(new EventTarget(), { visibilityState: "visible" });

  fire(type: string, more: object = {}) {
    const target = type == "visibilitychange" || type == "resume" || type == "freeze" ? this.document : this;
    target.dispatchEvent(Object.assign(new Event(type), more));
  }

  show(state: "visible" | "hidden") {
    this.document.visibilityState = state;
    this.fire("visibilitychange");
  }
}

/** Everything from outside for one channel, and the sockets that it asked for. */
export const createSite = (more: Partial<LiveOptions> = {}) => {
  const clock = new FakeClock();
  const page = new FakePage();
  const sockets: FakeSocket[] = [];
  const messages: unknown[] = [];
  const options: LiveOptions = {
    url: "wss://site.example/feed",
    now: clock.now,
    timers: clock.timers,
    page,
    random: () => 0.5,
    message: (m) => messages.push(m),
    socket: (url, protocols = []) => {
      const s = new FakeSocket(url, protocols);
      sockets.push(s);
      return s;
    },
    ...more,
  };
  return {
    clock,
    page,
    sockets,
    messages,
    options,
    get socket() {
      return sockets.at(-1)!;
    },
  };
};
