// The chunked transfer coding of a request's body, read as strictly as its head (request_head.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "config/base/error.hpp"

namespace bulkhead::orchestrator {

class ChunkedBody {
 public:
  // Takes what it can of the bytes, appends a chunk's to `body`, and says how many it has taken: what
  // it leaves is the beginning of a line that is not complete, or, when done(), the next request.
  // kInvalidArgument with the rule that is broken; kResourceExhausted when the body would have more
  // than `most_bytes`.
  Result<std::size_t> take(std::string_view bytes, std::string& body, std::size_t most_bytes);
  bool done() const { return expects_ == Expects::kNothing; }

 private:
  enum class Expects { kSize, kData, kDataEnd, kTrailer, kNothing };
  Status take_size(std::string_view line);

  Expects expects_ = Expects::kSize;
  std::uint64_t left_ = 0;      // of the chunk
  std::size_t line_bytes_ = 0;  // of all extensions and trailers: nobody needs many
};

}  // namespace bulkhead::orchestrator
