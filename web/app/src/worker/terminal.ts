// One terminal of a machine: a channel with a pty while there is a connection.
// A tmux session is attached again on the next connection; a plain shell ended
// with the old one, and is said to have.

import { SshError, type Channel, type Client } from "@holdfast/ssh";
import { cleanText, concat } from "../pairing/bytes.js";
import type { Ending, Program } from "./messages.js";
import { attachCommand, TMUX_FAILED, tmuxCommand } from "./tmux.js";

export interface TerminalEvents {
  opened(again: boolean): void;
  /** The connection is gone; it opens again on the next. Until then nobody takes input. */
  detached(): void;
  data(data: Uint8Array): void;
  ended(ending: Ending): void;
  /** So many bytes of input were not sent and will not be. */
  dropped(bytes: number): void;
  /** Own bytes went out: what the judge of typing wants to know. */
  sent(bytes: number): void;
}

/** Input that waits for the channel: two pastes, of which the page refuses larger ones. What does not fit is dropped, and said. */
export const MAX_WAITING = 4 << 20;

/**
 * So much may be on its way to the screen; what comes meanwhile is handed over
 * as one piece. Half leaves the page waiting between two pieces, twice only adds
 * to what stands before the answer to Ctrl-C.
 */
const ON_SCREEN = 128 << 10;
/** A piece of it, which the page reads in one go: 10 ms on a phone, between which it answers fingers. */
const PIECE = 32 << 10;
/**
 * With less on its way than this, what comes is handed over at once: an answer
 * to a key waits for nothing. With more, it waits for a whole piece, or for the
 * page: a message costs both sides as much as reading a screen.
 */
const LITTLE = 8 << 10;

export interface Terminal {
  /** A connection is there. */
  connected(client: Client): void;
  /** It is gone. */
  disconnected(): void;
  input(data: Uint8Array): void;
  resize(cols: number, rows: number): void;
  /** The page has shown so many bytes. */
  consumed(bytes: number): void;
  end(): void;
  readonly over: boolean;
}

export const createTerminal = (program: Program, { cols, rows }: { cols: number; rows: number }, on: TerminalEvents): Terminal => {
  // Of what was handed over the size alone: a message of the page has more in it.
  let size = { cols, rows };
  let channel: Channel | undefined;
  let times = 0; // that it was opened
  let over = false;
  let waiting = 0; // bytes of input not yet on their way
  /** Something was dropped: all that follows is, too, until what waits has gone, so that no Enter runs a text that has a hole. */
  let full = false;
  let queue = Promise.resolve();
  /** Chunks that the page has not shown, in order. */
  let shown: { left: number; done: () => void }[] = [];
  /** Chunks that were not handed over yet, the last of shown; and what was, and is not shown. */
  let kept: Uint8Array[] = [];
  let keptBytes = 0;
  let handed = 0;

  const finish = (ending: Ending) => {
    if (over) return;
    over = true;
    rest();
    settle();
    on.ended(ending);
  };
  const settle = () => {
    for (const s of shown) s.done();
    shown = [];
    kept = [];
    keptBytes = handed = 0;
  };
  /** Hands over what there is, where the page is not busy with what it has. */
  const hand = () => {
    while (kept.length && handed < (keptBytes < PIECE ? LITTLE : ON_SCREEN)) {
      let n = 0;
      for (let bytes = 0; n < kept.length && bytes < PIECE; n++) bytes += kept[n]!.length;
      // The memory goes to the page with them: each has its own, of which SSH keeps nothing.
      const data = n == 1 ? kept.shift()! : concat(...kept.splice(0, n));
      handed += data.length;
      keptBytes -= data.length;
      on.data(data);
    }
  };

  /** Hands over all: nothing will be shown before it any more. */
  const rest = () => {
    if (kept.length) on.data(concat(...kept));
  };

  const open = async (client: Client) => {
    const again = times > 0;
    let c: Channel | undefined;
    try {
      c = await client.openSession();
      if (over) return c.close();
      const asked = { ...size };
      const pty = c.requestPty({ ...asked, term: "xterm-256color" });
      channel = c;
      c.onData((data) => {
        const done = new Promise<void>((resolve) => shown.push({ left: data.length, done: resolve }));
        kept.push(data);
        keptBytes += data.length;
        hand();
        return done;
      });
      // Without waiting for the answer to the first, a round trip less; and where
      // there is no terminal the channel ends, whatever has begun in it.
      const run = program.kind == "shell" ? c.shell() : c.exec(program.kind == "attach" ? attachCommand(program) : tmuxCommand(program, again));
      run.catch(() => {}); // when both are refused, the first says why
      await pty;
      await run;
      if (over) return c.close();
      times++;
      // It may have changed while the channel was being opened.
      if (asked.cols != size.cols || asked.rows != size.rows) c.resize(size);
      on.opened(again);
    } catch (e) {
      // A refused channel would count for as long as the connection lasts.
      c?.close();
      if (channel == c) channel = undefined;
      // A lost connection says so by itself; a refusal is the end of this terminal.
      if (e instanceof SshError && e.code == "channel") finish({ how: "refused", text: cleanText(e.message, 300) });
      else if (!(e instanceof SshError)) finish({ how: "refused", text: cleanText(String(e), 300) });
      return;
    }
    const exit = await c.exit;
    if (exit.lost || channel != c) return;
    channel = undefined;
    if (again && program.kind != "shell" && exit.code == TMUX_FAILED) finish({ how: "gone" });
    else finish({ how: "exit", code: exit.code, signal: exit.signal && cleanText(exit.signal, 40) });
  };

  return {
    connected(client) {
      if (!over) void open(client);
    },
    disconnected() {
      channel = undefined;
      queue = Promise.resolve();
      const unsent = waiting;
      waiting = 0;
      full = false;
      if (!over) rest();
      if (!over && unsent) on.dropped(unsent);
      settle();
      if (over || !times) return;
      if (program.kind == "shell") finish({ how: "lost" });
      else on.detached();
    },
    input(data) {
      const c = channel;
      // What is typed into a lost connection belongs to no program: the page
      // shows that it is not sent.
      if (!c || over) return;
      full &&= waiting > 0;
      if (full || waiting + data.length > MAX_WAITING) {
        full = true;
        return on.dropped(data.length);
      }
      waiting += data.length;
      queue = queue.then(async () => {
        if (c != channel) return;
        on.sent(data.length);
        await c.write(data).catch(() => undefined);
        if (c == channel) waiting -= data.length;
      });
    },
    resize(cols, rows) {
      size = { cols, rows };
      channel?.resize(size);
    },
    consumed(bytes) {
      handed = Math.max(handed - bytes, 0);
      while (bytes > 0 && shown.length) {
        const s = shown[0]!;
        const n = Math.min(bytes, s.left);
        bytes -= n;
        if ((s.left -= n) > 0) break;
        shown.shift();
        s.done();
      }
      hand();
    },
    end() {
      const c = channel;
      channel = undefined;
      over = true;
      settle();
      c?.close();
    },
    get over() {
      return over;
    },
  };
};
