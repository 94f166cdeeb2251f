// The web page before the real daemon: chat streams, survives the death of its worker, charts move, nothing
// leaves the origin, no text of a model becomes HTML, the key is asked for.
//   BULKHEAD_BROWSER=PROGRAM node page_test.mjs BIN WORK
import assert from "node:assert/strict";
import { join } from "node:path";
import { Browser, eventually, sleep } from "./browser.mjs";
import { anotherModelsDeathIsNotBlamed, oneOfSeveralModelsIsAsked } from "./several_models.mjs";
import {
  answering, ask, askDirectly, button, conversations, kQuestion, lastMessage, lastText, newConversation, plain,
  startDaemon, untilAnswered, work,
} from "./page_steps.mjs";

const kMostPageBytes = 200 * 1024;
const kLatestPaintMs = 500;

async function filesAreServedRight(url) {
  const index = await fetch(`${url}/`);
  assert.equal(index.status, 200);
  assert.match(index.headers.get("content-type"), /^text\/html/);
  const policy = index.headers.get("content-security-policy");
  assert.match(policy, /default-src 'none'/);
  assert.doesNotMatch(policy, /unsafe/);
  assert.equal(index.headers.get("x-content-type-options"), "nosniff");
  const known = { headers: { "If-None-Match": index.headers.get("etag") } };
  assert.equal((await fetch(`${url}/`, known)).status, 304, "a page that is known is not sent again");
  known.headers["If-None-Match"] = '"another"';
  assert.equal((await fetch(`${url}/`, known)).status, 200);
  assert.equal((await fetch(`${url}/page/none.js`)).status, 404);
  assert.equal((await fetch(`${url}/page/..%2fpage.hpp`)).status, 404);
  assert.equal((await fetch(`${url}/`, { method: "POST" })).status, 405);
}

async function chatStreams(page, expected) {
  await page.click(`document.querySelector("#parameters summary")`);
  await page.click(`document.querySelector("[name=temperature]")`);
  await page.type("0");
  await page.click(`document.querySelector("#parameters summary")`);
  await ask(page, kQuestion);
  const lengths = new Set();
  await eventually("the answer is complete", async () => {
    lengths.add((await lastText(page)).length);
    return lengths.size > 1 && !(await answering(page));
  }, 180_000);
  assert.ok(lengths.size > 4, `the answer came in ${lengths.size} pieces: it was not streamed`);
  const message = await lastMessage(page);
  assert.equal(message.content, expected, "the page's answer is the server's");
  assert.equal(plain(await lastText(page)), plain(expected), "and is shown whole");
  assert.equal(message.finish, "stop");
  assert.match(await page.run(`document.querySelector(".message:last-child .figures").textContent`),
    /first token .* tokens .* tokens\/s/);
}

async function killedWorkerCostsAPause(page, expected) {
  await newConversation(page);
  await ask(page, kQuestion);
  await eventually("a part of the answer", async () => (await lastText(page)).length > 40);
  const pid = () => page.run(`fetch("v1/workers").then((r) => r.json()).then((list) => list[0].pid)`);
  const before = await pid();
  await page.click(button("Kill"));
  await page.click(button("Kill it"));
  // A fast device is back before the page says that it waits; then the note at the end tells of it.
  await eventually("the page tells of the pause", () => page.run(`document.querySelector(".note.waits, .note.pause") !== null`));
  await page.screenshot(join(work, "paused.png"));
  const atPause = (await lastText(page)).length;
  assert.ok(atPause < expected.length, "the worker died in the middle of the answer");
  await untilAnswered(page);
  assert.equal((await lastMessage(page)).content, expected, "the answer is whole, and the same");
  const note = await eventually("the page tells of the death",
    () => page.run(`document.querySelector(".message:last-child .note.pause")?.textContent`));
  assert.match(note, /Paused for [\d.]+ s: builtin-0 died \(.*SIGKILL.*\)/);
  assert.notEqual(await pid(), before);
  await sleep(1500);  // the charts have the answer's end
  await page.run(`document.getElementById("toast").hidden = true`);  // it would cover a part of the README's picture
  await page.screenshot(join(work, "survived.png"));
  await eventually("the worker's card tells of it",
    () => page.run(`/SIGKILL/.test(document.querySelector("[data-worker=builtin-0] dl").textContent)`));
}

