// The page's two questions, its notes, and a short way to make elements.

export const byId = (id) => document.getElementById(id);

// An element with attributes (`class`, `title`, ...; a function is a listener: `onclick`) and children,
// which are elements or text. Never HTML.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Writes only what differs, so that a reader's selection and focus stay.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function ask(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "ok"), { once: true });
  });
}

// {key, keep}, or null.
export async function askForKey(words) {
  const dialog = byId("key-dialog");
  const input = byId("key-input");
  setText(byId("key-words"), words);
  input.value = "";
  const given = ask(dialog);
  input.focus();
  // Enter in a field presses the form's first button, which is Cancel.
  const enter = (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    dialog.close("ok");
  };
  input.addEventListener("keydown", enter);
  const ok = await given;
  input.removeEventListener("keydown", enter);
  const key = input.value.trim();
  input.value = "";
  return ok && key ? { key, keep: byId("key-keep").checked } : null;
}

export function confirm(title, words, button) {
  setText(byId("confirm-title"), title);
  setText(byId("confirm-words"), words);
  setText(byId("confirm-ok"), button);
  return ask(byId("confirm-dialog"));
}

let toastTimer = 0;
export function toast(words) {
  const note = byId("toast");
  note.hidden = false;
  note.textContent = words;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (note.hidden = true), 6000);
}

// For screen readers: what others see happen.
export function announce(words) {
  byId("announcer").textContent = words;
}
