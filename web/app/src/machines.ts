// The page's side of every machine: one Worker each, started when somebody looks
// and ended when nobody has for a while.

import { isIn, outBy, type Out } from "./access.js";
import workerUrl from "./worker/main.js?worker&url";
import { dropPushMachine } from "./push/kept.js";
import { dropList, dropWritten } from "./sessions/kept.js";
import { changeMachine, forgetMachine, machines as stored, type Machine, type MachineView } from "./store/db.js";
import { createStore, type Store } from "./store/state.js";
import { dropScreens } from "./terminal/kept.js";
import { scriptUrl } from "./trusted.js";
import type { Ask, Ending, LinkState, PairStep, Program, SessionsAsk, SessionsTell, Tell } from "./worker/messages.js";

/** What the page shows of a terminal's other end. */
export interface TerminalEvents {
  opened(again: boolean): void;
  /** Nobody takes input until it is opened again. */
  detached(): void;
  data(data: Uint8Array): void;
  /** So many bytes of input were not sent. */
  dropped(bytes: number): void;
  ended(ending: Ending): void;
}

export interface RemoteTerminal {
  input(data: Uint8Array): void;
  resize(cols: number, rows: number): void;
  consumed(bytes: number): void;
  end(): void;
}

export interface Connection {
  readonly state: Store<LinkState>;
  open(program: Program, cols: number, rows: number, on: TerminalEvents): RemoteTerminal;
  /** What a command prints, and its exit code: undefined where it did not run. */
  run(command: string): Promise<{ code: number | undefined; text: string }>;
  /** Of the connection that sessions use. */
  readonly sessionsState: Store<LinkState>;
  /** Somebody looks at the sessions: on hears of them until the returned function is called. */
  watch(on: (m: SessionsTell) => void): () => void;
  /** Asks for something about a session; the call's number stands in what watch hears. */
  sessions(m: Extract<SessionsAsk, { op: "call" }>): void;
  /** The path may be another one: asks at once. */
  wake(): void;
  retry(): void;
  /** Somebody looks; the returned function says that he does not any more. */
  look(): () => void;
}

/** So long a connection is kept that nobody looks at and no terminal uses: going back and forth costs no handshake. */
const IDLE = 60e3;
/** A page that nobody sees, and that holds no terminal open, ends its connections sooner: a phone in a pocket sends nothing. */
const HIDDEN = 10e3;

const idle: LinkState = { phase: "idle", suspect: false, proof: undefined, retryAt: undefined, why: undefined, postQuantum: undefined, service: undefined, server: undefined };

/**
 * Says in storage that is there at once whether there are machines in the one
 * that takes its time: making a database costs a browser that has none as much
 * as all else of the first screen.
 */
const HINT = "holdfast.paired";
const hinted = (): boolean => {
  try {
    return localStorage.getItem(HINT) != null;
  } catch {
    return true; // nobody knows
  }
};
const hint = (some: boolean): void => {
  try {
    if (some) localStorage.setItem(HINT, "yes");
    else localStorage.removeItem(HINT);
  } catch {
    // Then everything is read before it is shown.
  }
};

/** What the first screen may go by until they were read: none, where this browser never had any. */
export const atFirst: readonly MachineView[] | undefined = hinted() ? undefined : [];
/** The machines that this device is paired with; undefined until they were read. */
export const known: Store<MachineView[] | undefined> = createStore<MachineView[] | undefined>(undefined);
/** Why they could not be read. */
export const storageFault = createStore("");

export const refreshKnown = async (): Promise<void> => {
  try {
    const all = await stored();
    const views = all.sort((a, b) => a.machine.localeCompare(b.machine)).map(({ token: _, ...view }) => view);
    hint(!!views.length);
    // The same ones are no news: every screen would be drawn, and every relay asked, once more.
    if (JSON.stringify(views) != JSON.stringify(known.value)) known.set(views);
    storageFault.set("");
  } catch (e) {
    known.set([]);
    storageFault.set(String(e));
  }
};

const connections = new Map<string, Connection & { dispose(): void }>();

const startWorker = (): Worker => new Worker(scriptUrl(workerUrl), { type: "module" });

