// Real sockets and clocks for a client in Node, and waiting for what must come.

import { WebSocket } from "ws";

import { createLive, type Live, type LiveOptions, type SocketLike } from "@holdfast/live";

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

/** Time that runs a number of times faster, for client and server alike. */
export const faster = (factor: number) => ({
  now: () => ({ mono: performance.now() * factor, wall: Date.now() * factor }),
  timers: {
    setTimeout: (f: () => void, ms = 0) => setTimeout(f, ms / factor),
    clearTimeout: (id: any) => clearTimeout(id),
  },
});

/** Waits until something holds; what says in words what never did. Generous, because it is no measurement. */
export const until = async (what: string, holds: () => unknown, ms = 15_000) => {
  const end = performance.now() + ms;
  while (!holds()) {
    if (performance.now() > end) throw new Error(`never: ${what}`);
    await new Promise((done) => setTimeout(done, 5));
  }
};

export const pause = (ms: number) => new Promise<void>((done) => setTimeout(done, ms));
