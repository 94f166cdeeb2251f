// Cuts text into the words within which byte-level BPE merges, by a vocabulary's regular expressions. The most common
// expressions are written out by hand: without backtracking, so linear in any text, and for any bytes. The others are
// matched as they are (expressions.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/expressions.hpp"

namespace bulkhead::model {

enum class PreTokenizer : std::uint8_t {
  // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
  // ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kLlama3,
  // As kLlama3 with \p{N} for \p{N}{1,3}
  kQwen2,
  // each \p{N} by itself, then kGpt2 within what is left
  kDigitsThenGpt2,
  // [\p{P}$+<=>^~|]+, then kGpt2, then \p{N}+, then [0-9][0-9][0-9], each within the pieces of the
  // one before
  kDefault,
  // PreTokenizerInfo::expressions
  kExpressions,
};

struct PreTokenizerInfo {
  PreTokenizer rule = PreTokenizer::kDefault;
  bool whole_words_first = false;  // a word that is a token is that token, whatever the merges say
  bool adds_bos = false;           // unless the file says otherwise
  std::shared_ptr<const Expressions> expressions;  // for kExpressions
};
// Finds it by the name in tokenizer.ggml.pre (pre_tokenizer_names.cpp). kUnsupported, with the list of names, for an
// unknown one.
Result<PreTokenizerInfo> find_pre_tokenizer(std::string_view name);

// The words of a text, in order; together they are the text. Words of more than 512 MiB are cut.
class WordSplitter {
 public:
  // The info's expressions must outlive it.
  WordSplitter(const PreTokenizerInfo& info, std::string_view text);

  // Returns the next word; empty at the end.
  std::string_view next();

 private:
  std::string_view next_default();

  PreTokenizer rule_;
  std::string_view rest_;
  std::string_view outer_;  // kDefault, kDigitsThenGpt2: what is left of the first pass's piece
  std::string_view inner_;  // kDefault: what is left of kGpt2's word
  std::optional<ExpressionSplitter> expressions_;
};

}  // namespace bulkhead::model
