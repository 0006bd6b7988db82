// The sites of the clients: each speaks its client's protocol, tells the time
// four times a second and answers what it is asked.

import type { AddressInfo } from "node:net";
import { WebSocket, WebSocketServer } from "ws";

interface Protocol {
  /** A message of the site as this protocol says it. */
  tick(at: number): string;
  /** Says what to answer; undefined: nothing. */
  answer(text: string, c: WebSocket): string | undefined;
  opened?(c: WebSocket): void;
}

/** How often the sites say something; the figures are no finer. */
const TICK = 250;

/** Centrifugo's own interval, which its clients are told. */
const CENTRIFUGE_PING = 25;

const protocols: Record<string, Protocol> = {
  "/plain": {
    tick: String,
    answer: (text) => (text == "heartbeat" ? "ok" : undefined),
  },
  "/holdfast": {
    tick: (at) => JSON.stringify({ at }),
    answer: (text) => (text == '{"op":"ping"}' ? '{"op":"pong"}' : '{"total":1}'),
    opened: (c) => c.send('{"ready":true}'),
  },
  "/centrifuge": {
    tick: (at) => JSON.stringify({ push: { channel: "news", pub: { data: at } } }),
    answer(text, c) {
      const replies = text.split("\n").flatMap((line) => {
        const { id, connect } = JSON.parse(line);
        return connect ? [JSON.stringify({ id, connect: { client: "c", version: "1", ping: CENTRIFUGE_PING, pong: true, subs: { news: {} } } })] : [];
      });
      if (!replies.length) return undefined;
      const ping = setInterval(() => c.send("{}"), CENTRIFUGE_PING * 1_000);
      c.on("close", () => clearInterval(ping));
      return replies.join("\n");
    },
  },
  "/phoenix/websocket": {
    tick: (at) => JSON.stringify([null, null, "news", "tick", { at }]),
    answer(text) {
      const [join, ref, topic] = JSON.parse(text);
      return JSON.stringify([join, ref, topic, "phx_reply", { status: "ok", response: {} }]);
    },
  },
};

export interface Servers {
  address: string;
  /** Closes every connection with a code, and goes on serving. */
  close(code: number, reason: string): void;
  stop(): void;
}

export const startServers = async (): Promise<Servers> => {
  const server = new WebSocketServer({ host: "127.0.0.1", port: 0 });
  await new Promise((done) => server.once("listening", done));
  const open = new Map<WebSocket, Protocol>();
  server.on("connection", (c, request) => {
    const protocol = protocols[request.url!.split("?")[0]!];
    if (!protocol) return c.terminate();
    open.set(c, protocol);
    c.on("error", () => c.terminate());
    c.on("close", () => open.delete(c));
    c.on("message", (raw) => {
      const answer = protocol.answer(String(raw), c);
      if (answer !== undefined) c.send(answer);
    });
    protocol.opened?.(c);
  });
  const ticks = setInterval(() => {
    for (const [c, { tick }] of open) if (c.readyState == WebSocket.OPEN) c.send(tick(Date.now()));
  }, TICK);
  return {
    address: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: (code, reason) => {
      for (const c of open.keys()) c.close(code, reason);
    },
    stop() {
      clearInterval(ticks);
      for (const c of open.keys()) c.terminate();
      server.close();
    },
  };
};