async function chartsMove(page) {
  const curves = () => page.run(`Object.fromEntries([...document.querySelectorAll("[data-chart]")]
    .map((c) => [c.dataset.chart, c.querySelector(".curve").getAttribute("d")]))`);
  const before = await curves();
  await sleep(2500);
  const after = await curves();
  assert.deepEqual(Object.keys(after), ["tokens", "requests", "first", "next", "queue", "kv", "pool", "blit", "reuse", "wait", "depth",
    "pressure", "heat"]);
  // Mesa's CPU device does not time transfers while it computes; the chart says so then.
  const timed = await page.run(`fetch("metrics").then((r) => r.text())
    .then((text) => /^bulkhead_worker_blit_transfer_seconds_total\\{.*\\} [^0]/m.test(text))`);
  const moving = ["tokens", "requests", "first", "next", "kv", "pool", "reuse", "depth", ...(timed ? ["blit"] : [])];
  for (const id of moving) assert.notEqual(after[id], before[id], `the chart ${id} moves`);
  if (!timed) {
    assert.equal(await page.run(`document.querySelector("[data-chart=blit] .note").textContent`), "nothing measured lately");
    console.log("this device does not time transfers: their chart stays empty");
  }
  await linesAreDrawn(page, moving);
  await memoryOfCachesIsWhatTheyTake(page);
  const heights = (id) => new Set(after[id].split(/[ML]/).filter(Boolean).map((point) => point.split(" ")[1]));
  for (const id of ["tokens", "requests", "next"]) assert.ok(heights(id).size > 1, `the chart ${id} is no flat line`);
  assert.match(await page.run(`document.querySelector("[data-chart=tokens] svg").getAttribute("aria-label")`), /now.*between/);
}

// A cache that can grow may have more pages than it has memory for now.
async function memoryOfCachesIsWhatTheyTake(page) {
  const taken = await page.run(`fetch("v1/workers").then((r) => r.json()).then(([worker]) => worker.kv_bytes)`);
  const size = `${(taken / 2 ** 20).toFixed(1)} MiB`;
  assert.ok(taken > 0);
  assert.match(await page.run(`document.querySelector("[data-worker] dl").textContent`), new RegExp(`pages; the cache takes ${size}`));
  assert.equal(await page.run(`document.querySelector("[data-chart=kv] .note").textContent`), `the cache takes ${size}`);
}

// A dashed line at the target where there is one; after a click, another one at the values of now.
async function linesAreDrawn(page, moving) {
  const lines = (name) => page.run(`[...document.querySelectorAll("[data-chart]")]
    .filter((c) => c.querySelector(".${name}").getAttribute("d") !== "").map((c) => c.dataset.chart)`);
  assert.deepEqual(await lines("target"), ["pool", "blit", "reuse", "wait", "pressure"]);
  assert.deepEqual(await lines("baseline"), []);
  await page.run(`location.hash = "server"`);
  await page.click(button("Mark as baseline"));
  const marked = await eventually("the baseline is drawn", async () => (await lines("baseline")).length > 4 && lines("baseline"));
  for (const id of moving) assert.ok(marked.includes(id), `${id} has a baseline`);
  // Each line has its name, for those who see it and for those who hear it.
  assert.match(await page.run(`document.querySelector("[data-chart=pool] svg").getAttribute("aria-label")`),
    /, target at least 90 %, baseline /);
  const legend = () => page.run(`document.querySelector(".legend").innerText.split(/\\s+/).filter(Boolean)`);
  assert.deepEqual(await legend(), ["target", "baseline"]);
  await page.screenshot(join(work, "baseline.png"));
  await page.click(button("Clear the baseline"));
  await eventually("the baseline is gone", async () => (await lines("baseline")).length === 0);
  assert.deepEqual(await legend(), ["target"]);
  await page.run(`location.hash = "chat"`);
}

