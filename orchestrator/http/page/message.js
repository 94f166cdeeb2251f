// One message on the page: its text, reasoning, tool calls, pauses, figures and buttons.
import { make, setText } from "./dialogs.js";
import { copyText, render } from "./markdown.js";

const kRoles = { user: "You", assistant: "Model", tool: "Tool's result" };

// `actions`: {edit, regenerate, giveResult}, functions or absent.
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.rendered = "";
    this.text = make("div", { class: "text" });
    this.thoughts = make("div", { class: "text" });
    this.thinking = make("span", {}, "Reasoning");
    this.reasoning = make("details", { class: "reasoning", hidden: true }, make("summary", {}, this.thinking), this.thoughts);
    this.calls = make("div", { class: "calls" });
    this.notes = make("div", { class: "notes" });
    this.figures = make("p", { class: "figures small" });
    this.buttons = make("div", { class: "buttons" });
    this.element = make("article", { class: `message ${message.role}`, "aria-label": kRoles[message.role] ?? message.role },
      make("h3", { class: "role" }, kRoles[message.role] ?? message.role),
      this.reasoning, this.text, this.calls, this.notes, this.figures, this.buttons);
    this.show(false);
  }

  // `live`: the message is still coming; `waits`: words for why nothing comes just now, or "".
  show(live, waits = "") {
    const { message } = this;
    this.element.classList.toggle("live", live);
    this.element.setAttribute("aria-busy", String(live));
    this.showText();
    this.showReasoning(live);
    this.showCalls(live);
    this.showNotes(live, waits);
    setText(this.figures, message.stats ? figuresOf(message) : "");
    if (!live || this.buttons.childElementCount > 0) this.showButtons(live);
  }

  showText() {
    const text = this.message.content ?? "";
    if (text === this.rendered) return;
    this.rendered = text;
    if (this.message.role === "assistant") this.text.replaceChildren(render(text));
    else setText(this.text, text);
  }

  showReasoning(live) {
    const text = this.message.reasoning ?? "";
    this.reasoning.hidden = text === "";
    if (text === "") return;
    setText(this.thoughts, text);
    setText(this.thinking, live && !this.message.content ? "Reasoning ..." : "Reasoning");
  }

  showCalls(live) {
    const calls = this.message.tool_calls ?? [];
    const shape = JSON.stringify([calls, live]);
    if (shape === this.shownCalls) return;
    this.shownCalls = shape;
    this.calls.replaceChildren(...calls.map((call) => make("details", { class: "call", open: true },
      make("summary", {}, "Calls ", make("code", {}, call.name || "...")),
      make("pre", { tabindex: "0" }, make("code", {}, pretty(call.arguments))))));
    if (calls.length > 0 && !live && this.actions.giveResult) this.calls.append(this.resultForm(calls));
  }

  // The reader plays the tool: what they write goes back as its result.
  resultForm(calls) {
    const fields = calls.map((call) => make("textarea", { rows: "2", name: call.id }));
    const labels = calls.map((call, i) => make("label", { class: "broad" }, `Result of ${call.name}`, fields[i]));
    const submit = (event) => {
      event.preventDefault();
      this.actions.giveResult(this.message, fields.map((field) => field.value));
    };
    return make("form", { class: "results", onsubmit: submit }, ...labels, make("button", { type: "submit" }, "Send results"));
  }

  showNotes(live, waits) {
    const { message } = this;
    const notes = (message.pauses ?? []).map((pause) => make("p", { class: "note pause" }, pause));
    if (waits) notes.push(make("p", { class: "note waits" }, waits));
    if (message.error) notes.push(make("p", { class: "note error", role: "alert" }, message.error));
    const ends = { length: "Cut off: the most tokens, or the context's end, were reached.", stopped: "Stopped by you." };
    if (!live && ends[message.finish]) notes.push(make("p", { class: "note" }, ends[message.finish]));
    const shape = notes.map((note) => note.textContent).join("\n");
    if (shape === this.shownNotes) return;
    this.shownNotes = shape;
    this.notes.replaceChildren(...notes);
  }

  showButtons(live) {
    const { message, actions } = this;
    const buttons = [];
    const add = (words, act) => buttons.push(make("button", { type: "button", class: "quiet", onclick: act }, words));
    if (!live && message.content) {
      const copy = make("button", { type: "button", class: "quiet" }, "Copy");
      copy.addEventListener("click", () => copyText(message.content, copy));
      buttons.push(copy);
    }
    if (!live && actions.edit) add("Edit", () => this.edit());
    if (!live && actions.regenerate) add(message.error ? "Try again" : "Regenerate", () => actions.regenerate(message));
    this.buttons.replaceChildren(...buttons);
  }

  // The text becomes a field; what followed the message goes when the new text is sent.
  edit() {
    const field = make("textarea", { class: "editor", rows: "3", "aria-label": "Edit the message" });
    field.value = this.message.content;
    const leave = () => {
      form.replaceWith(this.text);
      this.buttons.hidden = false;
    };
    const send = (event) => {
      event.preventDefault();
      const text = field.value;
      leave();
      if (text.trim()) this.actions.edit(this.message, text);
    };
    const form = make("form", { class: "edit", onsubmit: send }, field,
      make("div", { class: "actions" }, make("button", { type: "button", onclick: leave }, "Cancel"),
        make("button", { type: "submit", class: "strong" }, "Send")));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
    });
    this.text.replaceWith(form);
    this.buttons.hidden = true;
    field.focus();
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;  // not whole yet, or no JSON
  }
}

function figuresOf({ stats }) {
  const parts = [];
  if (stats.first_ms !== null) parts.push(`first token ${(stats.first_ms / 1000).toFixed(2)} s`);
  if (stats.tokens > 0) parts.push(`${stats.tokens} ${stats.tokens === 1 ? "token" : "tokens"}`);
  if (stats.rate > 0) parts.push(`${stats.rate.toFixed(1)} tokens/s`);
  if (stats.prompt_tokens) parts.push(`prompt ${stats.prompt_tokens}${stats.cached ? `, ${stats.cached} cached` : ""}`);
  return parts.join(" · ");
}
