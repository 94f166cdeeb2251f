#include "worker/engine/draft_source.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "config/base/splitmix.hpp"

namespace bulkhead::engine {
namespace {

constexpr std::size_t kMostPlaces = 1U << 16;

std::size_t places_for(std::size_t tokens) {
  return std::bit_ceil(std::clamp<std::size_t>(2 * tokens, 256, kMostPlaces));
}

}  // namespace

NgramSource::NgramSource(std::size_t most_tokens) : places_(places_for(most_tokens)) {}

std::uint32_t& NgramSource::place_after(std::span<const TokenId> key) {
  std::uint64_t hash = 0;
  for (const TokenId token : key)
    hash = splitmix(hash ^ token) + token;
  return places_[hash & (places_.size() - 1)];
}

void NgramSource::advance(std::span<const TokenId> tokens) {
  for (; seen_ < tokens.size(); ++seen_) {
    follows_ = follows_ != 0 && tokens[follows_] == tokens[seen_] ? follows_ + 1 : 0;
    if (seen_ + 1 < kTokens) continue;
    const auto key = tokens.subspan(seen_ + 1 - kTokens, kTokens);
    std::uint32_t& place = place_after(key);
    if (follows_ == 0 && place != 0 &&
        std::ranges::equal(tokens.subspan(place - kTokens, kTokens), key))
      follows_ = place;
    place = seen_ + 1;
  }
}

std::size_t NgramSource::guess(std::span<const TokenId> tokens, std::span<TokenId> guesses) const {
  if (follows_ == 0) return 0;
  for (std::size_t i = 0; i < guesses.size(); ++i) {
    // After the end of the known tokens, its own guesses follow, so a short period repeats for ever.
    const std::size_t from = follows_ + i;
    guesses[i] = from < tokens.size() ? tokens[from] : guesses[from - tokens.size()];
  }
  return guesses.size();
}

RecordedSource::RecordedSource(std::vector<TokenId> recorded, double accuracy,
                               std::uint32_t vocabulary)
    : guesses_(std::move(recorded)) {
  for (std::size_t i = 0; i < guesses_.size(); ++i) {
    const double draw = static_cast<double>(splitmix((i + 1) * kSplitmixStep) >> 11) * 0x1p-53;
    if (draw >= accuracy) guesses_[i] = (guesses_[i] + 1) % vocabulary;
  }
}

std::size_t RecordedSource::guess(std::span<const TokenId> tokens,
                                  std::span<TokenId> guesses) const {
  if (tokens.size() >= guesses_.size()) return 0;
  const std::size_t count = std::min(guesses.size(), guesses_.size() - tokens.size());
  std::copy_n(guesses_.begin() + static_cast<std::ptrdiff_t>(tokens.size()), count,
              guesses.begin());
  return count;
}

}  // namespace bulkhead::engine
