// Streams of a real model that are disturbed while they run, and what their clients receive.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/integration/model_serving.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

inline json request_of(bool sampled, int tokens, const std::string& prompt, int seed) {
  json request = {{"prompt", prompt},        {"max_tokens", tokens}, {"ignore_eos", true},
                  {"logprobs", 2},           {"stream", true},       {"temperature", 0},
                  {"return_token_ids", true}};
  if (sampled) {
    request["temperature"] = 0.9;
    request["seed"] = seed;
    request["top_p"] = 0.95;
    request["repetition_penalty"] = 1.1;
  }
  return request;
}

// Everything that a client received, regardless of how it was cut into events.
struct Heard {
  std::string text, finish_reason;
  std::vector<int> ids;
  json logprobs = json::object();
  bool done = false;
  bool operator==(const Heard&) const = default;
};
inline void PrintTo(const Heard& heard, std::ostream* out) {
  *out << heard.ids.size() << " tokens, " << heard.finish_reason << (heard.done ? "" : ", cut")
       << ": " << heard.text << " " << heard.logprobs;
}

inline Heard heard_of(const std::string& body) {
  Heard heard;
  const Events events = events_of(body);
  heard.done = events.done;
  for (const json& chunk : events.chunks) {
    EXPECT_FALSE(chunk.contains("error")) << chunk;
    if (!chunk.contains("choices")) continue;
    for (const json& choice : chunk["choices"]) {
      heard.text += choice["text"].get<std::string>();
      if (choice.contains("token_ids")) {
        for (int id : choice["token_ids"])
          heard.ids.push_back(id);
      }
      if (choice["finish_reason"].is_string()) heard.finish_reason = choice["finish_reason"];
      if (!choice.contains("logprobs") || !choice["logprobs"].is_object()) continue;
      for (const auto& [key, values] : choice["logprobs"].items()) {
        for (const json& value : values)
          heard.logprobs[key].push_back(value);
      }
    }
  }
  return heard;
}

struct Timed {
  Heard heard;
  milliseconds longest_pause{0};  // between two pieces
};

inline Timed stream(
    std::uint16_t port, const json& request, int first_pieces = 0,
    const std::function<void()>& then = [] {}) {
  Timed timed;
  HttpClient client(port);
  EXPECT_TRUE(client.send("POST", "/v1/completions", request.dump()));
  if (first_pieces == 0) then();
  const HttpReply head = client.receive_head();
  EXPECT_EQ(head.status, 200);
  std::string body;
  auto last = steady_clock::now();
  for (int pieces = 1; auto piece = client.receive_chunk(); ++pieces) {
    const auto now = steady_clock::now();
    if (pieces > 1)
      timed.longest_pause = std::max(timed.longest_pause, duration_cast<milliseconds>(now - last));
    last = now;
    if (piece->empty()) break;
    body += *piece;
    if (pieces == first_pieces) then();
  }
  timed.heard = heard_of(body);
  return timed;
}

// Returns the pid of the worker that serves, once there is one.
inline pid_t serving_worker(const Serving& serving) {
  pid_t pid = -1;
  EXPECT_TRUE(Serving::eventually([&] {
    const json worker = serving.worker();
    if (worker["state"] != "ready") return false;
    pid = worker["pid"].get<pid_t>();
    return true;
  }));
  return pid;
}

}  // namespace bulkhead::test
