// The Go server of test/server, built and started, with the proxy in front of it
// and the port that takes orders.

import { execFileSync, spawn } from "node:child_process";
import { createInterface } from "node:readline";

export interface Site {
  /** Host and port of the channels: past the proxy, through it, and where orders are taken. */
  site: string;
  proxy: string;
  control: string;
  /** Gives an order, such as "post" with an id and a text; fails where the server says so. */
  order(path: string, fields?: Record<string, string>): Promise<void>;
  /** Does something to the path through the proxy; see test/server. */
  fault(what: string, fields?: Record<string, string>): Promise<void>;
  /** Connections that the proxy has accepted, links that are open, questions about tokens. */
  path(): Promise<{ accepted: number; links: number; asked: number }>;
  /** What `GET path` of the control port answers. */
  look<T>(path: string): Promise<T>;
  stop(): void;
}

/** Builds the server; root is the folder of this package. */
export const buildSite = (root: string): string => {
  const binary = `${root}build/server`;
  execFileSync(process.env.GO ?? "go", ["build", "-o", binary, "./test/server"], { cwd: root, stdio: "inherit" });
  return binary;
};

export const startSite = async (binary: string, ...args: string[]): Promise<Site> => {
  const child = spawn(binary, args, { stdio: ["ignore", "pipe", "inherit"] });
  const first = await new Promise<string>((done, failed) => {
    createInterface(child.stdout!).once("line", done);
    child.once("exit", (code) => failed(new Error(`the server ended with ${code}`)));
  });
  const { site, proxy, control } = JSON.parse(first);
  const order = async (path: string, fields: Record<string, string> = {}) => {
    const r = await fetch(`http://${control}/${path}`, { method: "POST", body: new URLSearchParams(fields) });
    if (!r.ok) throw new Error(`${path}: ${r.status} ${await r.text()}`);
  };
  const look = async (path: string) => {
    const r = await fetch(`http://${control}/${path}`);
    if (!r.ok) throw new Error(`${path}: ${r.status}`);
    return r.json();
  };
  return {
    site,
    proxy,
    control,
    order,
    fault: (what, fields = {}) => order("fault", { do: what, ...fields }),
    path: () => look("path"),
    look,
    stop: () => child.kill(),
  };
};
