// Many clients at a time, and a request that a daemon in trouble can still answer.
#pragma once

#include <memory>
#include <vector>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {

using Clients = std::vector<std::unique_ptr<HttpClient>>;

inline HttpReply small(const Serving& serving) {
  return serving.complete({{"prompt", "x"}, {"max_tokens", 1}});
}

}  // namespace bulkhead::test
