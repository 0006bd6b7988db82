// Real sockets and clocks for a client in Node, and waiting for what must come.

import { WebSocket } from "ws";

import { createLive, type Live, type LiveOptions, type SocketLike } from "@holdfast/live";
import { FakeClock } from "./fake.js";

/** Everything that a test has opened; closed by closeAll. */
const open = new Set<Live>();

export interface Client {
  live: Live;
  messages: any[];
  sockets: WebSocket[];
}

export const connect = (url: string, more: Partial<LiveOptions> = {}): Client => {
  const messages: any[] = [];
  const sockets: WebSocket[] = [];
  const live = createLive({
    url,
    message: (m) => messages.push(m),
    socket: (u, protocols) => {
      const s = new WebSocket(u, protocols);
      sockets.push(s);
      return s as unknown as SocketLike;
    },
    ...more,
  });
  open.add(live);
  live.reopen();
  return { live, messages, sockets };
};

export const closeAll = () => {
  for (const live of open) live.close();
  open.clear();
};

/**
 * Time that passes only when told, for client and server of one process that
 * talk over real sockets: however slow the machine is, what was sent arrives
 * before the next moment comes.
 */
export const driven = () => {
  const clock = new FakeClock();
  /** The shortest of the times under test is two seconds. */
  const step = 200;
  const pass = async (ms: number) => {
    for (let left = ms; left > 0; left -= step) {
      clock.advance(Math.min(step, left));
      // A round trip is a few turns of the event loop, a handshake some more.
      for (let turn = 0; turn < 5; turn++) await new Promise((done) => setImmediate(done));
      await pause(1);
    }
  };
  return {
    now: clock.now,
    timers: clock.timers,
    pass,
    after: (ms: number) => new Promise<void>((done) => void clock.timers.setTimeout(done, ms)),
    async until(what: string, holds: () => unknown, ms = 600_000) {
      for (const end = clock.mono + ms; !holds(); await pass(step)) if (clock.mono > end) throw new Error(`never: ${what}`);
    },
  };
};

export type Driven = ReturnType<typeof driven>;

/** Waits until something holds; what says in words what never did. Generous, because it is no measurement. */
export const until = async (what: string, holds: () => unknown, ms = 15_000) => {
  const end = performance.now() + ms;
  while (!holds()) {
    if (performance.now() > end) throw new Error(`never: ${what}`);
    await new Promise((done) => setTimeout(done, 5));
  }
};

export const pause = (ms: number) => new Promise<void>((done) => setTimeout(done, ms));
