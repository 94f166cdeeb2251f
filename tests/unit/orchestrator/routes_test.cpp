// Rules that each endpoint keeps.
#include "orchestrator/http/routes.hpp"

#include <cstddef>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

// Returns the size of the largest body of this path that the event loop parses itself.
std::size_t most_at_once(std::string_view path) {
  const RouteMatch match = find_route(path, "POST");
  if (match.route == nullptr) return 0;
  return std::visit(
      [](const auto& way) -> std::size_t {
        if constexpr (requires { way.kMostAtOnce; }) return way.kMostAtOnce;
        return 0;
      },
      match.route->way);
}

TEST(Routes, AThreadParsesBodiesThatWouldHoldUpTheLoop) {
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/embeddings",
                           "/v1/rerank", "/tokenize", "/api/embed"})
    EXPECT_EQ(most_at_once(path), BodyReader::kLarge) << path;
  // These are translated, which takes several times as long.
  for (const char* path :
       {"/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/responses/input_tokens",
        "/completion", "/infill", "/api/chat", "/api/generate"})
    EXPECT_EQ(most_at_once(path), BodyReader::kLargeToTranslate) << path;
}

}  // namespace
}  // namespace bulkhead::orchestrator
