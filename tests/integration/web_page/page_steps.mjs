// What the tests of the web page do again and again: start a daemon, ask the page, and read what it shows.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { closeSync, openSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { eventually } from "./browser.mjs";

const [bin, folder] = process.argv.slice(2);
export const work = folder;
export const kQuestion = "Tell me a story about a fox.";

export async function startDaemon(name, settings) {
  const out = join(work, `${name}.out`);
  const files = [openSync(out, "w"), openSync(join(work, `${name}.log`), "w")];
  const words = ["server.port=0", ...settings].flatMap((setting) => ["--set", setting]);
  const daemon = spawn(join(bin, "bulkheadd"), words, { stdio: ["ignore", ...files] });
  files.forEach(closeSync);
  process.once("exit", () => daemon.kill("SIGKILL"));
  const ended = new Promise((resolve) => daemon.once("exit", (code, signal) => resolve(code ?? signal)));
  const url = await eventually(`${name} listens`, () => /^listening on (\S+)/m.exec(readFileSync(out, "utf8"))?.[1], 240_000);
  return {
    url,
    async end() {
      daemon.kill("SIGTERM");
      assert.equal(await ended, 0, `${name} ends well after SIGTERM`);
    },
  };
}

export async function askDirectly(url) {
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ temperature: 0, messages: [{ role: "user", content: kQuestion }] }),
  });
  return (await response.json()).choices[0].message.content;
}

export const button = (words, within = "document") =>
  `[...${within}.querySelectorAll("button")].find((b) => b.textContent === ${JSON.stringify(words)} && b.offsetParent !== null)`;
export const conversations = `Object.keys(localStorage).filter((k) => k.startsWith("bulkhead.conversation."))
  .map((k) => JSON.parse(localStorage.getItem(k))).sort((a, b) => b.changed - a.changed)`;
export const lastMessage = async (page) => (await page.run(`${conversations}[0]?.messages ?? []`)).at(-1);
export const lastText = (page) => page.run(`document.querySelector(".message:last-child > .text")?.textContent ?? ""`);
export const answering = (page) => page.run(`document.getElementById("send").hidden`);
export const plain = (text) => text.replace(/\s+/g, "");

export async function newConversation(page) {
  await page.click(button("New conversation"));
}
export async function ask(page, words) {
  await page.click(`document.getElementById("prompt")`);
  await page.type(words);
  await page.enter();
}
export async function untilAnswered(page) {
  await eventually("an answer begins", () => page.run(`document.querySelector(".message.assistant") !== null`));
  await eventually("the answer is complete", async () => !(await answering(page)), 180_000);
}
