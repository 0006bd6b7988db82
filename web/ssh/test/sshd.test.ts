import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { connect, deviceSigner, generateDeviceKey, publicKeyLine, type Client, type ConnectOptions, type DeviceKey } from "@holdfast/ssh";
import { noSshd, startSshd, user, type Sshd } from "./sshd.js";

const options = { skip: noSshd };
let sshd: Sshd;
let device: DeviceKey;
before(async () => {
  if (noSshd) return;
  sshd = startSshd();
  device = await generateDeviceKey();
  sshd.authorize(publicKeyLine(device));
});
after(() => sshd?.stop());

const login = (more: Partial<ConnectOptions> = {}): Promise<Client> => connect(sshd.connection().transport, { user, hostKeys: [sshd.ed25519], signer: deviceSigner(device), ...more });

test("logs in and runs a command", options, async () => {
  const client = await login();
  const channel = await client.openSession();
  let out = "";
  channel.onData((data, stream) => void (out += `${stream} ${Buffer.from(data)}`));
  await channel.exec("echo hello; exit 7");
  assert.deepEqual(await channel.exit, { code: 7 });
  assert.equal(out, "stdout hello\n");
  assert.deepEqual(client.algorithms, { kex: "curve25519-sha256", hostKey: "ssh-ed25519", cipherIn: "aes256-gcm@openssh.com", cipherOut: "aes256-gcm@openssh.com", strict: true });
  client.disconnect();
  assert.equal((await client.closed).code, "closed");
});
