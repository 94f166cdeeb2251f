// From /metrics and /v1/workers to the series that the charts draw. Pure: no elements, no requests.

const kWindowMs = 10_000;  // rates and shares are those of so long ago until now

// Prometheus text as Map name -> [{labels, text, value}].
export function parseMetrics(text) {
  const metrics = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    if (!metrics.has(match[1])) metrics.set(match[1], []);
    metrics.get(match[1]).push({ labels, text: match[2] ?? "", value: Number(match[3].replace("Inf", "Infinity")) });
  }
  return metrics;
}

const rows = (sample, name) => sample.metrics.get(name) ?? [];
export const sum = (sample, name) => rows(sample, name).reduce((total, row) => total + row.value, 0);
const most = (sample, name) => rows(sample, name).reduce((so_far, row) => Math.max(so_far, row.value), 0);

// How much a counter grew, over all its labels. One that shrank began anew, with its process.
export function growth(before, now, name) {
  const earlier = new Map(rows(before, name).map((row) => [row.text, row.value]));
  return rows(now, name).reduce((total, row) => {
    const was = earlier.get(row.text) ?? 0;
    return total + (row.value >= was ? row.value - was : row.value);
  }, 0);
}

// The share of `part` in `whole` lately; of all time where nothing happened lately; null: never.
function share(before, now, part, whole) {
  const lately = growth(before, now, whole);
  if (lately > 0) return Math.min(1, growth(before, now, part) / lately);
  const ever = sum(now, whole);
  return ever > 0 ? Math.min(1, sum(now, part) / ever) : null;
}

// The mean of what `count` counted lately; null: it counted nothing.
function mean(before, now, total, count) {
  const counted = growth(before, now, count);
  return counted > 0 ? growth(before, now, total) / counted : null;
}

// Of what a histogram counted between two samples, in its unit, between the bounds of its bucket; null:
// it counted nothing.
export function quantile(before, now, name, q) {
  const buckets = rows(now, `${name}_bucket`).map((row) => ({
    bound: Number(row.labels.le.replace("Inf", "Infinity")),
    count: row.value - (rows(before, `${name}_bucket`).find((old) => old.text === row.text)?.value ?? 0),
  }));
  buckets.sort((a, b) => a.bound - b.bound);
  const total = buckets.at(-1)?.count ?? 0;
  if (total <= 0) return null;
  let low = 0;
  let below = 0;
  for (const { bound, count } of buckets) {
    if (count >= q * total) {
      if (bound === Infinity) return low;
      return low + (bound - low) * ((q * total - below) / Math.max(count - below, 1e-9));
    }
    low = bound;
    below = count;
  }
  return low;
}

function kvShare(sample) {
  const total = sum(sample, "bulkhead_worker_kv_pages");
  return total > 0 ? sum(sample, "bulkhead_worker_kv_pages_used") / total : null;
}

// The memory that caches take now. Of a cache that can grow, this is less than all its pages would take.
const kvBytes = (workers) => workers.reduce((total, worker) => total + (worker.kv_bytes || 0), 0);

// ---- in words ----

const kGrades = [[1e9, "G"], [1e6, "M"], [1e4, "k"]];
export function formatNumber(value) {
  for (const [size, letter] of kGrades) {
    if (value >= size) return `${(value / (letter === "k" ? 1e3 : size)).toFixed(1)} ${letter}`;
  }
  return value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}
export function formatSeconds(value) {
  if (value < 0.1) return `${(value * 1000).toFixed(1)} ms`;
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`;
}
export const formatShare = (value) => `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
export function formatBytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; ++at) value /= 1024;
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

// ---- the charts, a row each ----
// `value`: from the sample `kWindowMs` ago and the newest; null: there is none now. `warn`, `bad`: bounds below
// which the value should not be, or above which with `above`; the first is drawn as the target. `top`: the scale's end,
// where it is fixed.
const kFirst = "bulkhead_time_to_first_token_seconds";
const kNext = "bulkhead_inter_token_seconds";
const kQueue = "bulkhead_queue_time_seconds";
const kBlit = "bulkhead_worker_blit_";
const kPressure = "bulkhead_host_memory_pressure_seconds_total";
const kHeat = "bulkhead_device_temperature_celsius";

// The growth of the rows of one kind.
function ofKind(before, now, name, kind) {
  const only = (sample) => ({
    metrics: new Map([[name, rows(sample, name).filter((row) => row.labels.kind === kind)]]),
  });
  return growth(only(before), only(now), name);
}

function secondsBetween(before, now) {
  return Math.max((now.time - before.time) / 1000, 1e-3);
}
function percentile95(before, now, name) {
  const value = quantile(before, now, name, 0.95);
  return value === null ? "" : `95 % within ${formatSeconds(value)}`;
}

