// A browser that is watched as little as can be, for measuring: Playwright has
// every byte of every WebSocket reported to it, in base64, which costs the page's
// Worker, the browser and the test together more than what is measured.
//
// Speaks CDP over a pipe, and enables no domain but those that a caller names.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CHROMIUM, flags, PHONE } from "./lib.mjs";

/** Starts a browser; stop() ends it. */
export const startPlain = async () => {
  const profile = mkdtempSync(join(tmpdir(), "hfp-"));
  const child = spawn(CHROMIUM, [...flags, "--remote-debugging-pipe", `--user-data-dir=${profile}`, "about:blank"], { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
  const over = new Promise((resolve) => child.on("exit", resolve));
  const [, , , to, from] = child.stdio;
  const waiting = new Map();
  const listeners = [];
  let last = 0;
  let text = "";
  from.setEncoding("utf8").on("data", (more) => {
    const parts = (text + more).split("\0");
    text = parts.pop();
    for (const part of parts) {
      const m = JSON.parse(part);
      if (m.id) {
        const [resolve, reject] = waiting.get(m.id);
        waiting.delete(m.id);
        if (m.error) reject(new Error(m.error.message));
        else resolve(m.result);
      } else for (const f of listeners) f(m);
    }
  });
  to.on("error", () => {});
  const send = (method, params = {}, sessionId = undefined) =>
    new Promise((resolve, reject) => {
      waiting.set(++last, [resolve, reject]);
      to.write(JSON.stringify({ id: last, method, params, ...(sessionId && { sessionId }) }) + "\0");
    });

  /** A phone of a person of its own. */
  const phone = async () => {
    const { browserContextId } = await send("Target.createBrowserContext");
    const { targetId } = await send("Target.createTarget", { url: "about:blank", browserContextId });
    const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
    const page = (method, params) => send(method, params, sessionId);
    const workers = [];
    listeners.push((m) => m.sessionId == sessionId && m.method == "Target.attachedToTarget" && m.params.targetInfo.type == "worker" && workers.push(m.params.sessionId));
    const { width, height } = PHONE.viewport;
    await page("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: PHONE.deviceScaleFactor, mobile: true });
    await page("Emulation.setTouchEmulationEnabled", { enabled: true, maxTouchPoints: 5 });
    await page("Emulation.setUserAgentOverride", { userAgent: PHONE.userAgent, acceptLanguage: "en-US" });
    await page("Page.enable");
    /** Runs a function, given as such, in the page; its promise is waited for. */
    const run = async (f, ...args) => {
      const { result, exceptionDetails } = await page("Runtime.evaluate", { expression: `(${f})(...${JSON.stringify(args)})`, awaitPromise: true, returnByValue: true, userGesture: true });
      if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
      return result.value;
    };
    return {
      cdp: page,
      run,
      /** Before any script of the pages that follow. */
      before: (f) => page("Page.addScriptToEvaluateOnNewDocument", { source: `(${f})()` }),
      go: (url) => page("Page.navigate", { url }),
      /** Waits, in the page, for a function to be true: looks once in ms, and so costs next to nothing. */
      until: (f, ms = 50, limit = 100_000) =>
        run(`async () => {
          const test = ${f};
          for (const end = performance.now() + ${limit}; !test(); await new Promise((r) => setTimeout(r, ${ms})))
            if (performance.now() > end) throw new Error("waited in vain for " + test + ", with: " + document.body.innerText);
        }`),
      line: async (command) => {
        await run(() => document.querySelector("textarea.field").focus());
        await page("Input.insertText", { text: command });
        for (const type of ["rawKeyDown", "keyUp"]) await page("Input.dispatchKeyEvent", { type, key: "Enter", code: "Enter", windowsVirtualKeyCode: 13 });
      },
      tap: async (find) => {
        const at = await run(find);
        await page("Input.dispatchTouchEvent", { type: "touchStart", touchPoints: [at] });
        await page("Input.dispatchTouchEvent", { type: "touchEnd", touchPoints: [] });
      },
      /** Watches the Workers that start from here on; the newest one answers what it returns. */
      async watchWorkers() {
        await page("Target.setAutoAttach", { autoAttach: true, waitForDebuggerOnStart: false, flatten: true });
        return (method, params) => send(method, params, workers.at(-1));
      },
      close: () => send("Target.disposeBrowserContext", { browserContextId }),
    };
  };
  return {
    phone,
    async stop() {
      // Asked, it ends its other processes, too, which still write into the profile.
      send("Browser.close").catch(() => {});
      const slow = setTimeout(() => child.kill("SIGKILL"), 5000);
      await over;
      clearTimeout(slow);
      rmSync(profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
    },
  };
};
