// A headless Chromium, driven by its DevTools protocol over two pipes: no package is needed for that.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const kPatienceMs = 60_000;  // a loaded machine may take its time

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Looks again until `look` gives something true, and returns that.
export async function eventually(words, look, patience = kPatienceMs) {
  const deadline = Date.now() + patience;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`this did not happen in ${patience / 1000} s: ${words}`);
    await sleep(50);
  }
}

export class Browser {
  #process;
  #folder = mkdtempSync(join(tmpdir(), "bulkhead-browser-"));
  #next = 1;
  #waiting = new Map();
  #listeners = [];
  #text = "";

  constructor(program) {
    this.#process = spawn(program, [
      "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
      "--remote-debugging-pipe", `--user-data-dir=${this.#folder}`, "about:blank",
    ], { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    this.#process.stdio[4].setEncoding("utf8").on("data", (bytes) => this.#take(bytes));
  }

  #take(bytes) {
    this.#text += bytes;
    for (let end; (end = this.#text.indexOf("\0")) >= 0; this.#text = this.#text.slice(end + 1)) {
      const message = JSON.parse(this.#text.slice(0, end));
      if (message.id === undefined) {
        for (const listener of this.#listeners) listener(message);
        continue;
      }
      const { resolve, reject, method } = this.#waiting.get(message.id);
      this.#waiting.delete(message.id);
      if (message.error) reject(new Error(`${method}: ${message.error.message}`));
      else resolve(message.result);
    }
  }

  send(method, params = {}, sessionId = undefined) {
    const id = this.#next++;
    this.#process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject, method }));
  }

  on(listener) {
    this.#listeners.push(listener);
  }

  // A tab with storage of its own.
  async open(width, height) {
    const { browserContextId } = await this.send("Target.createBrowserContext");
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank", browserContextId, width, height });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, sessionId, targetId);
    await page.begin();
    return page;
  }

  async end() {
    const gone = new Promise((resolve) => this.#process.once("exit", resolve));
    this.#process.kill("SIGKILL");
    await gone;
    await eventually("the browser's folder can be removed", () => {
      try {
        rmSync(this.#folder, { recursive: true, force: true });
        return true;
      } catch {
        return false;  // a process of it still writes
      }
    });
  }
}

export class Page {
  requests = [];  // {url, type}
  errors = [];  // what a reader of the console would see as one

  constructor(browser, session, target) {
    this.browser = browser;
    this.session = session;
    this.target = target;
    browser.on((event) => event.sessionId === session && this.take(event));
  }

  send(method, params) {
    return this.browser.send(method, params, this.session);
  }

  async begin() {
    for (const domain of ["Page", "Runtime", "Network", "Log", "Accessibility"]) await this.send(`${domain}.enable`);
  }

  take({ method, params }) {
    if (method === "Network.requestWillBeSent") this.requests.push({ url: params.request.url, type: params.type });
    if (method === "Runtime.exceptionThrown")
      this.errors.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === "Runtime.consoleAPICalled" && ["error", "assert"].includes(params.type))
      this.errors.push(params.args.map((arg) => arg.value ?? arg.description).join(" "));
    if (method === "Log.entryAdded" && params.entry.level === "error")
      this.errors.push(`${params.entry.text} ${params.entry.url ?? ""}`);
    if (method === "Fetch.requestPaused") this.answer?.(params);
  }

  async go(url) {
    await this.send("Page.navigate", { url });
    await eventually(`${url} is loaded`, () => this.run("document.readyState === 'complete'").catch(() => false));
  }

  // The value of an expression, which may be a promise.
  async run(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate",
      { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  // A click of the mouse in the middle of what `find` (an expression) gives.
  async click(find) {
    const place = await eventually(`${find} can be clicked`, () => this.run(`(() => {
      const element = ${find};
      if (!element || element.disabled) return null;
      element.scrollIntoView({ block: "nearest" });
      const box = element.getBoundingClientRect();
      const at = { x: box.x + box.width / 2, y: box.y + box.height / 2 };
      const hit = document.elementFromPoint(at.x, at.y);
      return box.width > 0 && (element.contains(hit) || hit?.contains(element)) ? at : null;
    })()`));
    for (const type of ["mousePressed", "mouseReleased"])
      await this.send("Input.dispatchMouseEvent", { type, ...place, button: "left", clickCount: 1 });
  }

  async type(text) {
    await this.send("Input.insertText", { text });
  }

  async press(key, { code = key, text = undefined, number = 0 } = {}) {
    const fields = { key, code, windowsVirtualKeyCode: number };
    await this.send("Input.dispatchKeyEvent", { type: text ? "keyDown" : "rawKeyDown", text, ...fields });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...fields });
  }
  enter = () => this.press("Enter", { text: "\r", number: 13 });
  tab = () => this.press("Tab", { number: 9 });
  escape = () => this.press("Escape", { number: 27 });

  async look({ width, height, theme, mobile = false }) {
    await this.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile });
    await this.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: theme }] });
    await sleep(250);
  }

  async screenshot(file) {
    const { data } = await this.send("Page.captureScreenshot", { format: "png" });
    writeFileSync(file, Buffer.from(data, "base64"));
  }

  close() {
    return this.browser.send("Target.closeTarget", { targetId: this.target });
  }
}
