// The connection to one machine over all its sockets: dialled, judged, replaced.
// When SSH is up its owner opens channels; when it is lost they are gone, since
// SSH has no resume.
//
// One funnel decides when to dial, one judge per socket decides when it is dead;
// both are web/live's, the rules are in docs/liveness.md. The probe is SSH's
// keepalive@openssh.com, which a relay can neither answer nor forge.

import { connect, type Client, type HostKey, type Signer } from "@holdfast/ssh";
import { BYTE, PROTOCOL, createFunnel, createJudge, holdfast, pageBackoff, typing, type Action, type Effects, type Instant, type Judge, type JudgeConfig } from "@holdfast/live/parts";
import { cleanText } from "../pairing/bytes.js";
import type { LinkState, Why } from "./messages.js";
import type { SocketEnd, StreamSocket, SocketEvents } from "./socket.js";
import { whyOf } from "./words.js";

/** From the upgrade to the end of authentication: the machine may take 10 s to dial back, and a phone needs six round trips. */
const READY = 2e4;

/**
 * What a program may have printed and the page not shown: it stands before the
 * answer to Ctrl-C, a quarter of a second on a phone that shows 1 MB/s. Half
 * slows a path of 150 ms to less than that.
 */
const WINDOW = 256 << 10;

const config: JudgeConfig = { ...typing, ready: READY };

export interface LinkOptions {
  service: "ssh" | "sshd";
  user: string;
  hostKeys: readonly HostKey[];
  signer: Signer;
  /** Opens a socket to the relay. */
  open(on: SocketEvents): StreamSocket;
  /** Asks the relay why a socket never opened; resolves with a close code, and never rejects. */
  access(): Promise<{ code: number; text: string }>;
  /** SSH is up. */
  ready(client: Client): void;
  /** SSH is gone; a new one may follow. */
  lost(): void;
  changed(state: LinkState): void;
  /** The server proved new host keys inside this connection. */
  rotated(keys: HostKey[]): void;
  now?(): Instant;
}

export interface Link {
  /** Connects, also after a stop. */
  start(): void;
  stop(): void;
  /** The page came to the front, or the network changed: asks at once. */
  wake(): void;
  /** Own bytes of a person went out. */
  sent(bytes: number): void;
  readonly state: LinkState;
}

