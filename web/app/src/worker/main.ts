// The Worker of one machine. It reads token, pins and key from storage itself:
// none of them ever passes through the page.

import { deviceSigner, type Client } from "@holdfast/ssh";
import { cleanText } from "../pairing/bytes.js";
import { access, RelayError } from "../relay.js";
import { changeMachine, machine, type Machine } from "../store/db.js";
import { deviceKey } from "../store/device.js";
import { createLink, type Link } from "./link.js";
import type { Ask, LinkState, Tell } from "./messages.js";
import { pair } from "./pair.js";
import { createSessions } from "./sessions.js";
import { openStream, streamUrl } from "./socket.js";
import { createTerminal, type Terminal } from "./terminal.js";

const scope = globalThis as unknown as { postMessage(m: Tell, transfer?: Transferable[]): void; onmessage: ((e: MessageEvent<Ask>) => void) | null };
const tell = (m: Tell, transfer: Transferable[] = []) => scope.postMessage(m, transfer);

const MAX_RUN = 64 << 10; // bytes of a command's output
const terminals = new Map<number, Terminal>();
/** The person's choice for terminals. Sessions always go through the built-in server, over the same connection where that is the choice. */
type Service = "ssh" | "sshd";
const links = new Map<Service, Promise<Link | undefined>>();
let record: Promise<Machine | undefined> | undefined;
let client: Client | undefined;
/** Commands that wait for a connection. */
let waiting: { id: number; command: string }[] = [];

const sessions = createSessions(tell, { program: `holdfast page ${__VERSION__}`, sent: (bytes) => void links.get("ssh")?.then((l) => l?.sent(bytes)) });

const stopped = (kind: "storage" | "unknownMachine", text: string): LinkState => ({
  phase: "stopped", suspect: false, proof: undefined, retryAt: undefined, postQuantum: undefined, service: undefined, server: undefined,
  why: { code: 0, kind, text },
});

const tellState = (state: LinkState, terminals: boolean, sessions: boolean) => {
  if (terminals) tell({ op: "state", state });
  if (sessions) tell({ op: "sessionsState", state });
};

const start = async (m: Machine, service: Service): Promise<Link | undefined> => {
  const forTerminals = m.service == service;
  const forSessions = service == "ssh";
  try {
    const key = await deviceKey();
    const sshd = service == "sshd";
    const made = createLink({
      service,
      user: m.user,
      hostKeys: sshd ? (m.sshd?.hostKeys ?? []) : m.hostKeys,
      signer: deviceSigner(key),
      open: (on) => openStream(streamUrl(m.relay, m.machine, service), m.token, on),
      access: () =>
        access(m.relay, m.token, m.machine).then(
          // The relay lets this device in, and the socket did not open: a proxy in between.
          () => ({ code: 1006, text: "" }),
          (e) => (e instanceof RelayError ? { code: e.code, text: e.message } : { code: 1006, text: "" }),
        ),
      ready(c) {
        if (forSessions) sessions.connected(c);
        if (!forTerminals) return;
        client = c;
        for (const t of terminals.values()) t.connected(c);
        for (const r of waiting.splice(0)) void run(c, r.id, r.command);
      },
      lost() {
        if (forSessions) sessions.disconnected();
        if (!forTerminals) return;
        client = undefined;
        for (const t of terminals.values()) t.disconnected();
      },
      changed: (state) => tellState(state, forTerminals, forSessions),
      rotated: (keys) => void changeMachine(m.id, sshd ? { sshd: { ...m.sshd!, hostKeys: keys } } : { hostKeys: keys }),
    });
    made.start();
    return made;
  } catch (e) {
    tellState(stopped("storage", cleanText(String(e), 200)), forTerminals, forSessions);
    return undefined;
  }
};

/** The connection for terminals, or for sessions, made by the first who wants it. */
const linkFor = async (what: "terminals" | "sessions"): Promise<Link | undefined> => {
  const m = await record;
  if (!m) return undefined;
  const service = what == "sessions" ? "ssh" : m.service;
  let l = links.get(service);
  if (!l) links.set(service, (l = start(m, service)));
  return l;
};

const remember = async (id: string): Promise<Machine | undefined> => {
  try {
    const m = await machine(id);
    if (!m) tellState(stopped("unknownMachine", ""), true, true);
    return m;
  } catch (e) {
    tellState(stopped("storage", cleanText(String(e), 200)), true, true);
    return undefined;
  }
};

const run = async (c: Client, id: number, command: string) => {
  let text = "";
  try {
    const channel = await c.openSession();
    const decoder = new TextDecoder();
    channel.onData((data, stream) => {
      if (stream == "stdout" && text.length < MAX_RUN) text += decoder.decode(data, { stream: true });
    });
    await channel.exec(command);
    await channel.sendEof();
    const { code } = await channel.exit;
    tell({ op: "ran", id, code, text: text.slice(0, MAX_RUN) });
  } catch {
    tell({ op: "ran", id, code: undefined, text: "" });
  }
};

const heard = async (m: Ask): Promise<void> => {
  switch (m.op) {
    case "pair":
      return tell(await pair(m.link, m.name, (step) => tell({ op: "pairing", step })));
    case "machine":
      record ??= remember(m.id);
      return;
    case "open": {
      terminals.get(m.term)?.end();
      const t = createTerminal(m.program, m, {
        opened: (again) => tell({ op: "opened", term: m.term, again }),
        detached: () => tell({ op: "detached", term: m.term }),
        data: (data) => tell({ op: "data", term: m.term, data }, [data.buffer as ArrayBuffer]),
        ended(ending) {
          terminals.delete(m.term);
          tell({ op: "ended", term: m.term, ending });
        },
        dropped: (bytes) => tell({ op: "dropped", term: m.term, bytes }),
        sent: (bytes) => void linkFor("terminals").then((l) => l?.sent(bytes)),
      });
      terminals.set(m.term, t);
      if (client) t.connected(client);
      else void linkFor("terminals");
      return;
    }
    case "input":
      return terminals.get(m.term)?.input(m.data);
    case "resize":
      return terminals.get(m.term)?.resize(m.cols, m.rows);
    case "consumed":
      return terminals.get(m.term)?.consumed(m.bytes);
    case "end":
      terminals.get(m.term)?.end();
      terminals.delete(m.term);
      return;
    case "run":
      if (client) void run(client, m.id, m.command);
      else {
        waiting.push(m);
        void linkFor("terminals");
      }
      return;
    case "connect":
      return (await linkFor("terminals"))?.wake();
    case "watch":
      sessions.ask(m);
      return (await linkFor("sessions"))?.wake();
    case "unwatch":
    case "call":
      return sessions.ask(m);
    case "wake":
      for (const l of links.values()) (await l)?.wake();
      return;
    case "retry":
      for (const l of links.values()) (await l)?.start();
      return;
    case "stop":
      for (const l of links.values()) (await l)?.stop();
  }
};

scope.onmessage = ({ data }) => void heard(data);
