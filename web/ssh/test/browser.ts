// Chromium with the client in a Worker, and a server that carries WebSockets to
// SSH servers as a relay would.

import { existsSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

import { chromium } from "playwright-core";
import { WebSocketServer } from "ws";

import type { Transport } from "@holdfast/ssh";

const program = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find((path) => path && existsSync(path));

/** Why tests in Chromium are skipped, or undefined where they are not. */
export const noChromium = program || process.env.HOLDFAST_TEST_ALL == "1" ? undefined : "there is no Chromium here";

export const rawBytes = 1600 * 32_768;

/** Bytes and nothing else, in messages as sshd's packets come: what the path itself can do. */
function flood(socket: import("ws").WebSocket): void {
  const message = Buffer.alloc(32_768);
  let left = rawBytes / message.length;
  const more = () => {
    for (; left > 0; left--) {
      if (socket.bufferedAmount < 1 << 20) socket.send(message);
      else return void setTimeout(more, 1);
    }
    socket.close(1000);
  };
  more();
}

export interface Browser {
  /** Has the Worker do something. */
  order(...order: unknown[]): Promise<any>;
  /** Everything that passed, both ways. */
  recorded(): Buffer;
  stop(): Promise<void>;
}

/** paths: where the socket of a path leads to. */
export async function startBrowser(paths: Record<string, () => Transport>): Promise<Browser> {
  if (!program) throw new Error("there is no Chromium here");
  const files = new URL("../page/", import.meta.url);
  const http = createServer((request, response) => {
    response.setHeader("Content-Security-Policy", "default-src 'none'; script-src 'self'; worker-src 'self'; connect-src 'self'");
    const file = new URL(`.${request.url}`, files);
    if (request.url == "/") response.setHeader("Content-Type", "text/html").end('<!doctype html><script type="module" src="/page.js"></script>');
    else if (file.href.startsWith(files.href) && existsSync(file)) response.setHeader("Content-Type", "text/javascript").end(readFileSync(file));
    else response.writeHead(404).end();
  });
  const recorded: Buffer[] = [];
  let recordedBytes = 0;
  const record = (bytes: Uint8Array) => {
    if ((recordedBytes += bytes.length) < 4 << 20) recorded.push(Buffer.from(bytes));
  };
  const sockets = new WebSocketServer({ server: http, perMessageDeflate: false });
  sockets.on("connection", (socket, request) => {
    if (request.url == "/raw") return flood(socket);
    const dial = paths[request.url ?? ""];
    if (!dial) return socket.close(4404);
    const transport = dial();
    transport.onmessage = (bytes) => {
      record(bytes);
      socket.send(bytes);
    };
    transport.onclose = () => socket.close(1000);
    socket.on("message", (bytes: Buffer) => {
      record(bytes);
      void transport.send(bytes);
    });
    socket.on("close", () => transport.close());
  });
  await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
  const browser = await chromium.launch({
    executablePath: program,
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  const page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${(http.address() as AddressInfo).port}/`);
  await page.waitForFunction("globalThis.order");
  return {
    order: (...order) => page.evaluate((o) => (globalThis as any).order(...o), order),
    recorded: () => Buffer.concat(recorded),
    async stop() {
      await browser.close();
      sockets.close();
      http.closeAllConnections();
      http.close();
    },
  };
}
