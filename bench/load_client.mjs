// A load test that shares no code with `bulkhead load-test`: Node's own HTTP client, and the same load. (With fetch()
// all streams ran up to 4 % slower.)
//   node load_client.mjs URL MODEL '{"requests":64,"concurrency":8,"prompt_words":64,"max_tokens":64,"seed":1}'
// Streams chats greedily to exactly max_tokens. Prints one JSON object with the keys of `bulkhead load-test --json`.
// bench/load-check runs it.

import http from "node:http";
import https from "node:https";

const [url, model, given] = process.argv.slice(2);
const load = JSON.parse(given);
const words = ["river", "stone", "light", "winter", "garden", "story", "quiet", "paper", "window", "silver", "morning",
  "road"];

// The first words have the request's number, so that no server answers from a cache of prompts.
function promptOf(number) {
  let state = BigInt(load.seed * 1000003 + number);
  let text = `Request ${state}:`;
  for (let i = 2; i < load.prompt_words; ++i) {
    state = (state * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
    text += ` ${words[Number((state >> 33n) % BigInt(words.length))]}`;
  }
  return text;
}

const began = performance.now();
const records = [];

function take(record, data) {
  if (data === "[DONE]") {
    record.done = true;
    return;
  }
  const event = JSON.parse(data);
  if (event.error) record.error = event.error.message ?? "an error in the stream";
  const delta = event.choices?.[0]?.delta;
  if (delta?.content || delta?.reasoning_content) record.texts.push(performance.now());
  if (event.usage) record.tokens = event.usage.completion_tokens;
}

const { request } = url.startsWith("https:") ? https : http;
const agent = new (url.startsWith("https:") ? https : http).Agent({ keepAlive: true, noDelay: true });
const headers = { "content-type": "application/json" };
if (process.env.BULKHEAD_API_KEY) headers.authorization = `Bearer ${process.env.BULKHEAD_API_KEY}`;

function ask(number) {
  const record = { began: performance.now(), texts: [], tokens: 0, error: "", done: false };
  const body = JSON.stringify({
    model,
    messages: [{ role: "user", content: promptOf(number) }],
    max_tokens: load.max_tokens,
    ignore_eos: true,
    temperature: 0,
    stream: true,
    stream_options: { include_usage: true },
  });
  return new Promise((resolve) => {
    const end = (error) => {
      if (record.ended) return;
      record.error ||= error;
      record.ended = performance.now();
      records.push(record);
      resolve();
    };
    const sent = request(`${url}/v1/chat/completions`, { method: "POST", headers, agent }, (answer) => {
      let rest = "";
      answer.setEncoding("utf8");
      answer.on("data", (text) => {
        rest += text;
        if (answer.statusCode !== 200) return;
        const lines = rest.split("\n");
        rest = lines.pop();
        for (const line of lines) if (line.startsWith("data: ")) take(record, line.slice(6).trimEnd());
      });
      answer.on("error", (error) => end(String(error.message)));
      answer.on("end", () => {
        if (answer.statusCode !== 200) return end(`${answer.statusCode}: ${rest}`);
        end(record.done ? "" : "the answer broke off");
      });
    });
    sent.on("error", (error) => end(String(error.message)));
    sent.end(body);
  });
}

function percentiles(values) {
  values.sort((a, b) => a - b);
  const at = (share) => values[Math.max(1, Math.ceil(share * values.length)) - 1] ?? 0;
  const mean = values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0;
  return { mean, p50: at(0.5), p90: at(0.9), p95: at(0.95), p99: at(0.99), max: at(1) };
}

let next = 0;
async function askOn() {
  while (next < load.requests) await ask(next++);
}
await Promise.all(Array.from({ length: Math.min(load.concurrency, load.requests) }, askOn));

const good = records.filter((record) => !record.error);
const seconds = (Math.max(...records.map((record) => record.ended)) - began) / 1000;
const tokens = good.reduce((sum, record) => sum + (record.tokens || record.texts.length), 0);
const between = [];
for (const { texts, tokens: count } of good) {
  const perEvent = Math.max(1, (count || texts.length) / texts.length);  // tokens of an event count as equal gaps
  for (let i = 1; i < texts.length; ++i) between.push((texts[i] - texts[i - 1]) / perEvent);
}
const first = good.filter((record) => record.texts.length > 0).map((record) => record.texts[0] - record.began);
console.log(JSON.stringify({
  requests: records.length,
  failed: records.length - good.length,
  seconds,
  tokens,
  tokens_per_second: tokens / seconds,
  first_token_ms: percentiles(first),
  inter_token_ms: percentiles(between),
  first_error: records.find((record) => record.error)?.error,
}));
