// Reads the chunked transfer coding of a request's body, as strictly as request_head.hpp reads the head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "config/base/error.hpp"

namespace bulkhead::orchestrator {

class ChunkedBody {
 public:
  // Takes as many of the bytes as it can, appends the chunks' content to `body`, and returns how many bytes it has
  // taken. It leaves the beginning of a line that is not complete, or, when done(), the next request.
  // kInvalidArgument names the rule that is broken; kResourceExhausted: the body would have more than `most_bytes`.
  Result<std::size_t> take(std::string_view bytes, std::string& body, std::size_t most_bytes);
  bool done() const { return expects_ == Expects::kNothing; }

 private:
  enum class Expects { kSize, kData, kDataEnd, kTrailer, kNothing };
  Status take_size(std::string_view line);

  Expects expects_ = Expects::kSize;
  std::uint64_t left_ = 0;      // bytes left in the present chunk
  std::size_t line_bytes_ = 0;  // of all extensions and trailers; a limit bounds them
};

}  // namespace bulkhead::orchestrator
