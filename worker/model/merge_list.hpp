// The merges that a model file lists for byte-level BPE and for Gemma 4's BPE, best first, and the symbols that they
// merge. A symbol is a token, or a text that occurs only in merges; such a text has a number beyond the vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "config/base/error.hpp"
#include "worker/model/hash_maps.hpp"
#include "worker/model/merge.hpp"
#include "worker/model/vocabulary.hpp"

namespace bulkhead::model {

// Several threads may call const functions at once.
class MergeList {
 public:
  // The vocabulary must outlive the list. Its arena stores the texts that occur only in merges.
  explicit MergeList(Vocabulary& vocabulary)
      : vocabulary_(vocabulary), symbols_(vocabulary.size()) {}
  MergeList(const MergeList&) = delete;
  MergeList& operator=(const MergeList&) = delete;

  void reserve(std::size_t texts) { by_text_.reserve(texts); }
  // Adds a token that text may become; call it before read(). `text` is as the file writes it, in the arena.
  void add_token(std::string_view text, TokenId token) { by_text_.insert(text, token); }
  // Returns the symbol of a text; a text that is unknown gets a new symbol.
  std::uint32_t symbol(std::string_view text);
  std::optional<std::uint32_t> find(std::string_view text) const { return by_text_.find(text); }

  // Reads tokenizer.ggml.merges. `kind` is the file's name for its tokenizer, for errors. kCorrupt if the list is
  // missing, too long, or has an entry that is not two parts separated by a space.
  Status read(const GgufFile& file, std::string_view kind);
  // Merges the symbols of the chain until no merge fits. Symbols may be kNoSymbol, which never merges.
  void merge(MergeScratch& scratch) const;

 private:
  Vocabulary& vocabulary_;
  TextMap by_text_;
  PairMap merges_;
  std::uint32_t ranks_ = 0;
  std::uint32_t symbols_;
};

}  // namespace bulkhead::model
