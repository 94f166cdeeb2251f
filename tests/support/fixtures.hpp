// Returns where the model and tokenizer fixtures are: BULKHEAD_FIXTURES, or ../shared/fixtures beside the source.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace bulkhead::test {

inline std::filesystem::path fixtures() {
  const char* set = std::getenv("BULKHEAD_FIXTURES");
  return set != nullptr ? std::filesystem::path(set)
                        : std::filesystem::path(BULKHEAD_SOURCE_DIR) / ".." / "shared" / "fixtures";
}

}  // namespace bulkhead::test
