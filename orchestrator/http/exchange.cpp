#include "orchestrator/http/exchange.hpp"

#include <array>

#include <spdlog/fmt/fmt.h>

#include "config/base/random.hpp"

namespace bulkhead::orchestrator {

const std::string& Exchange::request_id() {
  if (request_id_.empty()) {
    std::array<char, 20> id{};
    fmt::format_to(id.data(), "req_{:016x}", random_u64());
    request_id_.assign(id.data(), id.size());  // no memory: there is no id, and no half of one
  }
  return request_id_;
}

}  // namespace bulkhead::orchestrator
