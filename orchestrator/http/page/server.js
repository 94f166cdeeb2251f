// What the server does: looks once a second, shows workers and charts, and lets the reader drain, restart and,
// where the server allows it, kill workers.
import {ApiError, getJson, getText, keyInUse, request} from './api.js';
import {Chart} from './charts.js';
import {announce, byId, confirm, make, setText, toast} from './dialogs.js';
import {formatBytes, formatNumber, History, kCharts, parseMetrics} from './figures.js';
import {lookAtModels} from './models.js';

const kEveryMs = 1000;
const kEveryMsWithClientKey = 5000;
const kBaselineName = "bulkhead.baseline";

const history = new History();
const charts = kCharts.map((row) => new Chart(row));
const cards = new Map();  // worker's name -> Card
let workers = [];
let lastLook = 0;
let looking = null;
let baseline = {};
let clientKey = null;  // a key that may ask models, and not see what operators see

export const knownWorkers = () => workers;

// ---- looking ----

// Workers as they are now, or as they were last when the server can't be asked. A client's key may not look at them.
export async function lookAtWorkers() {
  if (hasClientKey()) return workers;
  try {
    workers = await getJson("v1/workers", { quiet: true });
    showWorkers();
  } catch {
    // the next look says what is wrong
  }
  return workers;
}

const hasClientKey = () => clientKey !== null && clientKey === keyInUse();

// All that a client's key lets the page know.
async function lookAtReadiness() {
  try {
    await request('readyz', {quiet: true});
    showWords('good', 'Ready');
  } catch (error) {
    if (error instanceof ApiError)
      showWords('bad', 'Not ready');
    else
      showHealth(error);
  }
}

async function look() {
  if (hasClientKey()) return lookAtReadiness();
  const time = Date.now();
  try {
    const [metrics, list] = await Promise.all([getText("metrics", { quiet: true }), getJson("v1/workers", { quiet: true })]);
    workers = list;
    lastLook = time;
    history.add(time, parseMetrics(metrics), list);
    showHealth(null);
    showWorkers();
    showCharts();
    await lookAtModels();
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 403) return showHealth(error);
    clientKey = keyInUse();
    await lookAtReadiness();
  }
}

// One look after the other; none while nobody sees the page.
export function watch() {
  const again = () => {
    if (document.hidden) return setTimeout(again, kEveryMs);
    looking ??= look().finally(() => {
      looking = null;
      setTimeout(again, hasClientKey() ? kEveryMsWithClientKey : kEveryMs);
    });
  };
  try {
    baseline = JSON.parse(localStorage.getItem(kBaselineName)) ?? {};
  } catch {
    baseline = {};
  }
  byId("charts").append(...charts.map((chart) => chart.element));
  byId("mark-baseline").addEventListener("click", markBaseline);
  showBaselineButton();
  again();
}

// ---- health ----

const kServing = ["ready", "draining"];

function healthOf(error) {
  if (error instanceof ApiError && error.status === 401) return ["bad", "API key needed"];
  if (error instanceof ApiError) return ["bad", error.message];
  if (error) return ["bad", "The server can't be reached"];
  const ready = workers.filter((worker) => worker.state === "ready" || worker.state === "standby").length;
  const wanted = workers.filter((worker) => worker.state !== "unloaded").length;
  const words = wanted > 0 ? `${ready} of ${wanted} workers ready` : "No model is loaded";
  return [ready === wanted ? "good" : ready > 0 ? "warn" : "bad", words, wanted > 0 ? `${ready}/${wanted}` : ""];
}

// `brief` stands in place of the words where there is no room for them.
function showWords(grade, words, brief = "") {
  byId("health").dataset.grade = grade;
  if (brief) byId("health").dataset.brief = brief;
  else delete byId("health").dataset.brief;
  setText(byId("health").querySelector(".words"), words);
}

function showHealth(error) {
  showWords(...healthOf(error));
  if (error) byId("health").title = `Last seen ${lastLook ? new Date(lastLook).toLocaleTimeString() : "never"}`;
  else byId("health").removeAttribute("title");
}

// ---- workers ----

const kFacts = [
  ["Model", (worker) => worker.model],
  ["Process", (worker) => (worker.pid === null ? "none" : String(worker.pid))],
  ["Device", (worker) => deviceOf(worker)],
  ["Requests", (worker) => requestsOf(worker)],
  ["Restarts", (worker) => restartsOf(worker)],
  ["KV memory", (worker) => kvOf(worker)],
  ["Last death", (worker) => deathOf(worker)],
];

