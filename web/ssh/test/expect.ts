import assert from "node:assert/strict";
import { createHash } from "node:crypto";

import { SshError, type Channel, type Client, type ErrorCode, type Exit } from "@holdfast/ssh";

/** Whether the gigabytes are wanted. */
export const long = process.env.HOLDFAST_LONG == "1";

export const sha256 = (data: string | Uint8Array) => createHash("sha256").update(data).digest("hex");

/** Says that p is rejected with an SshError of that code and, where given, such words. */
export async function rejects(p: Promise<unknown>, code: ErrorCode, words?: RegExp): Promise<SshError> {
  try {
    await p;
  } catch (error) {
    assert(error instanceof SshError, `${error instanceof Error ? error.stack : error}`);
    assert.equal(error.code, code, error.message);
    if (words) assert.match(error.message, words);
    return error;
  }
  assert.fail(`not rejected; want ${code}`);
}

export interface Collected {
  out: string;
  err: string;
  exit: Exit;
}

/** Reads all of a channel. */
export async function collect(channel: Channel): Promise<Collected> {
  const parts = { stdout: [] as Uint8Array[], stderr: [] as Uint8Array[] };
  channel.onData((data, stream) => void parts[stream].push(data.slice()));
  const exit = await channel.exit;
  return { out: Buffer.concat(parts.stdout).toString(), err: Buffer.concat(parts.stderr).toString(), exit };
}

/** Runs a command in a channel of its own. */
export async function run(client: Client, command: string): Promise<Collected> {
  const channel = await client.openSession();
  const all = collect(channel);
  await channel.exec(command);
  return all;
}
