// The chat: conversations, what is sent, and answers as they come.
import { events, getJson, request } from "./api.js";
import * as conversations from "./conversations.js";
import { announce, byId, confirm, make, setText } from "./dialogs.js";
import { MessageView } from "./message.js";
import { knownWorkers, lookAtWorkers } from "./server.js";

const kQuietMs = 500;  // an answer that brought nothing for so long pauses
const kShortPauseMs = 150;  // after a shorter one that is over, too, the page asks whether a worker died
const kSaveEveryMs = 2000;

const kNumbers = ["temperature", "max_tokens", "seed", "top_p", "top_k", "min_p", "repetition_penalty",
  "presence_penalty", "frequency_penalty"];

let shown = null;  // the conversation that is seen
let models = [];   // those that the server has; none before it was asked
const answers = new Map();  // conversation's id -> Answer, while it comes
const views = new Map();  // message -> MessageView, of the conversation shown

// ---- what is sent ----

function wireMessage(message) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.tool_call_id, content: message.content };
  const out = { role: message.role, content: message.content };
  if (message.tool_calls?.length > 0) {
    out.tool_calls = message.tool_calls.map((call) =>
      ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
  }
  return out;
}

// The request's body; throws with words for the reader where a parameter can't be sent.
function bodyOf(conversation) {
  const { settings } = conversation;
  const body = { messages: [], stream: true, stream_options: { include_usage: true } };
  const model = modelOf(settings);
  if (model) body.model = model;
  if (settings.system?.trim()) body.messages.push({ role: "system", content: settings.system });
  for (const message of conversation.messages) {
    const empty = message.role === "assistant" && !message.content && !(message.tool_calls?.length > 0);
    if (!empty) body.messages.push(wireMessage(message));
  }
  for (const name of kNumbers) {
    const text = (settings[name] ?? "").trim().replace(",", ".");
    if (text === "") continue;
    if (!Number.isFinite(Number(text))) throw new Error(`The parameter ${name} is no number: ${text}`);
    body[name] = Number(text);
  }
  const stop = (settings.stop ?? "").split("\n").filter((line) => line !== "");
  if (stop.length > 0) body.stop = stop;
  if (settings.tools?.trim()) {
    try {
      body.tools = JSON.parse(settings.tools);
    } catch {
      throw new Error("The tools are no JSON.");
    }
  }
  return body;
}

// ---- an answer as it comes ----

class Answer {
  constructor(conversation) {
    this.conversation = conversation;
    this.message = { role: "assistant", content: "", reasoning: "", tool_calls: [], pauses: [],
      stats: { first_ms: null, tokens: 0, rate: 0 } };
    this.controller = new AbortController();
    this.begun = performance.now();
    this.firstAt = this.lastAt = 0;
    this.waits = "";
    this.model = "";  // as the answer names it
    this.savedAt = 0;
    this.restartsBefore = new Map(knownWorkers().map((worker) => [worker.name, worker.restarts]));
  }

  async run() {
    const { message, conversation } = this;
    const quiet = setInterval(() => this.lookForPause(), 250);
    try {
      const body = bodyOf(conversation);
      conversation.messages.push(message);
      this.show();
      const response = await request("v1/chat/completions", { method: "POST", body, signal: this.controller.signal });
      for await (const data of events(response)) {
        if (data === "[DONE]") break;
        this.take(JSON.parse(data));
      }
      if (!message.finish && !message.error) message.error = "The answer ended before it was complete.";
    } catch (error) {
      if (!conversation.messages.includes(message)) conversation.messages.push(message);
      if (error.name === "AbortError") message.finish = "stopped";
      else message.error = error instanceof TypeError ? "The server can't be reached." : error.message;
    } finally {
      clearInterval(quiet);
    }
    this.waits = "";
  }

  take(chunk) {
    const { message } = this;
    if (chunk.error) {
      message.error = chunk.error.message ?? "The server reports an error.";
      return;
    }
    if (chunk.model) this.model = chunk.model;
    if (chunk.usage) {
      message.stats.tokens = chunk.usage.completion_tokens;
      message.stats.prompt_tokens = chunk.usage.prompt_tokens;
      message.stats.cached = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
      this.countRate();
    }
    const choice = chunk.choices?.[0];
    if (!choice) return this.show();
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    if (content || reasoning || calls) this.tokenCame();
    if (content) message.content += content;
    if (reasoning) message.reasoning += reasoning;
    for (const call of calls ?? []) this.takeCall(call);
    if (choice.finish_reason) message.finish = choice.finish_reason;
    this.show();
  }