// What is asked for is what the page's fields say.
async function promptAndParametersAreSent(page) {
  const bodies = [];
  await page.send("Fetch.enable", { patterns: [{ urlPattern: "*/v1/chat/completions" }] });
  page.answer = ({ requestId, request }) => {
    bodies.push(JSON.parse(request.postData));
    const end = { choices: [{ index: 0, delta: { content: "Yes." }, finish_reason: "stop" }] };
    page.send("Fetch.fulfillRequest", {
      requestId, responseCode: 200, responseHeaders: [{ name: "Content-Type", value: "text/event-stream" }],
      body: Buffer.from(`data: ${JSON.stringify(end)}\n\ndata: [DONE]\n\n`).toString("base64"),
    });
  };
  await newConversation(page);
  await page.click(`document.querySelector("#parameters summary")`);
  const fill = async (name, value) => {
    await page.click(`document.querySelector("#parameters [name=${name}]")`);
    await page.run(`document.querySelector("#parameters [name=${name}]").select()`);
    await page.type(value);
  };
  await fill("system", "Answer in one word.");
  await fill("temperature", "0.25");
  await fill("max_tokens", "17");
  await fill("seed", "99");
  await page.click(`document.querySelector("#parameters summary")`);
  await ask(page, "Is it so?");
  await untilAnswered(page);
  assert.deepEqual(bodies[0].messages, [
    { role: "system", content: "Answer in one word." }, { role: "user", content: "Is it so?" }]);
  assert.equal(bodies[0].temperature, 0.25);
  assert.equal(bodies[0].max_tokens, 17);
  assert.equal(bodies[0].seed, 99);
  // The next conversation begins with the same fields.
  await page.click(`document.querySelector("#parameters summary")`);
  await page.run(`for (const [name, value] of Object.entries({ system: "", temperature: "0", max_tokens: "", seed: "" })) {
    const field = document.querySelector("#parameters [name=" + name + "]");
    field.value = value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    field.dispatchEvent(new Event("change", { bubbles: true }));
  }`);
  await page.click(`document.querySelector("#parameters summary")`);
  page.answer = undefined;
  await page.send("Fetch.disable");
}

// The Tab key reaches every part that does something, each once, in the order of the document, and each shows that it
// has the focus.
async function theKeyboardReachesEverything(page) {
  for (const view of ["chat", "server"]) {
    await page.run(`location.hash = "${view}"`);
    await sleep(250);
    await page.run(`document.activeElement?.blur(); window.reached = new Map()`);
    const wanted = await page.run(`[...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
      .filter((e) => e.checkVisibility({ visibilityProperty: true }) && !e.disabled && e.tabIndex >= 0).length`);
    for (let i = 0; i < wanted + 5; ++i) {
      await page.tab();
      await page.run(`(() => {
        const at = document.activeElement;
        if (at !== document.body && !window.reached.has(at)) 
          window.reached.set(at, getComputedStyle(at).outlineStyle !== "none" || at.closest(".write") !== null);
      })()`);
    }
    const { count, dim, leaps } = await page.run(`(() => {
      const all = [...window.reached.keys()];
      return { count: all.length, dim: all.filter((e) => !window.reached.get(e)).map((e) => e.outerHTML.slice(0, 80)),
        leaps: all.filter((e, i) => i > 0 &&
          !(all[i - 1].compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING)).length };
    })()`);
    assert.ok(count >= wanted - 1 && wanted > 5, `Tab reaches ${count} of ${wanted} parts of ${view}`);
    assert.deepEqual(dim, [], `parts of ${view} that do not show that they have the focus`);
    assert.ok(leaps <= 1, `the order of ${view} is the document's, from where the focus was to the end and from the beginning`);
  }
  await page.run(`location.hash = "chat"`);
}

