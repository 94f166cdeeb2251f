// The official clients of OpenAI, Anthropic and Ollama, and two frameworks, against a daemon with the scripted worker,
// which answers with the raw text that a request names: tool calls go there and back in each of the four protocols.
//   node client.mjs BASE_URL
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";

const url = process.argv[2];
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0, timeout: 60_000 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "unused", maxRetries: 0, timeout: 60_000 });

const call = '<think>\nhm\n</think>\n\nLooking.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>';
const says = (raw) => ({ seed: 7, chat_template_kwargs: { family: "hermes", raw } });
const parameters = { type: "object", properties: { city: { type: "string" } } };
const city = { city: "Oslo" };

// ---- chat completions ----

const tools = [{ type: "function", function: { name: "weather", parameters } }];
const messages = [{ role: "user", content: "Weather in Oslo? kill@20" }]; // the worker dies within the call
const chat = await openai.beta.chat.completions
  .stream({ model: "m", messages, tools, ...says(call) })
  .finalChatCompletion();
const choice = chat.choices[0];
assert.equal(choice.finish_reason, "tool_calls");
assert.equal(choice.message.content, "Looking.");
assert.equal(choice.message.tool_calls.length, 1);
assert.equal(choice.message.tool_calls[0].function.name, "weather");
assert.deepEqual(JSON.parse(choice.message.tool_calls[0].function.arguments), city);
const { tool_calls } = choice.message;
const answered = await openai.chat.completions.create({
  model: "m",
  messages: [
    { role: "user", content: "Weather in Oslo?" },
    { role: "assistant", content: null, tool_calls },
    { role: "tool", tool_call_id: tool_calls[0].id, content: "rain" },
  ],
  tools,
  ...says("It rains."),
});
assert.equal(answered.choices[0].message.content, "It rains.");
assert.equal(answered.choices[0].finish_reason, "stop");
const embeddings = await openai.embeddings.create({ model: "m", input: ["a", "four"], dimensions: 2 });
assert.equal(embeddings.data.length, 2);
assert.ok(Math.abs(embeddings.data[1].embedding[0] - 0.6) < 1e-6); // the scripted worker's are {3, 4, length}
console.log("chat completions, embeddings: ok");

// ---- responses ----

const request = {
  model: "m",
  input: "Weather in Oslo? kill@20",
  tools: [{ type: "function", name: "weather", parameters, strict: false }],
  ...says(call),
};
let text = "";
let completed = null;
for await (const event of await openai.responses.create({ ...request, stream: true })) {
  if (event.type === "response.output_text.delta") text += event.delta;
  if (event.type === "response.completed") completed = event.response;
}
assert.equal(text, "Looking.");
assert.equal(completed.status, "completed");
const asked = completed.output.find((item) => item.type === "function_call");
assert.equal(asked.name, "weather");
assert.deepEqual(JSON.parse(asked.arguments), city);
const reply = await openai.responses.create({
  ...request,
  input: [
    { role: "user", content: "Weather in Oslo?" },
    ...completed.output,
    { type: "function_call_output", call_id: asked.call_id, output: "rain" },
  ],
  ...says("It rains."),
});
assert.equal(reply.output_text, "It rains.");
console.log("responses: ok");

// ---- messages ----

const turn = {
  model: "m",
  max_tokens: 1000,
  messages: [{ role: "user", content: "Weather in Oslo? kill@20" }],
  tools: [{ name: "weather", input_schema: parameters }],
};
let streamed = "";
const message = await anthropic.messages
  .stream({ ...turn, ...says(call) })
  .on("text", (delta) => (streamed += delta))
  .finalMessage();
assert.equal(streamed, "Looking.");
assert.equal(message.stop_reason, "tool_use");
const use = message.content.find((block) => block.type === "tool_use");
assert.equal(use.name, "weather");
assert.deepEqual(use.input, city);
const last = await anthropic.messages.create({
  ...turn,
  messages: [
    { role: "user", content: "Weather in Oslo?" },
    { role: "assistant", content: message.content },
    { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "rain" }] },
  ],
  ...says("It rains."),
});
assert.deepEqual(last.content, [{ type: "text", text: "It rains.", citations: null }]);
assert.equal(last.stop_reason, "end_turn");
const count = await anthropic.messages.countTokens({ model: "m", messages: [{ role: "user", content: "hi" }] });
assert.equal(count.input_tokens, "user: hi\n".length);
const required = await anthropic.messages.create({ ...turn, ...says(call), tool_choice: { type: "any" } });
assert.equal(required.stop_reason, "tool_use");
await assert.rejects(
  anthropic.messages.create({ ...turn, tool_choice: { type: "tool", name: "no_such_tool" } }),
  (error) => error instanceof Anthropic.BadRequestError && /tool_choice/.test(error.message),
);
console.log("messages: ok");

