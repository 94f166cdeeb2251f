// The official OpenAI client against a running daemon: lists models, streams a chat, reads an error.
//   node client.mjs BASE_URL
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "unused", maxRetries: 0, timeout: 120_000 });

const models = [];
for await (const model of client.models.list()) models.push(model);
assert.ok(models.length >= 1, "there is no model");
assert.equal(models[0].object, "model");
const model = models[0].id;
console.log(`model: ${model}`);

const messages = [{ role: "user", content: "Tell me a short story about a fox." }];
const request = { model, messages, max_tokens: 48, temperature: 0, seed: 1 };
const stream = await client.chat.completions.create({
  ...request,
  stream: true,
  stream_options: { include_usage: true },
});
let text = "";
let chunks = 0;
let finish = null;
let usage = null;
for await (const chunk of stream) {
  assert.equal(chunk.object, "chat.completion.chunk");
  if (chunk.usage) usage = chunk.usage;
  if (chunk.choices.length === 0) continue;
  const choice = chunk.choices[0];
  if (choice.delta.content) {
    text += choice.delta.content;
    chunks += 1;
  }
  if (choice.finish_reason) finish = choice.finish_reason;
}
console.log(`streamed ${chunks} chunks: ${JSON.stringify(text)}`);
assert.ok(text.length > 0, "the stream brought no text");
assert.ok(chunks > 1, "the text came in one piece: it was not streamed");
assert.ok(finish === "stop" || finish === "length", `finish_reason is ${finish}`);
assert.ok(usage && usage.completion_tokens > 0 && usage.completion_tokens <= 48, "usage is missing or wrong");
assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);

const whole = await client.chat.completions.create(request);
assert.equal(whole.choices[0].message.role, "assistant");
assert.equal(whole.choices[0].message.content, text, "streamed and whole answers differ");

// What the answer must be.
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 150 } },
  required: ["name", "age"],
  additionalProperties: false,
};
const person = await client.chat.completions.create({
  ...request,
  temperature: 1.5,
  response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema } },
});
assert.equal(person.choices[0].finish_reason, "stop", person.choices[0].message.content);
const { name, age } = JSON.parse(person.choices[0].message.content);
assert.ok(typeof name === "string" && name.length <= 12 && Number.isInteger(age) && age >= 0 && age <= 150);
console.log(`held to a schema: ${person.choices[0].message.content}`);
await assert.rejects(
  client.chat.completions.create({
    ...request,
    response_format: { type: "json_schema", json_schema: { name: "set", schema: { type: "array", uniqueItems: true } } },
  }),
  (error) => error instanceof OpenAI.BadRequestError && error.param === "response_format" && /uniqueItems/.test(error.message),
);

// The client turns the daemon's errors into its own classes, by status and body.
await assert.rejects(
  client.chat.completions.create({ model: "no-such-model", messages }),
  (error) => error instanceof OpenAI.NotFoundError && typeof error.error?.message === "string",
);
await assert.rejects(
  client.chat.completions.create({ model, messages: "no list" }),
  (error) => error instanceof OpenAI.BadRequestError,
);
console.log("ok");
