// The table by which SentencePiece normalises characters ("precompiled_charsmap" in model files): sequences of
// characters and what they become. It is made from NFKC and rules for white space when a vocabulary is trained.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::model {

class Charsmap {
 public:
  // Reads tokenizer.ggml.precompiled_charsmap. Without that key the table is empty. kCorrupt for one that is damaged.
  static Result<Charsmap> from_gguf(const GgufFile& file);

  struct Match {
    std::size_t bytes = 0;  // of the text; 0: the table has no sequence that the text starts with
    std::string_view replacement;
  };
  // Finds the longest sequence that the text starts with. The replacement belongs to this object.
  Match longest(std::string_view text) const;

 private:
  std::vector<std::uint32_t> units_;
  std::string replacements_;  // each ends with a zero byte
};

}  // namespace bulkhead::model
