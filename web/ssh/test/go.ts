// The server of test/server: x/crypto/ssh, and Holdfast's built-in one.

import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { connect as dial } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

import { parsePublicKey, type HostKey, type Transport } from "@holdfast/ssh";
import { pipeTransport } from "./sshd.js";

let directory: string | null = null;
let binary = "";

/** Builds it, once a process. */
function build(): string {
  if (directory) return binary;
  directory = mkdtempSync(join(tmpdir(), "webssh-go-"));
  process.on("exit", () => rmSync(directory!, { recursive: true, force: true }));
  binary = join(directory, "server");
  execFileSync("go", ["build", "-o", binary, "./test/server"], { stdio: ["ignore", "inherit", "inherit"] });
  return binary;
}

export interface GoServer {
  plain: string;
  plainKeys: HostKey[];
  builtin: string;
  builtinKeys: HostKey[];
  /** What it saw, in order. */
  saw: { saw: string; [more: string]: unknown }[];
  stop(): void;
}

export async function startGo(device: string, ...flags: string[]): Promise<GoServer> {
  const child: ChildProcess = spawn(build(), ["-device", device, ...flags], { stdio: ["pipe", "pipe", process.env.HOLDFAST_VERBOSE ? "inherit" : "ignore"] });
  const lines = createInterface({ input: child.stdout! });
  const saw: GoServer["saw"] = [];
  const first = await new Promise<string>((resolve, reject) => {
    lines.once("line", resolve);
    child.once("exit", (code) => reject(new Error(`the server ended: ${code}`)));
  });
  lines.on("line", (line) => saw.push(JSON.parse(line)));
  const { plain, plainKeys, builtin, builtinKeys } = JSON.parse(first);
  return { plain, builtin, plainKeys: plainKeys.map(parsePublicKey), builtinKeys: builtinKeys.map(parsePublicKey), saw, stop: () => void child.stdin!.end() };
}

/** A transport over TCP. */
export function tcpTransport(addr: string): Transport {
  const [host, port] = addr.split(":");
  const socket = dial({ host: host!, port: Number(port), noDelay: true });
  return pipeTransport(socket, socket, () => socket.end());
}
