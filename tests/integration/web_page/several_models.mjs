// The web page before a daemon with several models.
import assert from "node:assert/strict";
import { eventually } from "./browser.mjs";
import {
  ask, button, kQuestion, lastMessage, lastText, newConversation, startDaemon, untilAnswered,
} from "./page_steps.mjs";

// Of several models the page asks one that the server has, whatever an old conversation asked.
export async function oneOfSeveralModelsIsAsked(browser) {
  const daemon = await startDaemon("several", ["models.0.path=builtin", "models.0.name=second", "models.0.load=first_use",
    "models.1.path=builtin", "models.1.name=first"]);
  const page = await browser.open(1440, 900);
  await page.go(`${daemon.url}/`);
  await page.run(`localStorage.setItem("bulkhead.conversation.1",
    JSON.stringify({ id: "1", settings: { model: "removed", max_tokens: "4" }, messages: [{ role: "user", content: "x" }] }))`);
  await page.go(`${daemon.url}/`);
  await eventually("the loaded model is chosen", () => page.run(`document.getElementById("model").value === "first"`));
  await newConversation(page);
  await page.click(button(kQuestion));
  await untilAnswered(page);
  assert.equal((await lastMessage(page)).error, undefined);
  assert.notEqual((await lastMessage(page)).content, "");
  await page.close();
  await daemon.end();
}

// An answer that pauses for another reason does not blame the death of another model's worker.
export async function anotherModelsDeathIsNotBlamed(browser) {
  const daemon = await startDaemon("two-models", ["models.0.path=builtin", "models.0.name=asked",
    "models.1.path=builtin", "models.1.name=other", "isolation.heartbeat_timeout_ms=120000"]);
  const worker = async (name) =>
    (await (await fetch(`${daemon.url}/v1/workers`)).json()).find((each) => each.name === `${name}-0`);
  const page = await browser.open(1440, 900);
  await page.go(`${daemon.url}/`);
  await eventually("the model is chosen", () => page.run(`document.getElementById("model").value === "asked"`));
  await ask(page, kQuestion);
  await eventually("the answer begins", async () => (await lastText(page)).length > 0);
  const { pid } = await worker("asked");
  process.kill(pid, "SIGSTOP");
  try {
    process.kill((await worker("other")).pid, "SIGKILL");
    await eventually("the other worker is replaced", async () => (await worker("other")).restarts === 1, 120_000);
    const words = await eventually("the page tells of the pause",
      () => page.run(`document.querySelector(".note.waits")?.textContent`));
    assert.equal(words, "Paused ...");
  } finally {
    process.kill(pid, "SIGCONT");
  }
  await untilAnswered(page);
  assert.deepEqual((await lastMessage(page)).pauses, []);
  await page.close();
  await daemon.end();
}
