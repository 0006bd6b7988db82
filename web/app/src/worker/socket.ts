// The WebSocket to a relay as a transport for SSH.

import type { Transport } from "@holdfast/ssh";
import { fromBase64 } from "../pairing/bytes.js";

/** How a socket ended; opened says whether the relay ever let it in. */
export interface SocketEnd {
  code: number;
  reason: string;
  opened: boolean;
}

export interface StreamSocket {
  transport: Transport;
  /** Bytes that the socket took and has not sent yet. */
  unsent(): number;
  /** Gives it up: detaches at once and waits for nothing. */
  retire(): void;
}

export interface SocketEvents {
  opened(): void;
  ended(end: SocketEnd): void;
}

/**
 * Our own messages hold at most so many bytes: what the protocol asks of its
 * senders, so that a keystroke of another stream waits for no more than that.
 */
const MAX_MESSAGE = 32 << 10;
/** Sending waits while more than this is unsent: twice keeps keys waiting behind a paste, half starves a fast path. */
const HIGH_WATER = 256 << 10;
const LOW_WATER = 64 << 10;

/**
 * A browser says late that bytes have gone: what has been unsent for less is no
 * backlog. With half of it, a window adjustment just sent would hide a dead path
 * from the judge of typing; twice is half a second of a paste taken for typing.
 */
const REPORTED = 250;

export const streamUrl = (relay: string, machine: string, service: "ssh" | "sshd"): string =>
  `${relay.replace(/^http/, "ws")}/connect/${machine}${service == "ssh" ? "?service=ssh" : ""}`;

/** Opens a stream. The token goes where a browser can put it: a subprotocol that is never selected. */
export const openStream = (url: string, token: string, on: SocketEvents): StreamSocket => {
  const socket = new WebSocket(url, ["holdfast.v1", `holdfast.bearer.${token}`]);
  socket.binaryType = "arraybuffer";
  let opened = false;
  let over = false;
  let busySince = 0;
  const transport: Transport = {
    onmessage: null,
    onclose: null,
    async send(bytes) {
      for (let at = 0; at < bytes.length; at += MAX_MESSAGE) {
        if (over) return;
        if (!socket.bufferedAmount) busySince = performance.now();
        socket.send(bytes.slice(at, at + MAX_MESSAGE));
      }
      // A browser's socket has no event for "sent", so this looks again. 4 ms is
      // the least that nested timers wait.
      if (socket.bufferedAmount > HIGH_WATER)
        while (!over && socket.bufferedAmount > LOW_WATER) await new Promise((r) => setTimeout(r, 4));
    },
    close() {
      if (!over) socket.close(1000);
    },
  };
  // Keys and secrets could only leak through text of ours: there is none.
  socket.onopen = () => {
    opened = true;
    on.opened();
  };
  socket.onmessage = ({ data }: MessageEvent<ArrayBuffer | string>) => {
    if (typeof data != "string") return transport.onmessage?.(new Uint8Array(data));
    // An older agent answers in base64 until it has seen a binary frame.
    const bytes = fromBase64(data.replace(/[\r\n]/g, ""));
    if (!bytes) socket.close(1000, "text is not base64");
    else if (bytes.length) transport.onmessage?.(bytes);
  };
  const end = (e: SocketEnd) => {
    if (over) return;
    over = true;
    on.ended(e);
    transport.onclose?.(`the relay closed the stream (${e.code})`);
  };
  socket.onclose = ({ code, reason }) => end({ code, reason, opened });
  return {
    transport,
    unsent: () => (performance.now() - busySince < REPORTED ? 0 : socket.bufferedAmount),
    retire() {
      over = true;
      socket.onopen = socket.onmessage = socket.onclose = null;
      transport.onmessage = transport.onclose = null;
      try {
        socket.close(1000);
      } catch {
        // It was never open: there is nothing to close.
      }
    },
  };
};
