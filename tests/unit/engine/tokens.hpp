// Lists of tokens for tests of the engine, and functions that these tests need of a harness.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ipc/messages.hpp"
#include "tests/support/engine_harness.hpp"

namespace bulkhead::test {

using Tokens = std::vector<ipc::TokenId>;

inline Tokens operator+(Tokens left, const Tokens& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// Returns the greedy answer by the fake model's definition, without any pages.
inline Tokens answer_to(const FakeExecutor& executor, Tokens history, std::size_t count) {
  Tokens answer;
  while (answer.size() < count) {
    const std::vector<float> row = executor.logits_after(history);
    answer.push_back(static_cast<ipc::TokenId>(std::ranges::max_element(row) - row.begin()));
    history.push_back(answer.back());
  }
  return answer;
}

// A greedy request whose answer ends only by its length.
inline ipc::Submit endless(std::uint64_t id, const Tokens& prompt, std::uint32_t max_tokens) {
  ipc::Submit request = greedy_request(id, prompt, max_tokens);
  request.ignore_eos = true;
  return request;
}

// Returns a counter of the engine; returns -1, and the test fails, if the engine has none with that name.
inline double figure(const EngineHarness& harness, const std::string& name) {
  const ipc::Stats stats = harness.engine.stats();
  for (const ipc::Counter& counter : stats.counters) {
    if (counter.name == name) return counter.value;
  }
  ADD_FAILURE() << "no figure " << name;
  return -1;
}

}  // namespace bulkhead::test
