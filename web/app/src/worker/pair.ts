// Pairing: from the text of a link to a machine that lets this device in.
//
// The relay is shown its own share of the secret for a token. The machine, inside
// SSH and against the host key that came with the link, is shown a proof of the
// other. Neither learns what the other needs.

import { connect, deviceSigner, HostKeyError, publicKeyLine, SshError, type Client, type DeviceKey, type HostKey } from "@holdfast/ssh";
import { concat } from "../pairing/bytes.js";
import { ED25519, P256, parseKey, type PublicKey } from "../pairing/key.js";
import { LinkError, parseLink, prove, relaySecret, type Link } from "../pairing/link.js";
import { MAX_LINE, parseResponse, requestLine, SUBSYSTEM, type PairAccepted } from "../pairing/subsystem.js";
import { access, redeem, RelayError, type Redeemed } from "../relay.js";
import { StorageError } from "../store/database.js";
import { rememberMachine } from "../store/db.js";
import { deviceKey } from "../store/device.js";
import type { PairFault, PairStep, Tell } from "./messages.js";
import { openStream, streamUrl, type SocketEnd } from "./socket.js";

class PairError extends Error {
  constructor(
    readonly fault: PairFault,
    readonly more: { text?: string; expires?: number; pinned?: readonly string[]; shown?: string } = {},
  ) {
    super(fault);
  }
}

/** From the link to the machine's answer; the machine may take 10 s to dial back. */
const TIMEOUT = 25e3;

const pins = (keys: readonly PublicKey[]): HostKey[] =>
  keys.filter((k): k is PublicKey & HostKey => k.type == ED25519 || k.type == P256).map(({ type, blob }) => ({ type: type as HostKey["type"], blob }));

export const pair = async (text: string, name: string, step: (s: PairStep) => void): Promise<Tell> => {
  try {
    return { op: "paired", machine: await attempt(text, name, step) };
  } catch (e) {
    if (e instanceof PairError) return { op: "notPaired", fault: e.fault, ...e.more };
    if (e instanceof LinkError) return { op: "notPaired", fault: e.fault };
    if (e instanceof StorageError || (e instanceof DOMException && e.name == "DataCloneError")) return { op: "notPaired", fault: "storage" };
    return { op: "notPaired", fault: "ssh", text: e instanceof Error ? e.message.slice(0, 300) : "" };
  }
};

const attempt = async (text: string, name: string, step: (s: PairStep) => void): Promise<string> => {
  const link = await parseLink(text);
  if (!globalThis.crypto?.subtle) throw new PairError("insecure");
  step("key");
  const key = await deviceKey();

  step("redeem");
  const late = { expires: link.expires * 1000 };
  const overdue = Date.now() >= late.expires;
  let got: Redeemed;
  try {
    got = await redeem(link.relay, await relaySecret(link), publicKeyLine(key), name);
  } catch (e) {
    if (!(e instanceof RelayError)) throw e;
    if (e.status == 404 && e.code == 4404) throw new PairError(overdue ? "expired" : "unknown", late);
    if (e.status == 429) throw new PairError("limit");
    if (e.code == 1006 && !e.status) throw new PairError("unreachable");
    throw new PairError("relay", { text: e.message });
  }
  if (got.machine != link.machine) throw new PairError("relay", { text: "the relay names another machine" });

  step("connect");
  const answer = await overSsh(link, got.token, key, name, step);
  const sshd = answer.sshd && { hostKeys: pins(await Promise.all(answer.sshd.keys.map(parseKey))), installed: answer.sshd.installed, ...(answer.sshd.note && { note: answer.sshd.note }) };
  const record = await rememberMachine({
    relay: link.relay,
    account: got.account,
    machine: link.machine,
    token: got.token,
    device: got.device,
    user: answer.user,
    // The built-in server speaks the sessions protocol on the same connection
    // and is post-quantum; the machine's sshd is chosen where it gives no shell.
    service: !answer.shell && sshd?.installed && sshd.hostKeys.length ? "sshd" : "ssh",
    shell: answer.shell,
    hostKeys: pins(link.hostKeys),
    ...(sshd && { sshd }),
    pairedAt: Date.now(),
  });
  return record.id;
};

/** Proves itself to the machine, inside SSH against the link's host keys. */
const overSsh = async (link: Link, token: string, key: DeviceKey, name: string, step: (s: PairStep) => void): Promise<PairAccepted> => {
  let end: SocketEnd | undefined;
  let client: Client | undefined;
  let stream: ReturnType<typeof openStream> | undefined;
  const signal = AbortSignal.timeout(TIMEOUT);
  try {
    await new Promise<void>((resolve, reject) => {
      signal.addEventListener("abort", () => reject(new PairError("offline")));
      stream = openStream(streamUrl(link.relay, link.machine, "ssh"), token, { opened: resolve, ended: (e) => ((end = e), reject(e)) });
    });
    client = await connect(stream!.transport, { user: "holdfast", hostKeys: pins(link.hostKeys), signer: deviceSigner(key), signal, timeoutMs: TIMEOUT });
    step("prove");
    const channel = await client.openSession();
    await channel.subsystem(SUBSYSTEM);
    const proof = await prove(link, { sessionId: client.sessionId, deviceKey: key.publicBlob, hostKey: client.hostKey.blob, machine: link.machine });
    const line = firstLine(channel);
    await channel.write(new TextEncoder().encode(requestLine(proof, name)));
    const answer = await parseResponse(await line);
    if (answer.ok) {
      if (answer.machine != link.machine) throw new PairError("failed", { text: "the machine has another name" });
      return answer;
    }
    const faults: Record<string, PairFault> = { proof: "proof", expired: "closed", bound: "bound" };
    throw new PairError(faults[answer.code] ?? "failed", { text: answer.message });
  } catch (e) {
    if (e instanceof PairError) throw e;
    if (e instanceof HostKeyError) throw new PairError("hostKey", { pinned: e.pinned, shown: e.shown });
    // The relay's close code says more than SSH's "the transport ended".
    await new Promise((r) => setTimeout(r, 0));
    if (end) {
      if (!end.opened) end = { ...end, ...(await access(link.relay, token, link.machine).then(() => ({ code: 1006 }), (r) => ({ code: r instanceof RelayError ? r.code : 1006 }))) };
      if (end.code == 1013 || end.code == 4104) throw new PairError("offline");
      if (end.code == 4129) throw new PairError("limit");
      if (end.code == 4502 || end.code == 4404 || end.code == 4403 || end.code == 4401) throw new PairError("failed", { text: end.reason });
      if (end.code == 1006 && !end.opened) throw new PairError("unreachable");
    }
    if (e instanceof SshError && e.code == "auth") throw new PairError("closed");
    throw e;
  } finally {
    client?.disconnect();
    if (!client) stream?.retire();
  }
};

/** The machine's one line, however it is cut into pieces. */
const firstLine = (channel: Awaited<ReturnType<Client["openSession"]>>): Promise<string> =>
  new Promise((resolve, reject) => {
    let got = new Uint8Array();
    channel.onData((data, stream) => {
      if (stream != "stdout") return;
      got = concat(got, data);
      const at = got.indexOf(10);
      if (at >= 0) resolve(new TextDecoder().decode(got.subarray(0, at)));
      else if (got.length > MAX_LINE) reject(new PairError("failed", { text: "the machine's answer is too long" }));
    });
    void channel.exit.then((e) => reject(e.lost ?? new PairError("failed", { text: "the machine ended without an answer" })));
  });
