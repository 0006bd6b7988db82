// Debian's Chromium with tabs as people have them: the browser's driver makes
// every page believe that it is in front and has the focus, so these tabs are
// made and spoken to past it, over the protocol's own messages.

import { existsSync } from "node:fs";
import { chromium, type Browser, type CDPSession } from "playwright-core";

export const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** Whether to skip for want of a browser, with the reason; a full run must have one. */
export const missing = (): string | false => {
  if (existsSync(executablePath)) return false;
  if (process.env.HOLDFAST_TEST_ALL) throw new Error(`no Chromium at ${executablePath}: scripts/setup test installs it, CHROMIUM names another`);
  return `no Chromium at ${executablePath}`;
};

export const launch = (): Promise<Browser> =>
  chromium.launch({
    executablePath,
    args: [
      ..."headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update disable-sync"
        .split(" ")
        .map((a) => `--${a}`),
    ],
    // What is tested here is what these would turn off.
    ignoreDefaultArgs: [
      "--disable-background-timer-throttling",
      "--disable-backgrounding-occluded-windows",
      "--disable-renderer-backgrounding",
      "--disable-back-forward-cache",
    ],
  });

/** One browser window with tabs of its own, which shares nothing with others. */
export class Window {
  #waiting = new Map<number, { done: (result: any) => void; failed: (e: Error) => void }>();
  #last = 0;

  private constructor(
    readonly session: CDPSession,
    readonly context: string,
  ) {
    session.on("Target.receivedMessageFromTarget", ({ message }) => {
      const { id, result, error } = JSON.parse(message);
      const waiting = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (error) waiting?.failed(new Error(error.message));
      else waiting?.done(result);
    });
  }

  static async open(browser: Browser): Promise<Window> {
    const session = await browser.newBrowserCDPSession();
    const { browserContextId } = await session.send("Target.createBrowserContext");
    return new Window(session, browserContextId);
  }

  /** A new tab in front; script runs before every page in it. */
  async tab(url: string, script?: string): Promise<Tab> {
    const { targetId } = await this.session.send("Target.createTarget", { url: "about:blank", browserContextId: this.context });
    const { sessionId } = await this.session.send("Target.attachToTarget", { targetId, flatten: false });
    const tab = new Tab(this, targetId, sessionId);
    await tab.send("Page.enable");
    if (script) await tab.send("Page.addScriptToEvaluateOnNewDocument", { source: script });
    await tab.send("Page.navigate", { url });
    return tab;
  }

  send(sessionId: string, method: string, params: object): Promise<any> {
    const id = ++this.#last;
    const answer = new Promise((done, failed) => this.#waiting.set(id, { done, failed }));
    return this.session.send("Target.sendMessageToTarget", { sessionId, message: JSON.stringify({ id, method, params }) }).then(() => answer);
  }

  async close() {
    await this.session.send("Target.disposeBrowserContext", { browserContextId: this.context });
    await this.session.detach();
  }
}

export class Tab {
  constructor(
    readonly window: Window,
    readonly target: string,
    readonly sessionId: string,
  ) {}

  send(method: string, params: object = {}): Promise<any> {
    return this.window.send(this.sessionId, method, params);
  }

  /** Brings the tab in front, which hides the one that was there. */
  async show() {
    await this.window.session.send("Target.activateTarget", { targetId: this.target });
  }

  /** The value of an expression in the page. */
  async value<T>(expression: string): Promise<T> {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  /** What a person reads in an element; "" where there is none. */
  text(selector: string): Promise<string> {
    return this.value(`document.querySelector(${JSON.stringify(selector)})?.textContent?.trim() ?? ""`);
  }

  click(selector: string): Promise<void> {
    return this.value(`void document.querySelector(${JSON.stringify(selector)}).click()`);
  }

  offline(offline: boolean) {
    return this.send("Network.emulateNetworkConditions", { offline, latency: 0, downloadThroughput: -1, uploadThroughput: -1 });
  }

  /** As the browser freezes a page that has long been in the background. */
  freeze(frozen: boolean) {
    return this.send("Page.setWebLifecycleState", { state: frozen ? "frozen" : "active" });
  }

  async back() {
    const { currentIndex, entries } = await this.send("Page.getNavigationHistory");
    await this.send("Page.navigateToHistoryEntry", { entryId: entries[currentIndex - 1].id });
  }
}