/** The connection to a machine, made by the first who asks. */
export const connectionOf = (id: string): Connection => {
  const there = connections.get(id);
  if (there) return there;

  const state = createStore(idle);
  const sessionsState = createStore(idle);
  const watchers = new Set<(m: SessionsTell) => void>();
  const terminals = new Map<number, TerminalEvents>();
  const runs = new Map<number, (r: { code: number | undefined; text: string }) => void>();
  let last = 0;
  let lookers = 0;
  let worker: Worker | undefined;
  let idleTimer: ReturnType<typeof setTimeout> | undefined;

  const ask = (m: Ask, transfer: Transferable[] = []) => {
    if (!worker) {
      worker = startWorker();
      worker.onmessage = ({ data }: MessageEvent<Tell>) => hear(data);
      worker.onerror = (e) => {
        const fault: LinkState = { ...idle, phase: "stopped", why: { code: 0, kind: "ssh", text: e.message ?? "" } };
        state.set(fault);
        sessionsState.set(fault);
      };
      worker.postMessage({ op: "machine", id } satisfies Ask);
    }
    worker.postMessage(m, transfer);
  };
  const hear = (m: Tell) => {
    switch (m.op) {
      case "state":
      case "sessionsState": {
        const of = m.op == "state" ? state : sessionsState;
        const before = of.value;
        of.set(m.state);
        return judge(id, before, m.state);
      }
      case "opened":
        return terminals.get(m.term)?.opened(m.again);
      case "detached":
        return terminals.get(m.term)?.detached();
      case "data":
        return terminals.get(m.term)?.data(m.data);
      case "dropped":
        return terminals.get(m.term)?.dropped(m.bytes);
      case "ended": {
        const t = terminals.get(m.term);
        terminals.delete(m.term);
        settle();
        return t?.ended(m.ending);
      }
      case "ran": {
        runs.get(m.id)?.(m);
        runs.delete(m.id);
        return;
      }
      case "pairing":
      case "paired":
      case "notPaired":
        return;
      default:
        for (const f of [...watchers]) f(m);
    }
  };
  const dispose = () => {
    clearTimeout(idleTimer);
    worker?.terminate();
    worker = undefined;
    for (const f of runs.values()) f({ code: undefined, text: "" });
    runs.clear();
    state.set(idle);
    sessionsState.set(idle);
    // A setting or the pairing changed under them: what is opened next is new.
    for (const t of [...terminals.values()]) t.ended({ how: "lost" });
    terminals.clear();
    for (const f of [...watchers]) f({ op: "sessionsClosed", code: "lost", text: "" });
  };
  /** Ends the Worker some time after nobody needs it. */
  const settle = () => {
    clearTimeout(idleTimer);
    const hidden = document.visibilityState == "hidden";
    if (!terminals.size && (hidden || (!lookers && !watchers.size))) idleTimer = setTimeout(dispose, hidden ? HIDDEN : IDLE);
  };
  document.addEventListener("visibilitychange", () => {
    settle();
    // Whoever looks at the machine again wants its connection back.
    if (document.visibilityState == "visible" && lookers && !worker) ask({ op: "connect" });
  });

  const connection = {
    state,
    open(program: Program, cols: number, rows: number, on: TerminalEvents): RemoteTerminal {
      const term = ++last;
      clearTimeout(idleTimer);
      terminals.set(term, on);
      ask({ op: "open", term, program, cols, rows });
      return {
        input: (data) => ask({ op: "input", term, data }),
        resize: (cols, rows) => ask({ op: "resize", term, cols, rows }),
        consumed: (bytes) => ask({ op: "consumed", term, bytes }),
        end() {
          ask({ op: "end", term });
          terminals.delete(term);
          settle();
        },
      };
    },
    run(command: string) {
      return new Promise<{ code: number | undefined; text: string }>((resolve) => {
        const n = ++last;
        runs.set(n, resolve);
        ask({ op: "run", id: n, command });
      });
    },
    sessionsState,
    watch(on: (m: SessionsTell) => void) {
      clearTimeout(idleTimer);
      watchers.add(on);
      ask({ op: "watch" });
      return () => {
        // The next one begins with all sessions, which only a new channel brings.
        if (watchers.delete(on) && !watchers.size) worker?.postMessage({ op: "unwatch" } satisfies Ask);
        settle();
      };
    },
    sessions: (m: Extract<SessionsAsk, { op: "call" }>) => ask(m),
    retry: () => ask({ op: "retry" }),
    look() {
      lookers++;
      clearTimeout(idleTimer);
      ask({ op: "connect" });
      let looks = true;
      return () => {
        if (looks) lookers--;
        looks = false;
        settle();
      };
    },
    wake: () => worker?.postMessage({ op: "wake" } satisfies Ask),
    dispose,
  };
  connections.set(id, connection);
  return connection;
};

/** Ends what is open and starts anew, after a setting or the pairing has changed. */
export const restart = (id: string): void => {
  connections.get(id)?.dispose();
  connections.delete(id);
  restarts.set((n) => n + 1);
};