  takeCall(call) {
    const { message } = this;
    const known = (message.tool_calls[call.index ?? message.tool_calls.length] ??= { id: "", name: "", arguments: "" });
    if (call.id) known.id = call.id;
    if (call.function?.name) known.name = call.function.name;
    known.arguments += call.function?.arguments ?? "";
  }

  tokenCame() {
    const now = performance.now();
    const { stats } = this.message;
    if (stats.first_ms === null) {
      stats.first_ms = now - this.begun;
      this.firstAt = now;
    } else if (this.waits || this.isLong(now - this.lastAt)) {
      this.endPause(now - this.lastAt);
    }
    this.lastAt = now;
    stats.tokens += 1;
    this.countRate();
  }

  countRate() {
    const { stats } = this.message;
    const seconds = (this.lastAt - this.firstAt) / 1000;
    stats.rate = seconds > 0 ? (stats.tokens - 1) / seconds : 0;
  }

  // ---- pauses ----

  // Of the time between two tokens, beside the others of this answer.
  isLong(gap) {
    const usual = (this.lastAt - this.firstAt) / Math.max(this.message.stats.tokens - 1, 1);
    return gap > kShortPauseMs && gap > 4 * usual;
  }

  // A worker of the answer's model that was replaced since the answer began, or that is being replaced.
  restarted() {
    return knownWorkers().find((worker) => {
      if (worker.model !== this.model) return false;
      const before = this.restartsBefore.get(worker.name);
      return before !== undefined && (worker.restarts > before || worker.state === "restarting");
    });
  }

  async lookForPause() {
    if (this.lastAt === 0 || this.message.finish || performance.now() - this.lastAt < kQuietMs) return;
    if (!this.waits) {
      this.waits = "Paused ...";
      announce("The answer pauses");
    }
    await lookAtWorkers();
    if (!this.waits) return;  // it has gone on meanwhile
    const worker = this.restarted();
    if (worker) this.waits = `Paused: ${worker.name} died (${worker.last_death ?? "it is being replaced"}). The answer continues as soon as another process serves.`;
    this.show();
  }

  async endPause(milliseconds) {
    this.waits = "";
    await lookAtWorkers();
    const worker = this.restarted();
    // One that is only about to go did not make this pause.
    if (!worker || worker.restarts === this.restartsBefore.get(worker.name)) return;
    this.restartsBefore.set(worker.name, worker.restarts);
    this.message.pauses.push(`Paused for ${(milliseconds / 1000).toFixed(1)} s: ${worker.name} died ` +
      `(${worker.last_death}), and another process went on. No token was lost.`);
    announce("The answer continues");
    this.show();
  }

  // ---- showing ----

  show() {
    const now = performance.now();
    if (now - this.savedAt > kSaveEveryMs && this.message.content) {
      this.savedAt = now;
      conversations.save(this.conversation);
    }
    if (this.frame || this.conversation !== shown) return;
    // As often as the screen changes, and no more than a third of the time goes into it.
    const draw = () => {
      const begun = performance.now();
      this.draw();
      setTimeout(() => (this.frame = 0), 2 * (performance.now() - begun));
    };
    this.frame = document.hidden ? setTimeout(draw, 500) : requestAnimationFrame(draw);
  }

  draw() {
    if (this.conversation !== shown || !shown.messages.includes(this.message)) return;
    const running = answers.get(shown.id) === this;
    keepAtEnd(() => viewOf(this.message).show(running, this.waits));
  }
}

async function answer(conversation) {
  if (answers.has(conversation.id)) return;
  const running = new Answer(conversation);
  answers.set(conversation.id, running);
  showMessages();
  scrollToEnd();
  showComposer();
  await running.run();
  answers.delete(conversation.id);
  conversations.save(conversation);
  if (conversation === shown) keepAtEnd(showMessages);
  showComposer();
  showList();
  announce(running.message.error ? "The answer failed" : "The answer is complete");
}

// ---- what the reader does ----

function send() {
  const field = byId("prompt");
  const text = field.value;
  if (!text.trim() || answers.has(shown.id)) return;
  field.value = "";
  fitPrompt();
  say(text);
}

function say(text) {
  shown.messages.push({ role: "user", content: text });
  conversations.save(shown);
  showList();
  answer(shown);
}

function cutAt(message) {
  shown.messages.length = shown.messages.indexOf(message);
}

const actionsOf = (message) => ({
  edit: message.role !== "user" || answers.has(shown.id) ? undefined : (old, text) => {
    cutAt(old);
    say(text);
  },
  regenerate: message.role !== "assistant" || answers.has(shown.id) ? undefined : (old) => {
    cutAt(old);
    answer(shown);
  },
  giveResult: message !== shown.messages.at(-1) ? undefined : (asked, results) => {
    asked.tool_calls.forEach((call, i) => shown.messages.push({ role: "tool", tool_call_id: call.id, content: results[i] }));
    answer(shown);
  },
});

