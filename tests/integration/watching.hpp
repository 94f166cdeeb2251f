// Streams of the scripted worker, and what /v1/workers shows meanwhile.
#pragma once

#include <algorithm>
#include <string>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {

inline json stream_of(const std::string& prompt, int tokens) {
  return {{"prompt", prompt}, {"max_tokens", tokens}, {"seed", 9}, {"stream", true}};
}

// Expects the scripted worker's words; for the model `other`, that model's words.
inline void expect_whole(const std::string& body, int tokens, bool other = false) {
  const Events events = events_of(body);
  EXPECT_TRUE(events.done) << body.substr(body.size() > 500 ? body.size() - 500 : 0);
  std::string text;
  for (const json& chunk : events.chunks) {
    ASSERT_TRUE(chunk.contains("choices")) << chunk;
    text += chunk["choices"][0]["text"].get<std::string>();
  }
  std::string expected = expected_text(9, tokens);
  if (other) std::ranges::replace(expected, 't', 'o');
  EXPECT_EQ(text, expected);
}

inline std::string rest_of(HttpClient& client) {
  std::string body;
  while (auto piece = client.receive_chunk()) {
    if (piece->empty()) break;
    body += *piece;
  }
  return body;
}

inline json workers(const Serving& serving) {
  return json::parse(serving.get("/v1/workers").body);
}
inline json find(const Serving& serving, const std::string& name) {
  for (const json& worker : workers(serving)) {
    if (worker["name"] == name) return worker;
  }
  return nullptr;
}
// Returns the pid of the worker with this name, once it is in that state.
inline pid_t pid_in(const Serving& serving, const std::string& name, const std::string& state) {
  pid_t pid = -1;
  EXPECT_TRUE(Serving::eventually([&] {
    const json worker = find(serving, name);
    if (worker.is_null() || worker["state"] != state) return false;
    pid = worker["pid"].get<pid_t>();
    return true;
  })) << name
      << " is not " << state << "\n"
      << workers(serving) << serving.daemon->log();
  return pid;
}
// Waits until a spare of the worker with this name stands by. (Its name depends on whether the daemon has forgotten
// the spare before it.)
inline void spare_stands_by(const Serving& serving, const std::string& name) {
  EXPECT_TRUE(Serving::eventually([&] {
    for (const json& worker : workers(serving)) {
      if (worker.value("standby_of", "") == name && worker["state"] == "standby") return true;
    }
    return false;
  })) << "no spare of "
      << name << " stands by\n"
      << workers(serving) << serving.daemon->log();
}

}  // namespace bulkhead::test
