// Requests of different sizes at a real worker whose KV pages are short: small ones do not wait for a large one, and
// the large one does not wait for ever.
#include <atomic>
#include <cstdint>
#include <future>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/model_serving.hpp"

namespace bulkhead::test {
namespace {

constexpr int kLongAnswer = 420;

// A cache of 2 MiB has 20 pages of 32 tokens.
json request_of(std::uint32_t which, std::size_t prompt_tokens, int answer_tokens) {
  std::vector<std::uint32_t> prompt(prompt_tokens);
  std::uint32_t state = 4711 + which;
  for (std::uint32_t& id : prompt) {
    state = state * 1664525 + 1013904223;
    id = 300 + (state >> 8) % 1500;
  }
  return asking_for_all({{"prompt", prompt},
                         {"max_tokens", answer_tokens},
                         {"ignore_eos", true},
                         {"temperature", 0},
                         {"stream", true}});
}
json small_request(std::uint32_t which) {
  return request_of(which, 20, 4);
}

// Reads the rest of an answer.
Answer read_rest(HttpClient& client, HttpReply reply) {
  while (auto chunk = client.receive_chunk()) {
    if (chunk->empty()) break;
    reply.body += *chunk;
  }
  return answer_of(reply);
}

TEST(Admission, SmallRequestsPassALargeOneAndDoNotStarveIt) {
  const Serving serving =
      serve_model("", {"engine.kv_cache_mb=2", "engine.max_batch=4", "engine.speculation=off"});
  HttpClient long_one(serving.port);
  ASSERT_TRUE(long_one.send("POST", "/v1/completions", request_of(1, 40, kLongAnswer).dump()));
  HttpReply long_reply = long_one.receive_head();
  for (int pieces = 0; pieces < 20; ++pieces)
    long_reply.body += long_one.receive_chunk().value_or("");
  std::atomic<bool> long_ended{false};
  auto long_answer = std::async(std::launch::async, [&] {
    Answer answer = read_rest(long_one, std::move(long_reply));
    long_ended = true;
    return answer;
  });
  // It takes all but one page. Its head comes when the worker has accepted it.
  const json large_request = request_of(2, 560, 8);
  HttpClient large(serving.port);
  ASSERT_TRUE(large.send("POST", "/v1/completions", large_request.dump()));
  HttpReply large_reply = large.receive_head();
  ASSERT_EQ(large_reply.status, 200);

  const Answer small = answer_of(serving.complete(small_request(10)));
  EXPECT_EQ(small.ids.size(), 4U);
  EXPECT_FALSE(long_ended) << "it waited for the whole long answer";

  std::atomic<bool> large_ended{false};
  std::vector<std::thread> others;
  for (std::uint32_t client = 0; client < 6; ++client) {
    others.emplace_back([&, client] {
      for (std::uint32_t i = 0; !large_ended; ++i)
        EXPECT_EQ(answer_of(serving.complete(small_request(1000 * (client + 1) + i))).ids.size(),
                  4U);
    });
  }
  const Answer large_answer = read_rest(large, std::move(large_reply));
  large_ended = true;
  for (std::thread& other : others)
    other.join();
  EXPECT_EQ(long_answer.get().ids.size(), static_cast<std::size_t>(kLongAnswer));
  EXPECT_EQ(large_answer.ids.size(), 8U);
  EXPECT_EQ(answer_of(serving.complete(large_request)).ids, large_answer.ids);
  EXPECT_EQ(answer_of(serving.complete(small_request(10))).ids, small.ids);
}

}  // namespace
}  // namespace bulkhead::test
