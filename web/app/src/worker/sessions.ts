// The sessions of one machine, over a channel of its SSH connection. The page
// asks for them and is told; when the connection is replaced the channel is
// opened anew, which brings everything again.

import { SshError, type Channel, type Client as Ssh } from "@holdfast/ssh";
import { cleanText } from "../pairing/bytes.js";
import { createClient, type Client } from "../sessions/client.js";
import { Refused, type Session } from "../sessions/model.js";
import type { SessionsAsk, SessionsTell } from "./messages.js";

const SUBSYSTEM = "sessions";
/** After the machine's side ended with a word of its own: it restarts, or this side was slow. */
const REOPEN = [500, 2000, 10_000, 60_000];

export interface Sessions {
  connected(ssh: Ssh): void;
  disconnected(): void;
  ask(m: SessionsAsk): void;
  end(): void;
}

export const createSessions = (tell: (m: SessionsTell) => void, o: { program: string; sent(bytes: number): void }): Sessions => {
  let ssh: Ssh | undefined;
  let channel: Channel | undefined;
  let client: Client | undefined;
  let wanted = false;
  let failures = 0;
  let again: ReturnType<typeof setTimeout> | undefined;
  /** Ids on the wire of follows, by those of the page. */
  const follows = new Map<number, number>();

  const closed = (code: string, text: string) => tell({ op: "sessionsClosed", code, text: cleanText(text, 300) });

  const open = async (on: Ssh) => {
    let c: Channel | undefined;
    const over = (code: string, message: string) => {
      if (channel != c) return;
      channel = client = undefined;
      follows.clear();
      c?.close();
      closed(code, message);
      // A version that is not spoken stays so until one side is updated.
      if (ssh != on || code == "version" || !wanted) return;
      again = setTimeout(() => ssh == on && wanted && !channel && void open(on), REOPEN[Math.min(failures++, REOPEN.length - 1)]);
    };
    try {
      c = await on.openSession();
      if (ssh != on || !wanted || channel) return c.close();
      channel = c;
      const asked = c.subsystem(SUBSYSTEM);
      const encoder = new TextEncoder();
      let queue = Promise.resolve();
      const p = createClient(
        (line) => {
          const bytes = encoder.encode(line + "\n");
          o.sent(bytes.length);
          queue = queue.then(() => c!.write(bytes)).catch(() => undefined);
        },
        {
          hello: (h) => tell({ op: "sessionsHello", machine: h.machine, features: h.features, skew: h.skew }),
          complete(all: Session[]) {
            failures = 0;
            tell({ op: "sessionsAll", sessions: all, at: Date.now() });
          },
          change: (session) => tell({ op: "sessionChanged", session, at: Date.now() }),
          gone: (session) => tell({ op: "sessionGone", session, at: Date.now() }),
          ended: over,
        },
        { program: o.program },
      );
      c.onData((data, stream) => {
        if (stream == "stdout" && channel == c) p.feed(data);
      });
      void c.exit.then(() => p.end());
      // The hello is on its way by now: both sides say it without waiting, a round trip less.
      await asked;
      if (channel == c) client = p;
    } catch (e) {
      // A lost connection says so by itself.
      if (e instanceof SshError && e.code != "channel") return;
      // A refused channel would count for as long as the connection lasts.
      c?.close();
      // This side has closed it, or has another by now.
      if (channel != c) return;
      channel = client = undefined;
      closed("none", e instanceof Error ? e.message : String(e));
    }
  };

  const call = (m: Extract<SessionsAsk, { op: "call" }>): void => {
    const fail = (e: unknown) => {
      const r = e instanceof Refused ? e : new Refused("failed", String(e));
      tell({ op: "refused", call: m.call, code: r.code, message: r.message, dialog: r.dialog, text: r.text });
    };
    if (!client) return fail(new Refused("offline", "not connected"));
    let params = m.params;
    if (m.request == "unfollow") {
      const id = follows.get(params["follow"] as number);
      follows.delete(params["follow"] as number);
      if (id === undefined) return;
      params = { follow: id };
    }
    client
      .call(m.request, params, {
        started: (id) => m.request == "follow" && follows.set(m.call, id),
        receipt: (stage) => tell({ op: "receipt", call: m.call, stage }),
        items: (result) => tell({ op: "items", call: m.call, result }),
        over: fail,
      })
      .then((result) => tell({ op: "answer", call: m.call, result }), fail);
  };

  const stop = () => {
    clearTimeout(again);
    const [c, p] = [channel, client];
    channel = client = undefined;
    follows.clear();
    // Whoever waits for an answer is told that none will come.
    p?.end();
    c?.close();
  };

  return {
    connected(now) {
      ssh = now;
      failures = 0;
      if (wanted) void open(now);
    },
    disconnected() {
      const had = client;
      ssh = channel = client = undefined;
      clearTimeout(again);
      follows.clear();
      // Rejects what is open; over() has nothing to do any more.
      had?.end();
      closed("lost", "");
    },
    ask(m) {
      if (m.op == "call") return call(m);
      if (m.op == "unwatch") {
        wanted = false;
        return stop();
      }
      wanted = true;
      if (ssh && !channel) void open(ssh);
    },
    end: stop,
  };
};
