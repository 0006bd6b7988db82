import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { connect, deviceSigner, generateDeviceKey, publicKeyLine, type Client, type ConnectOptions, type DeviceKey } from "@holdfast/ssh";
import { startGo, tcpTransport, type GoServer } from "./go.js";

let device: DeviceKey;
let server: GoServer;
before(async () => {
  device = await generateDeviceKey();
  server = await startGo(publicKeyLine(device));
});
after(() => server?.stop());

const login = (s: GoServer, more: Partial<ConnectOptions> = {}): Promise<Client> => connect(tcpTransport(s.plain), { user: "root", hostKeys: [s.plainKeys[0]!], signer: deviceSigner(device), ...more });

test("x/crypto: logs in, post-quantum, and both ends name the same session", async () => {
  const client = await login(server);
  assert.equal(client.algorithms.kex, "mlkem768x25519-sha256");
  assert.equal(client.postQuantum, true);
  client.disconnect();
});

test("built-in server", async () => {
  const client = await connect(tcpTransport(server.builtin), { user: "root", hostKeys: [server.builtinKeys[0]!], signer: deviceSigner(device) });
  assert.equal(client.postQuantum, true);
  const channel = await client.openSession();
  let out = "";
  channel.onData((data) => void (out += Buffer.from(data)));
  await channel.requestPty({ term: "xterm-256color", cols: 80, rows: 24 });
  await channel.exec("stty size");
  assert.deepEqual(await channel.exit, { code: 0 });
  assert.equal(out, "24 80\r\n");
  client.disconnect();
});
