// What the client costs: the same in Node, in a page and in a Worker.

import { connect, type Client, type ConnectOptions, type Transport } from "@holdfast/ssh";

export interface Figures {
  kex: string;
  /** From connect to the first byte of a shell, in ms. */
  shellMs: number;
  /** Of a large output. */
  mbPerS: number;
  /** Of a keystroke's echo by a terminal, in ms. */
  echoP50: number;
  echoP99: number;
}

async function outputOf(client: Client, command: string): Promise<number> {
  const channel = await client.openSession();
  let received = 0;
  channel.onData((data) => void (received += data.length));
  await channel.exec(command);
  await channel.exit;
  return received;
}

/** Runs against a server that has a shell: dial makes an open transport. */
export async function bench(dial: () => Promise<Transport>, options: ConnectOptions, { megabytes = 64, keys = 300 } = {}): Promise<Figures> {
  const transport = await dial();
  const from = performance.now();
  const client = await connect(transport, options);
  const shell = await client.openSession();
  let seen: () => void = () => {};
  const byte = () => new Promise<void>((resolve) => (seen = resolve));
  shell.onData(() => seen());
  const first = byte();
  await Promise.all([shell.requestPty({ term: "xterm", cols: 80, rows: 24 }), shell.exec("echo ready; exec cat")]);
  await first;
  const shellMs = performance.now() - from;

  await new Promise((resolve) => setTimeout(resolve, 200));
  const echoes: number[] = [];
  for (let i = 0; i < keys; i++) {
    const at = performance.now();
    const echo = byte();
    await shell.write(Uint8Array.of(97 + (i % 26)));
    await echo;
    echoes.push(performance.now() - at);
    // A terminal takes a line of 4 KiB at most.
    if (i % 64 == 63) {
      const line = byte();
      await shell.write(Uint8Array.of(13));
      await line;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
  shell.close();
  echoes.sort((a, b) => a - b);

  const start = performance.now();
  const received = await outputOf(client, `head -c ${megabytes * 1_000_000} /dev/zero`);
  const seconds = (performance.now() - start) / 1000;
  if (received != megabytes * 1_000_000) throw new Error(`${received} bytes of ${megabytes} MB`);
  const figures = { kex: client.algorithms.kex, shellMs, mbPerS: received / 1e6 / seconds, echoP50: echoes[Math.floor(keys / 2)]!, echoP99: echoes[Math.floor(keys * 0.99)]! };
  client.disconnect();
  return figures;
}
