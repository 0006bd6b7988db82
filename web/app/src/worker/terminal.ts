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
  /** Own bytes went out: what the judge of typing wants to know. */
  sent(bytes: number): void;
}

/** Input that waits for the channel; a paste larger than that is refused by the page. */
export const MAX_WAITING = 4 << 20;

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
  let queue = Promise.resolve();
  /** Chunks that the page has not shown, in order. */
  let shown: { left: number; done: () => void }[] = [];

  const finish = (ending: Ending) => {
    if (over) return;
    over = true;
    settle();
    on.ended(ending);
  };
  const settle = () => {
    for (const s of shown) s.done();
    shown = [];
  };

  const open = async (client: Client) => {
    const again = times > 0;
    let c: Channel | undefined;
    try {
      c = await client.openSession();
      const asked = { ...size };
      await c.requestPty({ ...asked, term: "xterm-256color" });
      if (over) return c.close();
      channel = c;
      c.onData((data) => {
        // A copy: the bytes go to the page and this buffer is not theirs alone.
        const own = data.slice();
        const done = new Promise<void>((resolve) => shown.push({ left: own.length, done: resolve }));
        on.data(own);
        return done;
      });
      if (program.kind == "shell") await c.shell();
      else await c.exec(program.kind == "attach" ? attachCommand(program) : tmuxCommand(program, again));
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
      waiting = 0;
      settle();
      if (over || !times) return;
      if (program.kind == "shell") finish({ how: "lost" });
      else on.detached();
    },
    input(data) {
      const c = channel;
      // What is typed into a lost connection belongs to no program: the page
      // shows that it is not sent.
      if (!c || over || waiting + data.length > MAX_WAITING) return;
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
      while (bytes > 0 && shown.length) {
        const s = shown[0]!;
        const n = Math.min(bytes, s.left);
        bytes -= n;
        if ((s.left -= n) > 0) break;
        shown.shift();
        s.done();
      }
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
