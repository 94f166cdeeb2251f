// Puts the page together: its two views, the theme, the key.
import { changeKey, wantsKey } from "./api.js";
import * as chat from "./chat.js";
import { byId, setText } from "./dialogs.js";
import { watch } from "./server.js";

const kThemes = ["system", "light", "dark"];
const kThemeName = "bulkhead.theme";

function readTheme() {
  try {
    return kThemes.includes(localStorage.getItem(kThemeName)) ? localStorage.getItem(kThemeName) : "system";
  } catch {
    return "system";
  }
}

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  setText(byId("theme").querySelector("span"), theme);
}

function changeTheme() {
  const next = kThemes[(kThemes.indexOf(document.documentElement.dataset.theme) + 1) % kThemes.length];
  showTheme(next);
  try {
    localStorage.setItem(kThemeName, next);
  } catch {
    // as long as the page
  }
}

function showView(name) {
  document.body.dataset.view = name;
  for (const button of document.querySelectorAll("[data-show]")) {
    if (button.dataset.show === name) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
}

const viewOfAddress = () => (location.hash === "#server" ? "server" : "chat");

function toggleConversations(open) {
  const now = document.body.classList.toggle("conversations-open", open);
  byId("toggle-conversations").setAttribute("aria-expanded", String(now));
  if (now) byId("new-conversation").focus();
}

showTheme(readTheme());
byId("theme").addEventListener("click", changeTheme);
for (const button of document.querySelectorAll("[data-show]"))
  button.addEventListener("click", () => (location.hash = button.dataset.show));
addEventListener("hashchange", () => showView(viewOfAddress()));
showView(viewOfAddress());
byId("toggle-conversations").addEventListener("click", () => toggleConversations());
byId("conversations").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  toggleConversations(false);
  byId("toggle-conversations").focus();
});
byId("set-key").addEventListener("click", async () => {
  await changeKey("The key that this page sends to the server.");
});
setInterval(() => (byId("set-key").hidden = !wantsKey()), 1000);
chat.begin();
watch();
