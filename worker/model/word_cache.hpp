// Words that were already tokenized in this text. Text repeats itself, and merging is expensive. The cache is
// direct-mapped and of fixed size. An entry points into the text and into the tokens produced so far, so a hit copies
// tokens and allocates nothing.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "worker/model/hash_maps.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model {

class WordCache {
 public:
  // For a short text the table is not worth its cost.
  explicit WordCache(std::size_t text_bytes) : slots_(text_bytes < kLeastText ? 0 : kSlots) {}

  // Appends the word's tokens to `out` and returns true, or returns false.
  bool append(std::string_view word, std::vector<TokenId>& out) {
    if (slots_.empty() || word.size() > kLongestWord) return false;
    const Slot& slot = slots_[index(word)];
    if (slot.size != word.size() || std::memcmp(slot.word, word.data(), word.size()) != 0)
      return false;
    for (std::uint32_t i = 0; i < slot.tokens; ++i) {
      const TokenId token = out[slot.first + i];  // a copy: appending may move `out`
      out.push_back(token);
    }
    return true;
  }

  // Remembers that the word's tokens are out[first..]. `word` must not move as long as the cache is used.
  void remember(std::string_view word, const std::vector<TokenId>& out, std::size_t first) {
    if (slots_.empty() || word.size() > kLongestWord) return;
    slots_[index(word)] = {word.data(), first, static_cast<std::uint32_t>(word.size()),
                           static_cast<std::uint32_t>(out.size() - first)};
  }

 private:
  static constexpr std::size_t kSlots = 1U << 16;
  static constexpr std::size_t kLeastText = 1U << 16;
  static constexpr std::size_t kLongestWord = 64;

  struct Slot {
    const char* word = nullptr;
    std::size_t first = 0;
    std::uint32_t size = 0;
    std::uint32_t tokens = 0;
  };

  std::size_t index(std::string_view word) const { return hash_text(word, seed_) % kSlots; }

  std::vector<Slot> slots_;
  std::uint64_t seed_ = process_hash_seed();
};

}  // namespace bulkhead::model
