// Turns tokens' bytes into text that may be sent: only whole UTF-8 characters, and nothing that may still become part
// of a stop string. The state is a pure function of the bytes pushed, so a resumed request rebuilds it by pushing
// what was sent before.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "worker/model/tokenizer.hpp"

namespace bulkhead::engine {

class TextStream {
 public:
  TextStream() = default;
  // Empty stop strings are ignored.
  explicit TextStream(std::vector<std::string> stop);

  // Takes one token's bytes and appends to `released` what may be sent now. Returns true when a stop string is
  // complete: the text before its first byte has then been released and the rest dropped, and nothing more may be
  // pushed.
  bool push(std::string_view bytes, std::string& released);
  // For an end without a stop string: releases the text that was held back; an unfinished character becomes U+FFFD.
  // Returns true if that completed a stop string.
  bool finish(std::string& released);
  // Returns the stop string that ended the text; empty if none did. If several begin at the same byte, it is the one
  // that the request names first.
  const std::string& stopped_by() const { return stopped_by_; }

 private:
  bool take(std::string_view text, std::string& released);

  std::vector<std::string> stop_;
  model::Utf8Assembler assembler_;
  std::string stopped_by_;
  std::string held_;  // the longest end of the text with which a stop string begins
};

}  // namespace bulkhead::engine
