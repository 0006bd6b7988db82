// One session channel (RFC 4254 parts 5 and 6) with both of its windows.

import { printable, Reader, Writer, type Bytes } from "./bytes.js";
import { SshError } from "./errors.js";
import { maxMessageBytes, settler } from "./secure.js";
import type { Channel, DataHandler, Exit, PtyOptions, Size } from "./types.js";

export const msgOpen = 90;
export const msgOpenConfirmation = 91;
export const msgOpenFailure = 92;
const msgWindowAdjust = 93;
const msgData = 94;
const msgExtendedData = 95;
const msgEof = 96;
const msgClose = 97;
const msgRequest = 98;
const msgSuccess = 99;
const msgFailure = 100;

/** The most of one message's data: what every SSH takes, and with its packet's rest below a transport message. */
export const maxDataBytes = maxMessageBytes - 64;
const maxWindow = 0xffff_ffff;
const maxRequestBytes = 16 << 10; // a command or a variable
const stderrType = 1;

/** What a channel needs of its connection. */
export interface Link {
  send(payload: Bytes): void;
  room(): Promise<void> | null;
  /** The channel's number is free. */
  forget(): void;
}

/** How often the two streams may take turns before there is a reader; within a turn everything is one piece. */
const maxTurns = 1024;

const wrong = (how: string) => new SshError("protocol", `the server broke the rules of a channel: ${how}`);

export class SessionChannel implements Channel {
  onEof: (() => void) | null = null;

  readonly #link: Link;
  readonly #theirs: number; // the server's number of the channel
  readonly #windowBytes: number;
  readonly #maxSend: number;

  #window: number; // what the server may still send
  #consumed = 0; // what it was not yet told to be consumed
  #sendWindow: number;
  #more: (() => void) | null = null; // wakes the writer
  #writing: Promise<void> = Promise.resolve();
  readonly #asked: { resolve(value: void): void; reject(error: SshError): void }[] = [];

  #handler: DataHandler | null = null;
  #unread: { until: Promise<void>; bytes: number } | null = null; // what the last promise stands for
  /** What came before there was a reader, joined as it comes: a message may hold one byte. */
  #kept: { stream: "stdout" | "stderr"; bytes: Bytes; used: number }[] = [];
  #eofSent = false;
  #eofSeen = false;
  #closeSent = false;
  #over: SshError | null = null;
  readonly #exit: Exit = {};
  readonly #exited = settler<Exit>();

  constructor(link: Link, theirs: number, windowBytes: number, sendWindow: number, maxPacket: number) {
    this.#link = link;
    this.#theirs = theirs;
    this.#windowBytes = this.#window = windowBytes;
    this.#sendWindow = sendWindow;
    this.#maxSend = Math.min(maxPacket, maxDataBytes);
  }

  get exit(): Promise<Exit> {
    return this.#exited.promise;
  }

  requestPty({ term, cols, rows, width = 0, height = 0, modes = {} }: PtyOptions): Promise<void> {
    const list = new Writer();
    for (const [mode, value] of Object.entries(modes)) list.byte(Number(mode)).u32(value);
    return this.#ask("pty-req", (w) => w.string(term).u32(cols).u32(rows).u32(width).u32(height).string(list.byte(0).bytes));
  }

  env(name: string, value: string): Promise<void> {
    return this.#ask("env", (w) => w.string(name).string(value));
  }

  shell(): Promise<void> {
    return this.#ask("shell", (w) => w);
  }

  exec(command: string): Promise<void> {
    return this.#ask("exec", (w) => w.string(command));
  }

  subsystem(name: string): Promise<void> {
    return this.#ask("subsystem", (w) => w.string(name));
  }

  resize({ cols, rows, width = 0, height = 0 }: Size): void {
    this.#tell("window-change", (w) => w.u32(cols).u32(rows).u32(width).u32(height));
  }

  signal(name: string): void {
    this.#tell("signal", (w) => w.string(name));
  }

