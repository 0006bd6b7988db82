// One client, named in the address, with the settings that its own documentation
// starts with. Every message of the site is a number, the moment at which it was
// sent; window.got holds the newest.

import { Centrifuge } from "centrifuge";
import PartySocket from "partysocket/ws";
import { Socket } from "phoenix";
import ReconnectingWebSocket from "reconnecting-websocket";
import RobustWebSocket from "robust-websocket";
import Sockette from "sockette";
import heartbeat from "websocket-heartbeat-js";
import { ConstantBackoff, WebsocketBuilder } from "websocket-ts";

import { createLive, quiet, timing, type Channel } from "@holdfast/live";

// It is published as CommonJS whose default has a default.
const WebsocketHeartbeat = heartbeat.default;

declare global {
  var got: number;
}

globalThis.got = 0;

const asked = new URLSearchParams(location.search);
const url = `ws://${asked.get("site")}`;

const take = (data: unknown) => {
  const at = Number(data);
  if (at > 0) globalThis.got = at;
};
const plain = (e: { data: unknown }) => take(e.data);

const ours = (channel: Channel) => {
  const live = createLive({ url: url + "/holdfast", channel, message: (m) => take(m.at) });
  live.reopen();
  return live;
};

const clients: Record<string, () => unknown> = {
  "@holdfast/live, quiet": () => ours(quiet),
  "@holdfast/live, timing": () => {
    const live = ours(timing);
    const report = () => live.report("active", { active: true });
    report();
    setInterval(report, 10_000);
  },
  centrifuge: () => {
    const client = new Centrifuge(url + "/centrifuge");
    client.on("publication", (c) => take(c.data));
    client.connect();
  },
  partysocket: () => new PartySocket(url + "/plain").addEventListener("message", plain as any),
  phoenix: () => {
    const socket = new Socket(url + "/phoenix");
    socket.connect();
    const channel = socket.channel("news", {});
    channel.on("tick", ({ at }: { at: number }) => take(at));
    channel.join();
  },
  "reconnecting-websocket": () => new (ReconnectingWebSocket as any)(url + "/plain").addEventListener("message", plain),
  "robust-websocket": () => new RobustWebSocket(url + "/plain").addEventListener("message", plain),
  sockette: () => new Sockette(url + "/plain", { onmessage: plain }),
  "websocket-heartbeat-js": () => Object.assign(new WebsocketHeartbeat({ url: url + "/plain" }), { onmessage: plain }),
  "websocket-ts": () =>
    new WebsocketBuilder(url + "/plain")
      .withBackoff(new ConstantBackoff(1_000))
      .onMessage((_, e) => plain(e))
      .build(),
};

clients[asked.get("client")!]!();
