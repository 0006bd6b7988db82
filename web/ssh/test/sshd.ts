// The system's sshd, one process for a connection, on pipes: it needs no port
// and cannot outlive its test.

import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir, userInfo } from "node:os";
import { join } from "node:path";

import { parsePublicKey, type HostKey, type Transport } from "@holdfast/ssh";

const where = ["/usr/sbin", "/usr/local/sbin", "/sbin", ...(process.env.PATH ?? "").split(":")];
const find = (program: string) => where.map((dir) => join(dir, program)).find(existsSync);

/** Why tests against sshd are skipped, or undefined where they are not. */
export const noSshd = find("sshd") || process.env.HOLDFAST_TEST_ALL == "1" ? undefined : "there is no sshd here";

export const user = userInfo().username;

/** A transport over a process's standard streams, or anything like them. */
export function pipeTransport(out: NodeJS.WritableStream, from: NodeJS.ReadableStream, close: () => void): Transport {
  const transport: Transport = {
    onmessage: null,
    onclose: null,
    send: (bytes) => new Promise((resolve, reject) => out.write(bytes, (error) => (error ? reject(error) : resolve()))),
    close,
  };
  from.on("data", (chunk: Buffer) => transport.onmessage?.(chunk));
  from.on("close", () => transport.onclose?.("the pipe was closed"));
  out.on("error", () => {});
  return transport;
}

export interface Sshd {
  ed25519: HostKey;
  ecdsa: HostKey;
  /** What all connections' processes said. */
  log(): string;
  /** Starts a process for one connection. */
  connection(): { transport: Transport; process: ChildProcess };
  /** Lets a key in. */
  authorize(line: string): void;
  stop(): void;
}

/** more: lines of its configuration, which win over these. */
export function startSshd(...more: string[]): Sshd {
  const program = find("sshd");
  if (!program) throw new Error("there is no sshd here");
  // Debian's wants its empty directory, which its service makes.
  if (process.getuid?.() == 0) mkdirSync("/run/sshd", { recursive: true, mode: 0o755 });
  const dir = mkdtempSync(join(tmpdir(), "webssh-"));
  for (const type of ["ed25519", "ecdsa"]) execFileSync("ssh-keygen", ["-q", "-t", type, "-N", "", "-f", join(dir, type)]);
  const keys = join(dir, "authorized_keys");
  writeFileSync(keys, "");
  chmodSync(keys, 0o600);
  writeFileSync(
    join(dir, "config"),
    [
      ...more,
      `HostKey ${join(dir, "ed25519")}`,
      `HostKey ${join(dir, "ecdsa")}`,
      `AuthorizedKeysFile ${keys}`,
      "PidFile none",
      "StrictModes no",
      "UsePAM no",
      "PasswordAuthentication no",
      "KbdInteractiveAuthentication no",
      "PermitRootLogin yes",
      "UseDNS no",
      "PrintMotd no",
      "Subsystem sftp internal-sftp",
      "AcceptEnv HOLDFAST_TEST",
      // What the person who runs the tests has in a profile takes its time.
      `SetEnv HOME=${dir}`,
      "LogLevel VERBOSE",
    ].join("\n") + "\n",
  );
  const processes = new Set<ChildProcess>();
  let log = "";
  return {
    ed25519: parsePublicKey(readFileSync(join(dir, "ed25519.pub"), "utf8")),
    ecdsa: parsePublicKey(readFileSync(join(dir, "ecdsa.pub"), "utf8")),
    log: () => log,
    connection() {
      const child = spawn(program, ["-i", "-e", "-f", join(dir, "config")], { stdio: ["pipe", "pipe", "pipe"] });
      processes.add(child);
      child.on("exit", () => processes.delete(child));
      child.stderr.on("data", (text) => (log += text));
      return { transport: pipeTransport(child.stdin, child.stdout, () => child.stdin.end()), process: child };
    },
    authorize: (line) => writeFileSync(keys, readFileSync(keys, "utf8") + line + "\n"),
    stop() {
      for (const child of processes) child.kill();
      rmSync(dir, { recursive: true, force: true });
    },
  };
}
