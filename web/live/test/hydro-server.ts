// A server that behaves as Hydro's framework does on the wire: the upgrade is
// accepted before anything is checked, the socket is not read until prepare has
// ended, heartbeats are the texts ping and pong, and a reason that is too long
// for a close frame leaves a connection that is open and mute for ever.

import type { AddressInfo } from "node:net";
import { WebSocket, WebSocketServer } from "ws";

import type { Driven } from "./real.js";

/** Hydro's own times in ms. */
const HEARTBEAT = 40_000;
const ASK_AFTER = 30_000;
const GIVE_UP_AFTER = 80_000;

export interface HydroHandler {
  /** Authorises and sends the first state. An error refuses the connection. */
  prepare?(c: WebSocket): Promise<void> | void;
  message?(c: WebSocket, payload: any): void;
}

export class HydroServer {
  readonly connections: WebSocket[] = [];
  /** Frames of clients, as they were processed. */
  readonly received: string[] = [];
  pings = 0;
  /** A half-open link: nothing is read or sent any more, and nothing closed. */
  mute = false;
  #server: WebSocketServer;

  private constructor(
    server: WebSocketServer,
    readonly routes: Record<string, HydroHandler>,
    readonly time: Driven,
  ) {
    this.#server = server;
    server.on("connection", (c, request) => void this.#serve(c, request.url!.split("?")[0]!));
  }

  static async start(routes: Record<string, HydroHandler>, time: Driven) {
    const server = new WebSocketServer({ host: "127.0.0.1", port: 0 });
    await new Promise((done) => server.once("listening", done));
    return new HydroServer(server, routes, time);
  }

  get url() {
    return `ws://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  stop() {
    for (const c of this.connections) c.terminate();
    this.#server.close();
  }

  async #serve(c: WebSocket, path: string) {
    this.connections.push(c);
    c.on("error", () => c.terminate());
    c.pause();
    const handler = this.routes[path];
    if (!handler) return c.close();
    try {
      await handler.prepare?.(c);
    } catch (e) {
      const { name, message } = e as Error;
      c.send(JSON.stringify({ error: { name, params: [message] } }));
      try {
        c.close(4000, `${name}: ${message}`);
      } catch {
        // The reason does not fit: nobody looks at this connection again.
      }
      return;
    }

    const { now, timers } = this.time;
    let last = now().mono;
    let beat: unknown;
    const heartbeat = () => {
      beat = timers.setTimeout(heartbeat, HEARTBEAT);
      const silence = now().mono - last;
      if (this.mute) return;
      if (silence > GIVE_UP_AFTER) c.terminate();
      else if (silence > ASK_AFTER) {
        this.pings++;
        c.send("ping");
      }
    };
    beat = timers.setTimeout(heartbeat, HEARTBEAT);
    c.on("close", () => timers.clearTimeout(beat));
    c.on("pong", () => (last = now().mono));
    c.on("message", (raw) => {
      if (this.mute) return;
      last = now().mono;
      const text = String(raw);
      this.received.push(text);
      if (text == "ping") c.send("pong");
      else if (text != "pong") {
        let payload;
        try {
          payload = JSON.parse(text);
        } catch {
          c.close();
        }
        handler.message?.(c, payload);
      }
    });
    c.resume();
  }
}
