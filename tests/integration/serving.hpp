// A daemon with the scripted worker, and short functions for requests to it.
#pragma once

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/daemon.hpp"
#include "tests/support/http_client.hpp"

namespace bulkhead::test {

using nlohmann::json;
using namespace std::string_literals;

struct Serving {
  std::unique_ptr<Daemon> daemon;
  std::uint16_t port = 0;

  HttpReply get(const std::string& path) const { return HttpClient(port).request("GET", path); }
  HttpReply post(const std::string& path, const std::string& body,
                 const std::vector<std::string>& fields = {}) const {
    return HttpClient(port).request("POST", path, body, fields);
  }
  HttpReply complete(const json& body) const { return post("/v1/completions", body.dump()); }
  json worker(std::size_t index = 0) const {
    return json::parse(get("/v1/workers").body).at(index);
  }

  // Asks every 10 ms, for at most `patience`, until `holds` returns true. Returns whether it did.
  static bool eventually(const std::function<bool()>& holds,
                         std::chrono::seconds patience = std::chrono::seconds(120)) {
    const auto end = std::chrono::steady_clock::now() + patience;
    for (;;) {
      if (holds()) return true;
      if (std::chrono::steady_clock::now() >= end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  double metric(const std::string& name) const {
    std::string text = get("/metrics").body;
    std::size_t at = text.find("\n" + name);
    if (at == std::string::npos) return -1;
    std::size_t end = text.find('\n', at + 1);
    std::string line = text.substr(at + 1, end - at - 1);
    return std::stod(line.substr(line.rfind(' ') + 1));
  }
};

inline Serving serve(std::vector<std::string> settings = {},
                     std::map<std::string, std::string> environment = {},
                     Daemon::Options options = {}) {
  for (const std::string& setting : settings)
    options.arguments.insert(options.arguments.end(), {"--set", setting});
  options.environment = std::move(environment);
  options.environment.emplace("BULKHEAD_WORKER", FAKE_WORKER);
  Serving serving;
  serving.daemon = std::make_unique<Daemon>(BULKHEADD, options);
  serving.port = serving.daemon->wait_until_listening();
  EXPECT_NE(serving.port, 0) << serving.daemon->log();
  return serving;
}

inline std::string url_of(const Serving& serving) {
  return "http://127.0.0.1:" + std::to_string(serving.port);
}

// The JSON of each event except "[DONE]"; `done` says whether that came last.
struct Events {
  std::vector<json> chunks;
  bool done = false;
};
inline Events events_of(const std::string& body) {
  Events events;
  std::size_t at = 0;
  while (at < body.size()) {
    std::size_t end = body.find("\n\n", at);
    if (end == std::string::npos) break;
    std::string event = body.substr(at, end - at);
    at = end + 2;
    EXPECT_FALSE(events.done) << "an event after [DONE]";
    if (event.starts_with(":")) continue;  // a comment that ends a long silence
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    if (event == "data: [DONE]") {
      events.done = true;
    } else {
      events.chunks.push_back(json::parse(event.substr(6)));
    }
  }
  EXPECT_EQ(at, body.size()) << "half an event";
  return events;
}

// The text of a completion's events.
inline std::string text_of(const Events& events) {
  std::string text;
  for (const json& chunk : events.chunks) {
    EXPECT_TRUE(chunk.contains("choices")) << chunk;
    if (chunk.contains("choices")) text += chunk["choices"][0]["text"].get<std::string>();
  }
  return text;
}

// What the scripted worker says for `count` tokens.
inline std::string expected_text(std::uint64_t seed, int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += i == 0 ? "s" + std::to_string(seed) : " t" + std::to_string(i);
  return text + "!";
}
inline std::vector<int> expected_ids(int count) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i)
    ids.push_back(1000 + i);
  return ids;
}

// These ask the scripted worker for a stream that also has the tokens' ids, and check that all of it came.
inline json stream_with_ids(const std::string& prompt, int tokens) {
  return {{"prompt", prompt},
          {"max_tokens", tokens},
          {"seed", 9},
          {"stream", true},
          {"return_token_ids", true}};
}
inline void expect_whole_with_ids(const std::string& body, int tokens) {
  const Events events = events_of(body);
  EXPECT_TRUE(events.done) << body.substr(body.size() > 500 ? body.size() - 500 : 0);
  EXPECT_EQ(text_of(events), expected_text(9, tokens));
  std::vector<int> ids;
  for (const json& chunk : events.chunks) {
    for (int id : chunk["choices"][0]["token_ids"])
      ids.push_back(id);
  }
  EXPECT_EQ(ids, expected_ids(tokens));
}

}  // namespace bulkhead::test