async function answersCanBeStoppedAndChanged(page, expected) {
  await newConversation(page);
  await ask(page, kQuestion);
  await eventually("a part of the answer", async () => (await lastText(page)).length > 10);
  await page.escape();
  await untilAnswered(page);
  assert.equal((await lastMessage(page)).finish, "stopped");
  assert.ok((await lastMessage(page)).content.length < expected.length);
  await page.click(button("Regenerate"));
  await eventually("it begins again", () => answering(page));
  await untilAnswered(page);
  assert.equal((await lastMessage(page)).content, expected, "the same request gives the same answer");
  await page.click(button("Edit"));
  await page.run(`document.querySelector(".editor").value = "Tell me a story about a hen."`);
  await page.click(button("Send", `document.querySelector(".edit")`));
  await eventually("it begins again", () => answering(page));
  await page.click(button("Stop"));
  await untilAnswered(page);
  const { messages } = await page.run(`${conversations}[0]`);
  assert.deepEqual(messages.map((message) => message.role), ["user", "assistant"]);
  assert.equal(messages[0].content, "Tell me a story about a hen.");
}

// An answer that still comes does not bring its conversation back.
async function aRemovedConversationStaysAway(page) {
  await newConversation(page);
  await ask(page, kQuestion);
  await eventually("a part of the answer", async () => (await lastText(page)).length > 10);
  const before = await page.run(`${conversations}.map((c) => c.id)`);
  await page.click(`document.querySelector("[aria-current=true] ~ .remove")`);
  await page.click(button("Delete"));
  await eventually("it is gone", async () => (await page.run(`${conversations}.length`)) === before.length - 1);
  await sleep(1000);
  assert.deepEqual(await page.run(`${conversations}.map((c) => c.id)`), before.slice(1));
}

async function conversationsStay(page, url) {
  const titles = () => page.run(`[...document.querySelectorAll(".pick")].map((b) => b.textContent)`);
  const before = await titles();
  assert.equal(before.length, 3);
  await page.go(`${url}/`);
  assert.deepEqual(await titles(), before);
  await page.click(`document.querySelector(".remove")`);
  await page.click(button("Delete"));
  await eventually("it is gone", async () => (await titles()).length === 2);
}

// Reasoning and tool calls as a server sends them; the built-in model makes neither.
async function reasoningAndToolCallsAreShown(page) {
  const chunk = (delta, finish_reason = null) => `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason }] })}\n\n`;
  const bodies = [];
  await page.send("Fetch.enable", { patterns: [{ urlPattern: "*/v1/chat/completions" }] });
  page.answer = ({ requestId, request }) => {
    bodies.push(JSON.parse(request.postData));
    const answers = bodies.length > 1 ? [chunk({ content: "It is **mild**:\n\n| where | degrees |\n| --- | --- |\n| Oslo | 12 |\n" }, "stop")] : [
      chunk({ reasoning_content: "The reader wants " }), chunk({ reasoning_content: "the weather." }),
      chunk({ content: "I ask for it." }),
      chunk({ tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "weather", arguments: '{"city":' } }] }),
      chunk({ tool_calls: [{ index: 0, function: { arguments: '"Oslo"}' } }] }), chunk({}, "tool_calls")];
    page.send("Fetch.fulfillRequest", {
      requestId, responseCode: 200, responseHeaders: [{ name: "Content-Type", value: "text/event-stream" }],
      body: Buffer.from(`${answers.join("")}data: [DONE]\n\n`).toString("base64"),
    });
  };
  await newConversation(page);
  await ask(page, "How is the weather in Oslo?");
  await untilAnswered(page);
  const folded = await page.run(`(() => {
    const details = document.querySelector(".message:last-child .reasoning");
    return { open: details.open, text: details.querySelector(".text").textContent };
  })()`);
  assert.deepEqual(folded, { open: false, text: "The reader wants the weather." });
  assert.match(await page.run(`document.querySelector(".call").textContent`), /Calls weather\s*{\s*"city": "Oslo"\s*}/);
  await page.click(`document.querySelector(".results textarea")`);
  await page.type("12 degrees");
  await page.click(button("Send results"));
  await untilAnswered(page);
  assert.equal(await page.run(`document.querySelector(".message:last-child td").textContent`), "Oslo");
  assert.deepEqual(bodies[1].messages.slice(1), [
    { role: "assistant", content: "I ask for it.",
      tool_calls: [{ id: "call_1", type: "function", function: { name: "weather", arguments: '{"city":"Oslo"}' } }] },
    { role: "tool", tool_call_id: "call_1", content: "12 degrees" }]);
  page.answer = undefined;
  await page.send("Fetch.disable");
}

