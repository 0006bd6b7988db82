// The client where the phone app has it: in a Worker, over a WebSocket, with a
// key that IndexedDB keeps. Orders come from the test by way of the page.

import { connect, deviceSigner, generateDeviceKey, HostKeyError, parsePublicKey, publicKeyLine, SshError, webSocketTransport, type ConnectOptions, type DeviceKey, type KeyType } from "@holdfast/ssh";
import { bench } from "../bench.js";

const stored = async <T>(mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> => {
  const wait = <V>(request: IDBRequest<V>) => new Promise<V>((resolve, reject) => ((request.onsuccess = () => resolve(request.result)), (request.onerror = () => reject(request.error))));
  const opening = indexedDB.open("keys");
  opening.onupgradeneeded = () => opening.result.createObjectStore("keys");
  const db = await wait(opening);
  try {
    return await wait(act(db.transaction("keys", mode).objectStore("keys")));
  } finally {
    db.close();
  }
};

const dial = (path: string) =>
  new Promise<ReturnType<typeof webSocketTransport>>((resolve, reject) => {
    const socket = new WebSocket(`ws://${location.host}${path}`);
    const transport = webSocketTransport(socket as never);
    socket.onopen = () => resolve(transport);
    socket.onerror = () => reject(new Error("no socket"));
  });

const options = async (user: string, pin: string): Promise<ConnectOptions> => ({
  user,
  hostKeys: [parsePublicKey(pin)],
  signer: deviceSigner(await stored<DeviceKey>("readonly", (s) => s.get("device"))),
});

const orders: Record<string, (...args: any[]) => Promise<unknown>> = {
  /** Makes a key and keeps it; says its line and whether it can be read out. */
  async key(type: KeyType) {
    const made = await generateDeviceKey(type);
    await stored("readwrite", (s) => s.put(made, "device"));
    const kept = await stored<DeviceKey>("readonly", (s) => s.get("device"));
    const refused: string[] = [];
    for (const format of ["pkcs8", "jwk", "raw"] as const) await crypto.subtle.exportKey(format as "jwk", kept.privateKey).catch((error) => refused.push(error.name));
    return { line: publicKeyLine(kept), refused };
  },
  async run(path: string, user: string, pin: string, command: string) {
    try {
      const client = await connect(await dial(path), await options(user, pin));
      const channel = await client.openSession();
      let out = "";
      channel.onData((data) => void (out += new TextDecoder().decode(data)));
      await channel.exec(command);
      const exit = await channel.exit;
      const { kex } = client.algorithms;
      const rtt = await client.ping();
      await client.rekey();
      client.disconnect();
      return { out, exit, kex, rtt };
    } catch (error) {
      return { code: (error as SshError).code, message: (error as Error).message, shown: error instanceof HostKeyError ? error.shown : "" };
    }
  },
  async bench(path: string, user: string, pin: string, how: object) {
    return bench(() => dial(path), await options(user, pin), how);
  },
  /** MB/s of a WebSocket alone. */
  raw: () =>
    new Promise((resolve) => {
      const socket = new WebSocket(`ws://${location.host}/raw`);
      socket.binaryType = "arraybuffer";
      let received = 0;
      const from = performance.now();
      socket.onmessage = ({ data }) => (received += data.byteLength);
      socket.onclose = () => resolve(received / 1e3 / (performance.now() - from));
    }),
  /** The modules that were loaded. */
  async loaded() {
    return performance.getEntriesByType("resource").map((entry) => entry.name);
  },
};

onmessage = async ({ data: [id, order, ...args] }) => {
  try {
    postMessage([id, null, await orders[order]!(...args)]);
  } catch (error) {
    postMessage([id, String((error as Error).stack ?? error)]);
  }
};