/** Counts restarts: who watches a connection begins anew. */
export const restarts = createStore(0);

/** Other pages of this browser hold the machine's token and pins, too: they hear the machine's id here, and nothing else. */
const pages = typeof BroadcastChannel == "undefined" ? undefined : new BroadcastChannel("holdfast.machines");
if (pages)
  pages.onmessage = ({ data }) => {
    if (typeof data?.out == "string") {
      void lose(data.out);
      void refreshKnown();
    }
    if (typeof data != "string") return;
    restart(data);
    void refreshKnown().then(async () => {
      if (known.value?.some((m) => m.id == data)) return;
      await lose(data);
      await dropWritten(data);
    });
  };
/** The machine was paired anew or is not known any more. */
const changed = (id: string): void => {
  restart(id);
  pages?.postMessage(id);
};

/** Who holds something of a machine in memory hears that it is to be lost. */
const losers = new Set<(id: string) => void>();
export const onLose = (f: (id: string) => void): void => void losers.add(f);

/** This page shows and keeps nothing of the machine's sessions any more, nor what it was about to keep. */
const lose = async (id: string): Promise<void> => {
  for (const f of losers) f(id);
  dropScreens(id);
  await dropList(id);
};

/**
 * The machine, or the relay for it, has let this device in no more, for certain:
 * names of sessions and last screens go at once, since the machine has them and
 * this device is not to. What the person wrote goes when the person says so.
 */
const shutOut = async (id: string, by: Out["by"]): Promise<void> => {
  const said = known.value?.find((m) => m.id == id)?.out?.by == by;
  const out = { by, at: Date.now() };
  // On the screen at once, however long the browser's storage takes.
  if (!said) known.set((all) => all?.map((m) => (m.id == id ? { ...m, out } : m)));
  // Also where that is no news: another of its connections may have ended only now.
  await lose(id);
  if (said) return;
  await dropPushMachine(id).catch(() => undefined);
  await changeMachine(id, { out });
  pages?.postMessage({ out: id });
  await refreshKnown();
};

/** It is let in again: a connection to the machine itself is what shows that. */
const letIn = async (id: string): Promise<void> => {
  await changeMachine(id, { out: undefined });
  await refreshKnown();
};

/** What a connection's state says about that. */
const judge = (id: string, before: LinkState, s: LinkState): void => {
  const by = outBy(s);
  if (by) void shutOut(id, by).catch(() => undefined);
  else if (isIn(before, s) && known.value?.find((m) => m.id == id)?.out) void letIn(id).catch(() => undefined);
};

export const forget = async (id: string): Promise<void> => {
  await forgetMachine(id);
  // Nobody keeps anything for it from here on.
  known.set((all) => all?.filter((m) => m.id != id));
  changed(id);
  await lose(id);
  await dropWritten(id);
  await dropPushMachine(id).catch(() => undefined);
  await refreshKnown();
};

/** Pairs by the text of a link. */
export const pairByLink = (link: string, name: string, step: (s: PairStep) => void): Promise<Extract<Tell, { op: "paired" | "notPaired" }>> =>
  new Promise((resolve) => {
    const worker = startWorker();
    const done = (m: Extract<Tell, { op: "paired" | "notPaired" }>) => {
      worker.terminate();
      resolve(m);
    };
    worker.onerror = (e) => done({ op: "notPaired", fault: "ssh", text: e.message ?? "" });
    worker.onmessage = ({ data }: MessageEvent<Tell>) => {
      if (data.op == "pairing") step(data.step);
      else if (data.op == "paired") {
        changed(data.machine);
        void refreshKnown().then(() => done(data));
      } else if (data.op == "notPaired") done(data);
    };
    worker.postMessage({ op: "pair", link, name } satisfies Ask);
  });

/** Tells every connection that the path may be another one: it asks at once instead of believing. */
export const wakeAll = (): void => {
  for (const c of connections.values()) c.wake();
};

/** One token of each account at each relay, for what concerns the account: one that is let in, where there is one. */
export const accounts = async (): Promise<Machine[]> => {
  const seen = new Map<string, Machine>();
  for (const m of await stored()) {
    const name = `${m.relay} ${m.account}`;
    if (!m.out || !seen.has(name)) seen.set(name, m);
  }
  return [...seen.values()];
};

/** The relay does not know this token any more, which holds for every machine that was paired with it. */
export const tokenRefused = async (token: string): Promise<void> => {
  for (const m of await stored()) if (m.token == token) await shutOut(m.id, "relay");
};