async function textIsNeverHtml(page) {
  const render = (text) => page.run(`import("/page/markdown.js").then(({ render }) => {
    const box = document.createElement("div");
    box.append(render(${JSON.stringify(text)}));
    return { tags: [...new Set([...box.querySelectorAll("*")].map((e) => e.tagName))], text: box.textContent,
             links: [...box.querySelectorAll("a")].map((a) => a.href) };
  })`);
  const hostile = `<img src=x onerror=alert(1)> <script>alert(1)</script>`;
  assert.deepEqual(await render(hostile), { tags: ["P"], text: hostile, links: [] });
  assert.deepEqual((await render("[a](javascript:alert(1)) [b](data:text/html,x) [c](https://c.example/x)")).links, ["https://c.example/x"]);
  assert.deepEqual((await render("# h\n\n- a\n  - **b**\n- `c`\n\n1. d\n\n> *e*\n\n```js\n<b>\n```\n\n| f |\n| - |\n| g |")).tags.sort(),
    ["BLOCKQUOTE", "BUTTON", "CODE", "DIV", "EM", "FIGCAPTION", "FIGURE", "H3", "LI", "OL", "P", "PRE", "SPAN", "STRONG", "TABLE",
      "TBODY", "TD", "TH", "THEAD", "TR", "UL"]);
  assert.equal((await render("2 * 3 * 4 and snake_case_name and **open")).text, "2 * 3 * 4 and snake_case_name and **open");
  for (const piece of ["*a ", "**a", "`", "[", "_x_ *", "> ", "- a ", "- a\n", "| "]) {
    const long = piece.repeat(20_000);
    assert.ok((await render(long)).text.length > 0, `20,000 times ${piece}`);
  }
  // More parts than a call may have arguments, and lines at which an expression could look back again and again.
  for (const text of [`a|b\n-|-\n${"|".repeat(200_000)}`, `- ${"*a* ".repeat(150_000)}`])
    assert.ok((await render(text)).tags.length > 2, text.slice(0, 20));
  for (const text of [`# a${" ".repeat(60_000)}x`, `# a${"#".repeat(60_000)}x`, `|a\n-${" ".repeat(60_000)}x`]) {
    const begun = Date.now();
    await render(text);
    assert.ok(Date.now() - begun < 1000, `${text.slice(0, 8)}... took ${Date.now() - begun} ms`);
  }
  assert.deepEqual(await render("## a # b ##  "), { tags: ["H4"], text: "a # b", links: [] });
}

async function partsHaveNames(page) {
  const { nodes } = await page.send("Accessibility.getFullAXTree");
  const needNames = ["button", "textbox", "combobox", "img", "checkbox", "dialog", "region", "navigation", "main", "complementary"];
  const nameless = nodes.filter((node) => !node.ignored && needNames.includes(node.role?.value) && !node.name?.value);
  assert.deepEqual(nameless.map((node) => node.role.value), [], "every part has a name for screen readers");
}