// ---- Ollama ----

const ollama = new Ollama({ host: url });
const scripts = { chat_template_kwargs: { family: "hermes", raw: call } };
const wanted = {
  model: "m",
  messages: [{ role: "user", content: "Weather in Oslo? kill@20" }],
  tools,
  options: { seed: 7 },
  ...scripts,
};
let said = "";
let thought = "";
const ollamaCalls = [];
for await (const part of await ollama.chat({ ...wanted, stream: true })) {
  said += part.message.content;
  thought += part.message.thinking ?? "";
  ollamaCalls.push(...(part.message.tool_calls ?? []));
  if (part.done) assert.equal(part.done_reason, "stop");
}
assert.equal(said, "Looking.");
assert.equal(thought, "hm");
assert.equal(ollamaCalls.length, 1);
assert.equal(ollamaCalls[0].function.name, "weather");
assert.deepEqual(ollamaCalls[0].function.arguments, city);
const told = await ollama.chat({
  ...wanted,
  messages: [
    { role: "user", content: "Weather in Oslo?" },
    { role: "assistant", content: said, tool_calls: ollamaCalls },
    { role: "tool", tool_name: "weather", content: "rain" },
  ],
  chat_template_kwargs: { family: "hermes", raw: "It rains." },
});
assert.equal(told.message.content, "It rains.");
assert.ok(told.eval_count > 0 && told.total_duration > 0);
const written = await ollama.generate({ model: "m", prompt: "hi", raw: true, options: { seed: 7, num_predict: 3 } });
assert.equal(written.response, "s7 t1 t2!");
assert.equal(written.done_reason, "length");
const { embeddings: vectors } = await ollama.embed({ model: "m", input: "four", dimensions: 2 });
assert.ok(Math.abs(vectors[0][1] - 0.8) < 1e-6);
assert.equal((await ollama.list()).models.length, 1);
assert.equal((await ollama.ps()).models.length, 1);
assert.ok((await ollama.show({ model: "m" })).capabilities.includes("tools"));
await assert.rejects(ollama.chat({ ...wanted, options: { mirostat: 1 } }), /options\.mirostat/);
console.log("ollama: ok");

// ---- frameworks ----

// The first answer calls the tool; the one that has its result says what it is.
const hasResult = ({ messages, input }) =>
  messages?.some((message) => message.role === "tool") ||
  (Array.isArray(input) && input.some((item) => item.type === "function_call_output"));
const scriptedFetch = (address, options) => {
  const body = JSON.parse(options.body);
  const raw = hasResult(body) ? "It rains." : call;
  return fetch(address, { ...options, body: JSON.stringify({ ...body, ...says(raw) }) });
};
const provider = { baseURL: `${url}/v1`, apiKey: "unused", fetch: scriptedFetch };
const weather = tool({ inputSchema: jsonSchema(parameters), execute: async () => "rain" });
for (const [name, model, providerOptions] of [
  // By default the client names what the server has said by its ids alone.
  ["openai, responses", createOpenAI(provider)("m"), {}],
  ["openai, responses that are not stored", createOpenAI(provider)("m"), { openai: { store: false } }],
  ["openai, chat", createOpenAI(provider).chat("m"), {}],
  ["openai-compatible", createOpenAICompatible({ ...provider, name: "bulkhead" })("m"), {}],
]) {
  const task = {
    model,
    providerOptions,
    tools: { weather },
    stopWhen: stepCountIs(3),
    prompt: "Weather in Oslo?",
    maxRetries: 0,
  };
  const whole = await generateText(task);
  assert.equal(whole.text, "It rains.", name);
  assert.deepEqual(whole.steps[0].toolCalls[0].input, city, name);
  const stream = streamText({ ...task, onError: ({ error }) => assert.fail(`${name}: ${error}`) });
  assert.equal(await stream.text, "It rains.", name);
  console.log(`ai with ${name}: ok`);
}

const langchain = new ChatOpenAI({
  model: "m",
  apiKey: "unused",
  maxRetries: 0,
  configuration: { baseURL: `${url}/v1`, fetch: scriptedFetch },
}).bindTools(tools);
const first = await langchain.invoke("Weather in Oslo?");
assert.deepEqual(first.tool_calls[0].args, city);
const second = await langchain.invoke([
  { role: "user", content: "Weather in Oslo?" },
  first,
  { role: "tool", tool_call_id: first.tool_calls[0].id, content: "rain" },
]);
assert.equal(second.content, "It rains.");
let pieces = "";
for await (const chunk of await langchain.stream("Weather in Oslo?")) pieces += chunk.content;
assert.equal(pieces, "Looking.");
console.log("@langchain/openai: ok");
