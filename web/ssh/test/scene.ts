// A client and a Peer that know each other.

import { connect, deviceSigner, generateDeviceKey, type Channel, type Client, type ConnectOptions } from "@holdfast/ssh";
import { newServerKey, Peer, pinOf, type Tricks } from "./peer.js";

export const device = await generateDeviceKey();
/** The host key that is pinned. */
export const key = newServerKey();

export function begin(peer: Peer, more: Partial<ConnectOptions> = {}): Promise<Client> {
  const client = connect(peer.transport, { user: "phone", hostKeys: [pinOf(key)], signer: deviceSigner(device), timeoutMs: 10_000, ...more });
  client.catch(() => {});
  return client;
}

/** Lets the client in. What the peer does goes on beside it. */
export async function admitted(more: Partial<ConnectOptions> = {}, tricks: Tricks = {}): Promise<{ peer: Peer; client: Client }> {
  const peer = new Peer(key);
  const client = begin(peer, more);
  await peer.admit(tricks);
  return { peer, client: await client };
}

export interface Scene {
  peer: Peer;
  client: Client;
  channel: Channel;
  /** The client's number of the channel. */
  number: number;
}

export async function withChannel(more: Partial<ConnectOptions> = {}, terms: Parameters<Peer["confirm"]>[0] = {}): Promise<Scene> {
  const { peer, client } = await admitted(more);
  const opening = client.openSession();
  const number = await peer.confirm(terms);
  return { peer, client, channel: await opening, number };
}