async function workersAreManaged(page) {
  const state = (words) => eventually(`a worker is ${words}`, () =>
    page.run(`document.querySelector("[data-worker=builtin-0] .state").textContent === ${JSON.stringify(words)}`), 120_000);
  await page.click(button("Drain"));
  await page.click(button("Drain", `document.getElementById("confirm-dialog")`));
  await state("drained");
  await page.click(button("Restart"));
  await state("ready");
}

async function modelsAreLoadedAndUnloaded(page) {
  const state = (words) => eventually(`the model is ${words}`, () =>
    page.run(`document.querySelector("#models .state")?.textContent === ${JSON.stringify(words)}`), 120_000);
  await state("loaded");
  await page.click(button("Unload", `document.getElementById("models")`));
  await page.click(button("Unload", `document.getElementById("confirm-dialog")`));
  await state("unloaded");
  await eventually("the head tells of it", () =>
    page.run(`document.querySelector("#health .words").textContent === "No model is loaded"`));
  await page.click(button("Load", `document.getElementById("models")`));
  await state("loaded");
}

async function takePictures(page) {
  const sizes = { wide: [1440, 900, false], narrow: [390, 844, true] };
  for (const [name, [width, height, mobile]] of Object.entries(sizes)) {
    for (const theme of ["light", "dark"]) {
      for (const view of ["chat", "server"]) {
        await page.look({ width, height, mobile, theme });
        await page.run(`location.hash = "${view}"`);
        await sleep(250);
        assert.ok(await page.run("document.documentElement.scrollWidth <= innerWidth"), `${name} ${view} fits its width`);
        const brief = await page.run(`getComputedStyle(document.getElementById("health"), "::after").content`);
        assert.match(brief, mobile ? /^"\d+\/\d+"$/ : /^none$/, "the head tells the workers in few words where there is little room");
        await page.screenshot(join(work, `${view}-${name}-${theme}.png`));
      }
    }
  }
  await page.look({ width: 1440, height: 900, theme: "light" });
  await page.run(`location.hash = "chat"`);
}

async function nothingLeavesTheOrigin(page, url) {
  const elsewhere = page.requests.filter((request) => !request.url.startsWith(`${url}/`) && request.url !== "about:blank");
  assert.deepEqual(elsewhere, [], "no request leaves the origin");
  const files = new Set(page.requests.map((request) => request.url.split("#")[0]).filter((file) => file === `${url}/` || file.startsWith(`${url}/page/`)));
  let bytes = 0;
  for (const file of files) bytes += (await (await fetch(file)).arrayBuffer()).byteLength;
  assert.ok(files.size > 5 && bytes < kMostPageBytes, `the page has ${bytes} bytes in ${files.size} files`);
  // The soonest of a few: a machine that does other things paints late now and then.
  let paint = Infinity;
  for (let i = 0; i < 8 && !(paint < kLatestPaintMs); ++i) {
    await page.go(`${url}/`);
    paint = Math.min(paint, await eventually("the page is painted",
      () => page.run(`performance.getEntriesByName("first-contentful-paint")[0]?.startTime`)));
  }
  console.log(`${files.size} files, ${bytes} bytes; first paint after ${Math.round(paint)} ms`);
  assert.ok(paint > 0 && paint < kLatestPaintMs, `the first paint came after ${Math.round(paint)} ms`);
  assert.deepEqual(page.errors, [], "nothing is logged as an error");
}

async function aClientsKeyIsEnoughToChat(browser) {
  const daemon = await startDaemon("client-key", ["server.api_key=open-sesame", "server.keys=alice little-key"]);
  const page = await browser.open(1440, 900);
  await page.go(`${daemon.url}/`);
  await eventually("the page asks for the key", () => page.run(`document.getElementById("key-dialog").open`));
  await page.type("little-key");
  await page.enter();
  await eventually("the head tells that the server is ready", () =>
    page.run(`document.querySelector("#health .words").textContent === "Ready"`));
  await ask(page, kQuestion);
  await untilAnswered(page);
  assert.equal((await lastMessage(page)).error, undefined);
  assert.equal(await page.run(`document.querySelector("#health .words").textContent`), "Ready");
  const refused = page.requests.filter((request) => /v1\/workers|metrics/.test(request.url)).length;
  assert.ok(refused < 12, `${refused} requests that this key may not make`);
  await page.close();
  await daemon.end();
}