  write(data: Uint8Array): Promise<void> {
    return this.#queue(async () => {
      for (let at = 0; at < data.length; ) {
        this.#mustLive();
        if (this.#eofSent) throw new SshError("channel", "writing after the end was declared");
        if (this.#sendWindow == 0) {
          await new Promise<void>((resolve) => (this.#more = resolve));
          continue;
        }
        const room = this.#link.room();
        if (room) {
          await room;
          continue;
        }
        const part = data.subarray(at, at + Math.min(this.#sendWindow, this.#maxSend));
        this.#sendWindow -= part.length;
        at += part.length;
        this.#link.send(this.#message(msgData).string(part).bytes);
      }
      this.#mustLive();
    });
  }

  sendEof(): Promise<void> {
    return this.#queue(async () => {
      this.#mustLive();
      if (this.#eofSent) return;
      this.#eofSent = true;
      this.#link.send(this.#message(msgEof).bytes);
    });
  }

  close(): void {
    if (this.#over) return;
    this.#sendClose();
    this.#finish(new SshError("channel", "the channel was closed"));
  }

  onData(handler: DataHandler): void {
    this.#handler = handler;
    for (const { stream, bytes, used } of this.#kept.splice(0))
      for (let at = 0; at < used; at += maxDataBytes) this.#hand(bytes.slice(at, Math.min(at + maxDataBytes, used)), stream);
  }

  /** Does what one of the server's messages for this channel says. */
  message(type: number, r: Reader): void {
    switch (type) {
      case msgWindowAdjust: {
        this.#sendWindow += r.u32();
        r.end();
        if (this.#sendWindow > maxWindow) throw wrong("a window of more than 4 GiB");
        return this.#wake();
      }
      case msgData:
      case msgExtendedData: {
        const kind = type == msgData ? 0 : r.u32();
        const data = r.string();
        r.end();
        if (data.length > maxDataBytes) throw wrong(`${data.length} bytes in one message`);
        if (data.length > this.#window) throw wrong("more bytes than its window allows");
        if (this.#eofSeen) throw wrong("bytes after the end");
        this.#window -= data.length;
        if (data.length == 0) return;
        if (this.#over || kind > stderrType) return this.#consume(data.length);
        const stream = kind == stderrType ? "stderr" : "stdout";
        return this.#handler ? this.#hand(data, stream) : this.#keep(data, stream);
      }
      case msgEof:
        r.end();
        this.#eofSeen = true;
        if (!this.#over) this.#told(() => this.onEof?.());
        return;
      case msgClose:
        r.end();
        this.#sendClose();
        this.#link.forget();
        return this.#finish(new SshError("channel", "the server has closed the channel"));
      case msgRequest:
        return this.#request(r);
      case msgSuccess:
      case msgFailure: {
        r.end();
        const asked = this.#asked.shift();
        if (!asked) throw wrong("an answer that nobody asked for");
        return type == msgSuccess ? asked.resolve() : asked.reject(new SshError("channel", "the server refused"));
      }
      default:
        throw wrong(`message ${type}`);
    }
  }

  /** The connection has ended. */
  lost(why: SshError): void {
    if (!this.#over) this.#exit.lost = why;
    this.#finish(why);
  }

  #request(r: Reader): void {
    const name = r.text(128);
    const wantsReply = r.bool();
    if (name == "exit-status") {
      this.#exit.code = r.u32();
      r.end();
    } else if (name == "exit-signal") {
      this.#exit.signal = printable(r.text(128));
      r.bool();
      this.#exit.message = printable(r.text());
      r.string();
      r.end();
    }
    // keepalive@openssh.com wants the answer, and any will do.
    if (wantsReply && !this.#closeSent) this.#link.send(this.#message(name.startsWith("exit-") ? msgSuccess : msgFailure).bytes);
  }

  #message(type: number): Writer {
    return new Writer(type).u32(this.#theirs);
  }

  #tell(name: string, rest: (w: Writer) => Writer, wantsReply = false): void {
    if (this.#over) return;
    const { bytes } = rest(this.#message(msgRequest).string(name).bool(wantsReply));
    if (bytes.length > maxRequestBytes) throw new TypeError(`${name}: ${bytes.length} bytes, more than ${maxRequestBytes}`);
    this.#link.send(bytes);
  }

  async #ask(name: string, rest: (w: Writer) => Writer): Promise<void> {
    this.#mustLive();
    const answer = settler<void>();
    this.#tell(name, rest, true);
    this.#asked.push(answer);
    try {
      await answer.promise;
    } catch (error) {
      if (this.#over) throw error;
      throw new SshError("channel", `the server refused ${name}`, error);
    }
  }

  /** Runs what sends after what was asked to be sent before. */
  #queue(what: () => Promise<void>): Promise<void> {
    const done = this.#writing.then(what);
    this.#writing = done.catch(() => {});
    return done;
  }

  #mustLive(): void {
    if (this.#over) throw this.#over;
  }

  #wake(): void {
    this.#more?.();
    this.#more = null;
  }

  #told(what: () => void): void {
    try {
      what();
    } catch (cause) {
      // A reader that fails reads nothing any more: the rest would pile up.
      this.#exit.lost = new SshError("channel", `reading what came: ${(cause as Error)?.message ?? cause}`, cause);
      this.close();
    }
  }

  #keep(data: Bytes, stream: "stdout" | "stderr"): void {
    const last = this.#kept.at(-1);
    if (last?.stream != stream) {
      if (this.#kept.length == maxTurns) throw wrong("its streams take too many turns before anybody reads them");
      this.#kept.push({ stream, bytes: data, used: data.length });
      return;
    }
    const used = last.used + data.length;
    if (used > last.bytes.length) {
      const more = new Uint8Array(2 * used);
      more.set(last.bytes.subarray(0, last.used));
      last.bytes = more;
    }
    last.bytes.set(data, last.used);
    last.used = used;
  }

  #hand(data: Bytes, stream: "stdout" | "stderr"): void {
    const { length } = data; // of memory that the reader may give away
    this.#told(() => {
      const wait = this.#handler!(data, stream);
      if (!wait) return this.#consume(length);
      if (this.#unread?.until == wait) {
        this.#unread.bytes += length;
        return;
      }
      const unread = (this.#unread = { until: wait, bytes: length });
      wait.then(
        () => {
          if (this.#unread == unread) this.#unread = null;
          this.#consume(unread.bytes);
        },
        (error) =>
          this.#told(() => {
            throw error;
          }),
      );
    });
  }

  #consume(bytes: number): void {
    this.#consumed += bytes;
    // Half a window at a time: the server never stops, and few messages say it.
    if (this.#consumed * 2 < this.#windowBytes || this.#closeSent) return;
    this.#window += this.#consumed;
    this.#link.send(this.#message(msgWindowAdjust).u32(this.#consumed).bytes);
    this.#consumed = 0;
  }

  #sendClose(): void {
    if (this.#closeSent) return;
    this.#closeSent = true;
    this.#link.send(this.#message(msgClose).bytes);
  }

  #finish(why: SshError): void {
    if (this.#over) return;
    this.#over = why;
    for (const asked of this.#asked) asked.reject(why);
    this.#asked.length = 0;
    this.#wake();
    this.#exited.resolve(this.#exit);
  }
}