async function removeConversation(conversation) {
  if (!(await confirm("Delete this conversation?", `“${conversation.title}” is deleted from this browser.`, "Delete"))) return;
  answers.get(conversation.id)?.controller.abort();
  conversations.remove(conversation);
  if (conversation === shown) open(conversations.list()[0] ?? conversations.create(shown.settings));
  else showList();
}

// ---- showing ----

function viewOf(message) {
  if (!views.has(message)) {
    const view = new MessageView(message, actionsOf(message));
    views.set(message, view);
    byId("messages").append(view.element);
  }
  return views.get(message);
}

function showMessages() {
  const messages = byId("messages");
  views.clear();
  messages.replaceChildren();
  const running = answers.get(shown.id);
  for (const message of shown.messages) viewOf(message).show(message === running?.message, running?.waits);
  if (shown.messages.length > 0) return;
  messages.append(make("div", { class: "welcome" },
    make("h2", {}, "Ask the model something"),
    make("p", {}, "The answer comes from a process that may die: the stream then pauses and continues with the same tokens."),
    make("button", { type: "button", onclick: () => say("Tell me a story about a fox.") }, "Tell me a story about a fox.")));
}

function showComposer() {
  const running = answers.has(shown.id);
  byId("send").hidden = running;
  byId("stop").hidden = !running;
}

function showList() {
  const entries = conversations.list().map((conversation) => {
    const current = conversation === shown;
    return make("li", {},
      make("button", { type: "button", class: "pick", "aria-current": current ? "true" : null,
        onclick: () => open(conversation) }, conversation.title),
      make("button", { type: "button", class: "quiet remove", "aria-label": `Delete ${conversation.title}`,
        onclick: () => removeConversation(conversation) }, "×"));
  });
  byId("conversation-list").replaceChildren(...entries);
}

const isAtEnd = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < 60;
function scrollToEnd() {
  const box = byId("messages");
  box.scrollTop = box.scrollHeight;
}
function keepAtEnd(change) {
  const follow = isAtEnd(byId("messages"));
  change();
  if (follow) scrollToEnd();
}

function fitPrompt() {
  const field = byId("prompt");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 240)}px`;
}

function open(conversation) {
  shown = conversation;
  for (const field of settingsFields()) field.value = shown.settings[field.name] ?? "";
  showModels();
  countParameters();
  showMessages();
  showComposer();
  showList();
  scrollToEnd();
  document.body.classList.remove("conversations-open");
  byId("toggle-conversations").setAttribute("aria-expanded", "false");
}

// ---- parameters ----

// The model that is asked: the reader's choice while it is served; else one that is loaded, or the first. Empty where
// the server has one model, or could not be asked yet.
function modelOf(settings) {
  if (models.length === 0) return settings.model ?? '';
  if (models.length === 1) return '';
  const ids = models.map((model) => model.id);
  if (ids.includes(settings.model)) return settings.model;
  return (models.find((model) => model.state === 'loaded') ?? models[0]).id;
}

function showModels() {
  const select = byId('model');
  const one = models.length <= 1;
  select.replaceChildren(
      ...(one ? [make('option', {value: ''}, models[0]?.id ?? 'None')] :
                models.map((model) => make('option', {value: model.id}, model.id))));
  select.value = modelOf(shown.settings);
}

const settingsFields = () => byId("parameters").querySelectorAll("input, select, textarea");

function countParameters() {
  const set = Object.entries(shown.settings).filter(([name, value]) => name !== "model" && String(value).trim() !== "");
  setText(byId("parameters-set"), set.length > 0 ? `(${set.map(([name]) => name.replace("_", " ")).join(", ")})` : "");
}

async function listModels() {
  try {
    models = (await getJson('v1/models')).data;
    showModels();
  } catch {
    // the health line says what is wrong; the next opening of the panel tries again
  }
}

export function begin() {
  conversations.load();
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("prompt").addEventListener("input", fitPrompt);
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  const stop = () => answers.get(shown.id)?.controller.abort();
  byId("stop").addEventListener("click", stop);
  byId("chat").addEventListener("keydown", (event) => {
    if (event.key === "Escape") stop();
  });
  byId("new-conversation").addEventListener("click", () => {
    open(conversations.create(shown.settings));
    byId("prompt").focus();
  });
  byId("parameters").addEventListener("input", (event) => {
    shown.settings[event.target.name] = event.target.value;
    countParameters();
    if (shown.messages.length > 0) conversations.save(shown);
  });
  byId("parameters").addEventListener("toggle", listModels);
  open(conversations.list()[0] ?? conversations.create());
  listModels();
}