async function theKeyIsAskedFor(browser) {
  const daemon = await startDaemon("with-key", ["server.api_key=open-sesame"]);
  const page = await browser.open(1440, 900);
  await page.go(`${daemon.url}/`);
  const asks = (words) => eventually(`the page says: ${words}`, () =>
    page.run(`document.getElementById("key-dialog").open && document.getElementById("key-words").textContent === ${JSON.stringify(words)}`));
  await asks("This server asks for its API key.");
  await page.screenshot(join(work, "key.png"));
  await page.type("wrong");
  await page.enter();
  await asks("The server does not take this key.");
  await page.type("open-sesame");
  await page.enter();
  await eventually("workers are shown", () => page.run(`document.querySelector(".worker .state")?.textContent === "ready"`));
  assert.equal(await page.run(`${button("Kill")} === undefined`), true, "no button to kill where that is not allowed");
  const refused = await fetch(`${daemon.url}/v1/workers/builtin-0/kill`,
    { method: "POST", headers: { Authorization: "Bearer open-sesame" } });
  assert.equal(refused.status, 403);
  assert.match((await refused.json()).error.message, /server\.allow_kill/);
  assert.equal((await fetch(`${daemon.url}/v1/workers/builtin-0/kill`, { method: "POST" })).status, 401);
  await page.close();
  await daemon.end();
}

const daemon = await startDaemon("daemon", ["server.allow_kill=true"]);
const browser = new Browser(process.env.BULKHEAD_BROWSER);
try {
  await filesAreServedRight(daemon.url);
  const expected = await askDirectly(daemon.url);
  const page = await browser.open(1440, 900);
  await page.look({ width: 1440, height: 900, theme: "light" });
  await page.go(`${daemon.url}/`);
  const steps = [
    ["chat streams", () => chatStreams(page, expected)],
    ["a killed worker costs a pause", () => killedWorkerCostsAPause(page, expected)],
    ["charts move", () => chartsMove(page)],
    ["answers can be stopped and changed", () => answersCanBeStoppedAndChanged(page, expected)],
    ["a removed conversation stays away", () => aRemovedConversationStaysAway(page)],
    ["conversations stay", () => conversationsStay(page, daemon.url)],
    ["prompt and parameters are sent", () => promptAndParametersAreSent(page)],
    ["the keyboard reaches everything", () => theKeyboardReachesEverything(page)],
    ["reasoning and tool calls are shown", () => reasoningAndToolCallsAreShown(page)],
    ["text is never HTML", () => textIsNeverHtml(page)],
    ["parts have names", () => partsHaveNames(page)],
    ["pictures", () => takePictures(page)],
    ["workers are managed", () => workersAreManaged(page)],
    ["models are loaded and unloaded", () => modelsAreLoadedAndUnloaded(page)],
    ["nothing leaves the origin", () => nothingLeavesTheOrigin(page, daemon.url)],
  ];
  for (const [name, step] of steps) {
    await step().catch(async (error) => {
      await page.screenshot(join(work, "failed.png")).catch(() => {});
      error.message = `${name}: ${error.message}`;
      throw error;
    });
    console.log(`ok: ${name}`);
  }
  await page.close();
  await daemon.end();
  await theKeyIsAskedFor(browser);
  console.log("ok: the key is asked for");
  await aClientsKeyIsEnoughToChat(browser);
  console.log("ok: a client's key is enough to chat");
  await oneOfSeveralModelsIsAsked(browser);
  console.log("ok: one of several models is asked");
  await anotherModelsDeathIsNotBlamed(browser);
  console.log("ok: another model's death is not blamed");
} finally {
  await browser.end();
}
