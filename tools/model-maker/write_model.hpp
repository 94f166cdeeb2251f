// Puts a planned model on disk: header, metadata, tensor list, then the weights by several threads
// in bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "config/base/error.hpp"
#include "tools/model-maker/metadata.hpp"
#include "tools/model-maker/shape.hpp"

namespace bulkhead::model_maker {

struct WriteOptions {
  std::string path;
  std::uint64_t seed = 1;
  unsigned threads = 0;  // 0: one for each core
  std::function<void(std::uint64_t done, std::uint64_t total)>
      progress;  // called from one thread at a time
};

// The same seed gives the same bytes whatever the number of threads. The file appears under its
// name only when it is whole.
// Returns its size.
Result<std::uint64_t> write_model(const Shape& shape, const Plan& plan, const Metadata& metadata,
                                  const WriteOptions& options);

}  // namespace bulkhead::model_maker
