// One terminal of a machine: a channel with a pty while there is a connection.
// A tmux session is attached again on the next connection; a plain shell ended
// with the old one, and is said to have.

import { SshError, type Channel, type Client } from "@holdfast/ssh";
import { cleanText } from "../pairing/bytes.js";
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
 * So much may be on its way to the screen; what comes meanwhile is gathered. Half
 * leaves the page waiting between two pieces, twice only adds to what stands
 * before the answer to Ctrl-C.
 */
const ON_SCREEN = 128 << 10;
/** In pieces of at least this, and less than twice as much, which the page reads in one go: 10 to 20 ms on a phone, between which it answers fingers. */
const PIECE = 32 << 10;
/**
 * With less on its way than this, what comes is handed over at once: an answer
 * to a key waits for nothing. With more, it waits for a whole piece, or for the
 * page: a message costs both sides as much as reading a screen.
 */
const LITTLE = 8 << 10;
/** So much in many chunks is counted as one: a program that prints letter by letter would take the memory of a thousand windows. */
const TOGETHER = 4 << 10;

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
  /** What the page has not shown, in order. */
  let shown: { bytes: number; left: number; done: () => void; promise: Promise<void> }[] = [];
  /** What was not handed over yet, the last of shown, in the first keptBytes of this; and what was, and is not shown. */
  let kept = new Uint8Array(0);
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
    kept = new Uint8Array(0);
    keptBytes = handed = 0;
  };
  /** Resolves when the page has shown them. */
  const count = (bytes: number): Promise<void> => {
    const last = shown.at(-1);
    if (last && last.bytes + bytes <= TOGETHER) {
      last.bytes += bytes;
      last.left += bytes;
      return last.promise;
    }
    let done!: () => void;
    const promise = new Promise<void>((resolve) => (done = resolve));
    shown.push({ bytes, left: bytes, done, promise });
    return promise;
  };
  const keep = (data: Uint8Array) => {
    if (keptBytes + data.length > kept.length) {
      const more = new Uint8Array(2 * (keptBytes + data.length));
      more.set(kept.subarray(0, keptBytes));
      kept = more;
    }
    kept.set(data, keptBytes);
    keptBytes += data.length;
  };
  /** Whether so many bytes go to the page, or wait for it. */
  const may = (bytes: number) => handed < (bytes < PIECE ? LITTLE : ON_SCREEN);
  const give = (data: Uint8Array) => {
    handed += data.length;
    on.data(data);
  };
  /** Hands over a piece of what is kept: in memory of its own, which goes to the page with it. */
  const piece = () => {
    const data = kept.slice(0, keptBytes < 2 * PIECE ? keptBytes : PIECE);
    kept.copyWithin(0, data.length, keptBytes);
    keptBytes -= data.length;
    give(data);
  };
  const hand = () => {
    while (keptBytes && may(keptBytes)) piece();
  };
  /** Hands over all: nothing will be shown before it any more. */
  const rest = () => {
    while (keptBytes) piece();
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
        const done = count(data.length);
        // SSH keeps nothing of a chunk's memory.
        if (!keptBytes && may(data.length)) give(data);
        else {
          keep(data);
          hand();
        }
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