export const kCharts = [
  {
    id: "tokens", title: "Tokens per second", format: formatNumber,
    value: (before, now, last) =>
      growth(last, now, "bulkhead_ipc_tokens_received_total") / secondsBetween(last, now),
    note: (before, now) => `${formatNumber(sum(now, "bulkhead_ipc_tokens_received_total"))} so far`,
  },
  {
    id: "requests", title: "Requests in progress", format: formatNumber,
    value: (before, now) => sum(now, "bulkhead_requests_outstanding"),
    note: (before, now) => `${formatNumber(sum(now, "bulkhead_requests_waiting"))} waiting`,
  },
  {
    id: "first", title: "Time to first token", format: formatSeconds,
    value: (before, now) => quantile(before, now, kFirst, 0.5),
    note: (before, now) => percentile95(before, now, kFirst),
  },
  {
    id: "next", title: "Time between tokens", format: formatSeconds,
    value: (before, now) => quantile(before, now, kNext, 0.5),
    note: (before, now) => percentile95(before, now, kNext),
  },
  {
    id: "queue", title: "Time in the queue", format: formatSeconds,
    value: (before, now) => quantile(before, now, kQueue, 0.5),
    note: (before, now) => percentile95(before, now, kQueue),
  },
  {
    id: "kv", title: "KV memory used", format: formatShare, top: 1,
    value: (before, now) => kvShare(now),
    note: (before, now) => `the cache takes ${formatBytes(kvBytes(now.workers))}`,
  },
  {
    id: "pool", title: "Memory pool, hit rate", format: formatShare, top: 1, warn: 0.9, bad: 0.8,
    value: (before, now) => share(before, now, "bulkhead_worker_pool_hits_total", "bulkhead_worker_pool_acquires_total"),
    note: (before, now) => `${formatNumber(sum(now, "bulkhead_worker_pool_fallback_allocations_total"))} fallbacks`,
  },
  {
    id: "blit", title: "Transfers beside computing", format: formatShare, top: 1, warn: 0.7, bad: 0.5,
    value: (before, now) => share(before, now, `${kBlit}overlapped_seconds_total`, `${kBlit}transfer_seconds_total`),
    note: (before, now) => `${formatNumber(sum(now, `${kBlit}pending`))} pending`,
  },
  {
    id: "reuse", title: "Command ring, reuse", format: formatShare, top: 1, warn: 0.8, bad: 0.7,
    value: (before, now) => share(before, now, "bulkhead_worker_ring_replays_total", "bulkhead_worker_ring_submissions_total"),
    note: (before, now) => `${formatNumber(sum(now, "bulkhead_worker_ring_recordings_total"))} recordings`,
  },
  {
    id: "wait", title: "Wait for the device", format: formatSeconds, warn: 0.001, bad: 0.005, above: true,
    value: (before, now) => mean(before, now, "bulkhead_worker_ring_wait_seconds_total", "bulkhead_worker_ring_waits_total"),
    note: (before, now) => `${formatNumber(sum(now, "bulkhead_worker_ring_waits_total"))} waits`,
  },
  {
    id: "depth", title: "Message ring, depth", format: formatBytes,
    value: (before, now) => most(now, "bulkhead_ipc_depth_bytes"),
    note: (before, now) => `most so far ${formatBytes(most(now, "bulkhead_ipc_max_depth_bytes"))}`,
  },
  {
    id: "pressure", title: "Memory pressure of the machine", format: formatShare, top: 1, warn: 0.1, bad: 0.3, above: true,
    value: (before, now) => (rows(now, kPressure).length === 0 ? null
      : Math.min(1, ofKind(before, now, kPressure, "some") / secondsBetween(before, now))),
    note: (before, now) => `${formatBytes(sum(now, "bulkhead_host_memory_available_bytes"))} available`,
  },
  {
    id: "heat", title: "Temperature of the hottest device", format: (value) => `${Math.round(value)} °C`, top: 110,
    value: (before, now) => (rows(now, kHeat).length === 0 ? null : most(now, kHeat)),
    note: (before, now) => (most(now, "bulkhead_device_throttled") > 0 ? "throttled" : ""),
  },
];

// The samples of the last two minutes, and from them each chart's values.
export class History {
  static kSpanMs = 120_000;

  samples = [];
  series = new Map(kCharts.map((chart) => [chart.id, []]));  // id -> [{time, value}]
  notes = new Map();

  // metrics: from parseMetrics(); workers: from /v1/workers.
  add(time, metrics, workers) {
    const now = { time, metrics, workers };
    const last = this.samples.at(-1) ?? now;
    const before = this.samples.findLast((sample) => time - sample.time >= kWindowMs) ?? this.samples[0] ?? now;
    this.samples.push(now);
    this.samples = this.samples.filter((sample) => time - sample.time <= 2 * kWindowMs);
    for (const chart of kCharts) {
      const values = this.series.get(chart.id);
      values.push({ time, value: chart.value(before, now, last) });
      while (time - values[0].time > History.kSpanMs) values.shift();
      this.notes.set(chart.id, chart.note(before, now));
    }
  }

  // The mean of what a chart shows, or null.
  mean(id) {
    const values = this.series.get(id).map((point) => point.value).filter((value) => value !== null);
    return values.length > 0 ? values.reduce((a, b) => a + b, 0) / values.length : null;
  }
}