export const createLink = (o: LinkOptions): Link => {
  const now = o.now ?? (() => ({ mono: performance.now(), wall: Date.now() }));
  const funnel = createFunnel({ profile: holdfast, backoff: pageBackoff });
  const state: LinkState = { phase: "idle", suspect: false, proof: undefined, retryAt: undefined, why: undefined, postQuantum: undefined, service: o.service, server: undefined };

  /** The present socket; undefined while there is none. */
  let present: { number: number; socket: StreamSocket; judge: Judge; client?: Client; abort: AbortController } | undefined;
  /** Those of the options until the server proves others: it may have given up the old ones by the next connection. */
  let pins = o.hostKeys;
  let judgeTimer: ReturnType<typeof setTimeout> | undefined;
  let judgeDue = Infinity; // when it runs
  let funnelTimer: ReturnType<typeof setTimeout> | undefined;

  const at = (timer: ReturnType<typeof setTimeout> | undefined, next: number, f: () => void) => {
    clearTimeout(timer);
    // 2^31 ms is the most that a timer takes; every tick asks for the next.
    return next == Infinity ? undefined : setTimeout(f, Math.min(Math.max(next - now().mono, 0), 2 ** 31 - 1));
  };

  const say = () => o.changed({ ...state });

  /** Sends the judge's probes and acts on its verdict. */
  const judged = (number: number, e: Effects) => {
    if (present?.number != number) return;
    // Every message of a flood moves the tick away: it comes when it was to come,
    // early, and asks for the next.
    if (judgeTimer === undefined || e.next < judgeDue) {
      judgeDue = e.next;
      judgeTimer = at(judgeTimer, e.next, () => {
        judgeTimer = undefined;
        if (present) judged(number, present.judge.tick(now()));
      });
    }
    // An answer is inbound bytes, which is how the judge hears of it.
    if (e.probes & PROTOCOL) present.client?.ping().catch(() => undefined);
    const suspect = e.state == "suspect";
    if (suspect != state.suspect) {
      state.suspect = suspect;
      say();
    }
    if (e.dead) fail(number, { code: 1006, kind: "silent", text: e.dead });
  };

  const fail = (number: number, why: Why) => {
    if (present?.number != number) return;
    state.why = why;
    act(funnel.fail(now(), number, { code: why.code, reason: why.text }));
    // The funnel keeps the machine's word that it stops; a close that lets it
    // come back at once is no reason to show.
    say();
  };

  const act = (a: Action) => {
    if (a.retire && present?.number == a.retire) {
      const p = present;
      present = undefined;
      clearTimeout(judgeTimer);
      judgeTimer = undefined;
      p.socket.retire();
      p.abort.abort();
      state.suspect = false;
      state.postQuantum = state.server = undefined;
      if (p.client) o.lost();
    }
    if (a.connect) dial(a.connect);
    else if (a.probe && present) judged(present.number, present.judge.wake(now()));
    funnelTimer = at(funnelTimer, a.next, () => act(funnel.tick(now())));
    state.retryAt = a.phase == "waiting" && a.next != Infinity ? now().wall + a.next - now().mono : undefined;
    if (a.phase == "waiting" || a.phase == "stopped" || a.phase == "idle") state.phase = a.phase;
    say();
  };

  const dial = (number: number) => {
    const judge = createJudge(config);
    state.phase = "dialing";
    const abort = new AbortController();
    const mine = () => present?.number == number;
    const socket = o.open({
      opened() {
        if (!mine()) return;
        judged(number, judge.opened(now()));
        act(funnel.opened(now(), number));
        void handshake();
      },
      ended(end) {
        if (mine()) void ended(end);
      },
    });
    present = { number, socket, judge, abort };

    const ended = async ({ code, reason, opened }: SocketEnd) => {
      let text = cleanText(reason, 123);
      // A browser shows every refused upgrade as 1006: the relay says why.
      if (!opened) ({ code, text } = await o.access());
      fail(number, { code, kind: "close", text });
    };

    const handshake = async () => {
      try {
        const client = await connect(socket.transport, {
          user: o.user,
          hostKeys: pins,
          signer: o.signer,
          limits: { windowBytes: WINDOW },
          signal: abort.signal,
          timeoutMs: READY,
          onPhase(phase) {
            if (!mine() || phase == "ready") return;
            state.phase = phase;
            say();
          },
          onInbound() {
            if (!mine()) return;
            state.proof = now().wall;
            judged(number, judge.inbound(now(), BYTE));
          },
          onHostKeys(keys) {
            if (!mine()) return;
            pins = keys;
            o.rotated(keys);
          },
        });
        if (!mine()) return client.disconnect();
        present!.client = client;
        Object.assign(state, { phase: "up", why: undefined, postQuantum: client.postQuantum, server: cleanText(client.serverVersion, 80) });
        judged(number, judge.ready(now()));
        act(funnel.ready(now(), number));
        o.ready(client);
        const why = await client.closed;
        // The socket's own close, if there was one, has come first and said more.
        await Promise.resolve();
        fail(number, whyOf(why));
      } catch (e) {
        // Let the close code, which says more than "the transport ended", go first.
        await new Promise((r) => setTimeout(r, 0));
        fail(number, whyOf(e));
      }
    };
    judged(number, judge.start(now()));
  };

  return {
    start: () => act(funnel.start(now())),
    stop: () => {
      state.why = undefined;
      act(funnel.stop(now()));
    },
    wake() {
      act(funnel.wake(now()));
      // The question that waking asks is answered as a key is, and a person looks
      // at the screen: it is judged like one, not like a quiet link.
      if (present?.client) judged(present.number, present.judge.sent(now(), 1, 0));
    },
    sent(bytes) {
      if (present) judged(present.number, present.judge.sent(now(), bytes, present.socket.unsent()));
    },
    get state() {
      return { ...state };
    },
  };
};