function deviceOf(worker) {
  if (!worker.device) return "not known yet";
  const asked = worker.device_asked;
  return asked && asked !== "auto" ? `${worker.device} (${asked})` : worker.device;
}
function requestsOf(worker) {
  const waiting = worker.waiting_sequences ? `, ${worker.waiting_sequences} waiting` : "";
  return `${worker.outstanding_requests}${waiting}`;
}
function restartsOf(worker) {
  const carried = worker.recovered_requests;
  const words = carried ? `, ${formatNumber(carried)} ${carried === 1 ? "request" : "requests"} carried over` : "";
  return `${worker.restarts}${words}`;
}
function kvOf(worker) {
  if (!worker.kv_pages_total) return "none";
  return `${worker.kv_pages_used} of ${worker.kv_pages_total} pages; the cache takes ${formatBytes(worker.kv_bytes)}`;
}
const kWays = { loaded: "the model was loaded anew", imported: "from the vault", standby: "a spare took over" };
function deathOf(worker) {
  if (worker.last_death === null) return "never died";
  const recovery = worker.last_recovery;
  if (!recovery?.resumed_at_ns) return worker.last_death;
  const pause = (recovery.resumed_at_ns - recovery.noticed_at_ns) / 1e9;
  return `${worker.last_death}; its requests went on after ${pause.toFixed(2)} s (${kWays[recovery.way] ?? recovery.way})`;
}

class Card {
  constructor(name) {
    this.name = name;
    this.state = make("span", { class: "state" });
    this.facts = new Map(kFacts.map(([title]) => [title, make("dd")]));
    this.progress = make("progress", { hidden: true, "aria-label": `Progress of ${name}` });
    const button = (words, act, style) =>
      make("button", { type: "button", class: style, "aria-label": `${words} ${name}`, onclick: () => act(this.worker) }, words);
    this.drain = button("Drain", drain, "quiet");
    this.restart = button("Restart", restart, "quiet");
    this.kill = button("Kill", kill, "quiet danger");
    const list = make("dl", {}, ...[...this.facts].flatMap(([title, value]) => [make("dt", {}, title), value]));
    this.element = make("article", { class: "worker", "data-worker": name },
      make("h3", {}, name, " ", this.state), this.progress, list,
      make("div", { class: "actions" }, this.drain, this.restart, this.kill));
  }

  show(worker) {
    this.worker = worker;
    const spare = worker.standby_of !== undefined;
    setText(this.state, worker.state);
    this.state.dataset.state = worker.state;
    for (const [title, read] of kFacts) setText(this.facts.get(title), read(worker));
    this.progress.hidden = !worker.progress;
    if (worker.progress) {
      this.progress.max = worker.progress.total || 1;
      this.progress.value = worker.progress.done;
      this.progress.title = worker.progress.stage;
    }
    this.drain.hidden = spare;
    this.drain.disabled = worker.state !== "ready";
    this.kill.hidden = spare || !worker.kill_allowed;
    this.kill.disabled = !kServing.includes(worker.state);
  }
}

function showWorkers() {
  const names = new Set(workers.map((worker) => worker.name));
  for (const [name, card] of cards) {
    if (names.has(name)) continue;
    card.element.remove();
    cards.delete(name);
  }
  for (const worker of workers) {
    if (!cards.has(worker.name)) {
      cards.set(worker.name, new Card(worker.name));
      byId("workers").append(cards.get(worker.name).element);
    }
    cards.get(worker.name).show(worker);
  }
}

async function tell(worker, action, done) {
  try {
    await request(`v1/workers/${encodeURIComponent(worker.name)}/${action}`, { method: "POST" });
    toast(done);
  } catch (error) {
    toast(error.message);
  }
  lookAtWorkers();
}

async function drain(worker) {
  const words = `The worker ${worker.name} finishes its requests and takes no others until it is restarted.`;
  if (await confirm("Drain this worker?", words, "Drain")) await tell(worker, "drain", `${worker.name} is draining.`);
}

const restart = (worker) =>
  tell(worker, "restart", `${worker.name} finishes its requests, then a new process takes its place.`);

async function kill(worker) {
  const count = worker.outstanding_requests;
  const words = `The process ${worker.pid} of ${worker.name} gets SIGKILL, as in a crash. ` +
    (count > 0 ? `Its ${count === 1 ? "request pauses and goes" : `${count} requests pause and go`} on` : "It is replaced") +
    " as soon as another process serves.";
  if (!(await confirm("Kill this worker?", words, "Kill it"))) return;
  announce(`${worker.name} is killed`);
  await tell(worker, "kill", `${worker.name} was killed.`);
}

// ---- charts ----

function showCharts() {
  const now = history.samples.at(-1).time;
  for (const chart of charts)
    chart.draw(history.series.get(chart.row.id), history.notes.get(chart.row.id), baseline[chart.row.id] ?? null, now);
}

const hasBaseline = () => Object.keys(baseline).length > 0;

function showBaselineButton() {
  setText(byId("mark-baseline"), hasBaseline() ? "Clear the baseline" : "Mark as baseline");
  byId("baseline-sample").hidden = !hasBaseline();
}

// The means of what is shown, as dashed lines to compare with later; in this browser alone.
function markBaseline() {
  baseline = hasBaseline() ? {}
    : Object.fromEntries(kCharts.map(({ id }) => [id, history.mean(id)]).filter(([, value]) => value !== null));
  try {
    localStorage.setItem(kBaselineName, JSON.stringify(baseline));
  } catch {
    // kept as long as the page
  }
  showBaselineButton();
  if (history.samples.length > 0) showCharts();
}
