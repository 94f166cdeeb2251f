#include "worker/engine/forced_source.hpp"

#include <algorithm>
#include <string>
#include <string_view>

namespace bulkhead::engine {
namespace {

constexpr std::size_t kMostBytes = 96;  // about the text of one step's drafts

}  // namespace

std::size_t ForcedSource::guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const {
  if (known_for_ != tokens.size()) {
    known_ = spelled();
    known_for_ = tokens.size();
  }
  const std::size_t count = std::min(known_.size(), guesses.size());
  std::copy_n(known_.begin(), count, guesses.begin());
  return count;
}

std::vector<TokenId> ForcedSource::spelled() const {
  const std::string text = constraint_.forced_text(kMostBytes);
  if (text.empty()) return {};
  std::vector<TokenId> tokens = tokenizer_.encode(text, false, false);
  // The last token may extend into what follows, which is not forced. So it is not a guess.
  if (!tokens.empty()) tokens.pop_back();
  // Some tokenizers put a space before a text.
  std::string_view left = text;
  std::size_t right = 0;
  for (; right < tokens.size(); ++right) {
    const std::string_view piece = tokenizer_.piece(tokens[right]);
    if (piece.empty() || !left.starts_with(piece)) break;
    left.remove_prefix(piece.size());
  }
  tokens.resize(right);
  return tokens;
}

}  // namespace bulkhead::engine
