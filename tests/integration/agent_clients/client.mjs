// The official clients of OpenAI and Anthropic against a daemon with the scripted worker, which answers with the
// raw text that a request names: tool calls go there and back in each of the three protocols.
//   node client.mjs BASE_URL
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
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
console.log("chat completions: ok");

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
assert.deepEqual(last.content, [{ type: "text", text: "It rains." }]);
assert.equal(last.stop_reason, "end_turn");
const count = await anthropic.messages.countTokens({ model: "m", messages: [{ role: "user", content: "hi" }] });
assert.equal(count.input_tokens, "user: hi\n".length);
await assert.rejects(
  anthropic.messages.create({ ...turn, tool_choice: { type: "any" } }),
  (error) => error instanceof Anthropic.BadRequestError && /tool_choice/.test(error.message),
);
console.log("messages: ok");
