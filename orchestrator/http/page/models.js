// Shows the models that the server can serve, whether each is loaded, and a button to load or
// unload it.
import { getJson, request } from "./api.js";
import { byId, confirm, make, setText, toast } from "./dialogs.js";
import { formatBytes } from "./figures.js";

const rows = new Map();  // model's id -> Row

// Looks only while the list is visible, since it may be long.
export async function lookAtModels() {
  if (byId("models").offsetParent === null) return;
  const { data } = await getJson("v1/models", { quiet: true });
  const ids = new Set(data.map((model) => model.id));
  for (const [id, row] of rows) {
    if (ids.has(id)) continue;
    row.element.remove();
    rows.delete(id);
  }
  for (const model of data) {
    if (!rows.has(model.id)) {
      rows.set(model.id, new Row(model.id));
      byId("models").append(rows.get(model.id).element);
    }
    rows.get(model.id).show(model);
  }
}

const kToBeLoaded = ["unloaded", "unloading", "failed"];

class Row {
  constructor(id) {
    this.state = make("span", { class: "state" });
    this.facts = make("span", { class: "small" });
    this.button = make("button", { type: "button", class: "quiet", onclick: () => change(this.model) });
    this.element = make("li", { "data-model": id },
      make("span", { class: "name" }, id), this.state, this.button, this.facts);
  }

  show(model) {
    this.model = model;
    setText(this.state, model.state);
    this.state.dataset.state = model.state;
    const words = kToBeLoaded.includes(model.state) ? "Load" : "Unload";
    setText(this.button, words);
    this.button.setAttribute("aria-label", `${words} ${model.id}`);
    const facts = [model.memory_bytes > 0 ? formatBytes(model.memory_bytes) : "", ...(model.aliases ?? []), model.reason ?? ""];
    setText(this.facts, facts.filter(Boolean).join(", "));
  }
}

async function change(model) {
  const load = kToBeLoaded.includes(model.state);
  const words = `${model.id} is unloaded when its last request is over. A request that comes later loads it again.`;
  if (!load && !(await confirm("Unload this model?", words, "Unload"))) return;
  try {
    await request(`v1/models/${load ? "load" : "unload"}`, { method: "POST", body: { model: model.id } });
    toast(load ? `${model.id} is being loaded.` : `${model.id} is unloaded when its last request is over.`);
  } catch (error) {
    toast(error.message);
  }
  lookAtModels().catch(() => {});  // the next look says what is wrong
}
