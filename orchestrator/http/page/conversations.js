// Conversations, kept in the browser: each under a key of its own, so that two tabs don't overwrite each
// other's. Where storage is off or full they live as long as the page, and the reader is told once.
import { toast } from "./dialogs.js";

const kPrefix = "bulkhead.conversation.";
const known = new Map();  // id -> conversation
let told = false;

// {id, title, changed, settings: {model, temperature, ..., system}, messages}. A message:
// {role, content, reasoning, tool_calls: [{id, name, arguments}], tool_call_id, stats, pauses, error}.
export function create(settings = {}) {
  const id = [...crypto.getRandomValues(new Uint8Array(8))].map((b) => b.toString(16).padStart(2, "0")).join("");
  const conversation = { id, title: "New conversation", changed: Date.now(), settings: { ...settings }, messages: [] };
  known.set(id, conversation);
  return conversation;
}

export function load() {
  try {
    for (let i = 0; i < localStorage.length; ++i) {
      const name = localStorage.key(i);
      if (!name.startsWith(kPrefix)) continue;
      const conversation = readOne(localStorage.getItem(name));
      if (conversation) known.set(conversation.id, conversation);
    }
  } catch {
    // no storage: nothing is known
  }
}

function readOne(text) {
  try {
    const found = JSON.parse(text);
    const whole = typeof found.id === "string" && Array.isArray(found.messages);
    return whole ? { title: "", changed: 0, settings: {}, ...found } : null;
  } catch {
    return null;  // written by something else
  }
}

// Newest first; those without a message are not worth listing.
export function list() {
  return [...known.values()].filter((c) => c.messages.length > 0).sort((a, b) => b.changed - a.changed);
}

export const find = (id) => known.get(id);

// Does nothing for a conversation that was removed: an answer may still end in it.
export function save(conversation) {
  if (!known.has(conversation.id)) return;
  conversation.changed = Date.now();
  const first = conversation.messages.find((message) => message.role === "user");
  if (first) conversation.title = first.content.trim().split("\n")[0].slice(0, 60) || "Without words";
  try {
    localStorage.setItem(kPrefix + conversation.id, JSON.stringify(conversation));
  } catch {
    if (!told) toast("This browser's storage is off or full: conversations go when the page is closed.");
    told = true;
  }
}

export function remove(conversation) {
  known.delete(conversation.id);
  try {
    localStorage.removeItem(kPrefix + conversation.id);
  } catch {
    // it was not there
  }
}
