// Ways to carry an SSH connection.

import type { Transport } from "./types.js";

/** What webSocketTransport needs of a WebSocket. */
export interface WebSocketLike {
  binaryType: string;
  readonly readyState: number;
  readonly bufferedAmount: number;
  send(data: Uint8Array<ArrayBuffer>): void;
  close(code?: number, reason?: string): void;
  addEventListener(type: "message", listener: (event: { data: unknown }) => void): void;
  addEventListener(type: "close", listener: (event: { code: number; reason: string }) => void): void;
}

const highWater = 256 << 10; // bytes in the socket's buffer, above which writers wait
const pollMs = 10; // a socket does not say when its buffer has drained
const isOpen = 1;

/**
 * Carries a connection over a WebSocket that is open. base64Compat: text
 * messages are bytes in base64, as older agents send them through a relay;
 * without it they end the connection.
 */
export function webSocketTransport(socket: WebSocketLike, { base64Compat = false } = {}): Transport {
  socket.binaryType = "arraybuffer";
  const early: Uint8Array[] = [];
  let ended: string | null = null;
  let onmessage: Transport["onmessage"] = null;
  let onclose: Transport["onclose"] = null;

  const end = (reason: string) => {
    if (ended !== null) return;
    ended = reason;
    onclose?.(reason);
  };
  const receive = (bytes: Uint8Array) => {
    if (ended !== null) return;
    if (onmessage) onmessage(bytes);
    else early.push(bytes);
  };
  socket.addEventListener("message", ({ data }) => {
    if (data instanceof ArrayBuffer) return receive(new Uint8Array(data));
    if (data === "") return;
    try {
      if (typeof data != "string" || !base64Compat) throw new TypeError("not binary");
      receive(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)));
    } catch {
      end("a message that is not binary");
      socket.close(4000, "not binary");
    }
  });
  socket.addEventListener("close", ({ code, reason }) => end(`close code ${code}${reason ? `: ${reason}` : ""}`));

  return {
    get onmessage() {
      return onmessage;
    },
    set onmessage(handler) {
      onmessage = handler;
      if (handler) for (const bytes of early.splice(0)) handler(bytes);
    },
    get onclose() {
      return onclose;
    },
    set onclose(handler) {
      onclose = handler;
      if (handler && ended !== null) handler(ended);
    },
    async send(bytes) {
      if (socket.readyState != isOpen) throw new Error(ended ?? "the socket is not open");
      socket.send(bytes as Uint8Array<ArrayBuffer>);
      while (socket.bufferedAmount > highWater && socket.readyState == isOpen) await new Promise((resolve) => setTimeout(resolve, pollMs));
    },
    close: () => socket.close(1000),
  };
}

/** Carries a connection over a pair of streams. */
export function streamTransport({ readable, writable }: { readable: ReadableStream<Uint8Array>; writable: WritableStream<Uint8Array> }): Transport {
  const writer = writable.getWriter();
  const reader = readable.getReader();
  const transport: Transport = {
    onmessage: null,
    onclose: null,
    async send(bytes) {
      await writer.ready;
      writer.write(bytes).catch(fail);
    },
    close() {
      writer.close().catch(() => {});
      reader.cancel().catch(() => {});
    },
  };
  const fail = (error: unknown) => transport.onclose?.(`${(error as Error)?.message ?? error}`);
  const read = async () => {
    // connect takes its place in the same turn.
    await Promise.resolve();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return fail("the stream ended");
      transport.onmessage?.(value);
    }
  };
  read().catch(fail);
  return transport;
}
