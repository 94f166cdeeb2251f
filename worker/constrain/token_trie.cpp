// Builds the trie of token_trie.hpp.
#include "worker/constrain/token_trie.hpp"

#include <algorithm>
#include <numeric>

#include "worker/model/unicode.hpp"

namespace bulkhead::constrain {
namespace {

// So few tokens have more characters that they are looked at one by one.
constexpr std::uint32_t kMostUsualCharacters = 24;

std::uint32_t characters_of(std::string_view piece) {
  return static_cast<std::uint32_t>(std::ranges::count_if(
      piece, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

bool is_plain(std::string_view piece) {
  for (const char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == '"' || byte == '\\') return false;
  }
  return model::valid_utf8(piece);
}

}  // namespace

TokenTrie::TokenTrie(const std::vector<std::string_view>& pieces)
    : vocabulary_(static_cast<std::uint32_t>(pieces.size())) {
  ids_.resize(pieces.size());
  std::iota(ids_.begin(), ids_.end(), 0U);
  std::erase_if(ids_, [&](std::uint32_t id) { return pieces[id].empty(); });
  // Bytes are compared as unsigned values, as string_view does.
  std::sort(ids_.begin(), ids_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return pieces[a] != pieces[b] ? pieces[a] < pieces[b] : a < b;
  });
  add_nodes(pieces);
  find_plain(pieces);
  find_special();
  find_below();
}

void TokenTrie::add_nodes(const std::vector<std::string_view>& pieces) {
  nodes_.emplace_back();
  std::vector<std::uint32_t> path = {0};  // the nodes of the piece before, one for each length
  std::string_view before;
  const auto close = [&](std::size_t length) {
    while (path.size() > length) {
      const std::uint32_t node = path.back();
      nodes_[node].subtree = static_cast<std::uint32_t>(nodes_.size()) - node;
      path.pop_back();
    }
  };
  for (std::uint32_t place = 0; place < ids_.size(); ++place) {
    const std::string_view piece = pieces[ids_[place]];
    longest_ = std::max<std::uint32_t>(longest_, static_cast<std::uint32_t>(piece.size()));
    const auto [mine, theirs] =
        std::mismatch(piece.begin(), piece.end(), before.begin(), before.end());
    const auto shared = static_cast<std::size_t>(mine - piece.begin());
    close(shared + 1);
    for (std::size_t i = shared; i < piece.size(); ++i) {
      path.push_back(static_cast<std::uint32_t>(nodes_.size()));
      Node& made = nodes_.emplace_back();
      made.byte = static_cast<unsigned char>(piece[i]);
      made.first_token = place;
    }
    ++nodes_[path.back()].tokens;
    before = piece;
  }
  close(0);
}

void TokenTrie::find_plain(const std::vector<std::string_view>& pieces) {
  plain_.assign(words(), 0);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> by_length;
  characters_.assign(pieces.size(), 0);
  for (const std::uint32_t id : ids_) {
    characters_[id] = static_cast<std::uint16_t>(characters_of(pieces[id]));
    if (!is_plain(pieces[id])) continue;
    plain_[id / 32] |= 1U << (id % 32);
    by_length.emplace_back(characters_[id], id);
  }
  std::sort(by_length.begin(), by_length.end());
  TokenMask up_to(words(), 0);
  auto next = by_length.begin();
  for (std::uint32_t most = 0; most <= kMostUsualCharacters; ++most) {
    for (; next != by_length.end() && next->first <= most; ++next)
      up_to[next->second / 32] |= 1U << (next->second % 32);
    plain_up_to_.push_back(up_to);
  }
  plain_longer_.assign(next, by_length.end());
}

void TokenTrie::find_special() {
  special_.assign(nodes_.size(), false);
  for (std::uint32_t node = static_cast<std::uint32_t>(nodes_.size()); node-- > 0;) {
    for (std::uint32_t i = 0; i < nodes_[node].tokens; ++i) {
      const std::uint32_t id = ids_[nodes_[node].first_token + i];
      if ((plain_[id / 32] >> (id % 32) & 1) == 0) special_[node] = true;
    }
    for (std::uint32_t child = node + 1; child < node + nodes_[node].subtree && !special_[node];
         child += nodes_[child].subtree) {
      special_[node] = special_[child];
    }
  }
}

CharClasses TokenTrie::below_part(std::uint32_t node, std::uint32_t left, unsigned char low,
                                  unsigned char high) const {
  if (left == 0) return below_[node];
  constexpr CharClasses kBroken = CharClasses{1} << kNoCharacter;
  CharClasses out = nodes_[node].tokens > 0 ? kBroken : 0;
  for (std::uint32_t child = node + 1; child < node + nodes_[node].subtree;
       child += nodes_[child].subtree) {
    const unsigned char byte = nodes_[child].byte;
    out |= byte < low || byte > high ? kBroken : below_part(child, left - 1, 0x80, 0xBF);
  }
  return out;
}

void TokenTrie::find_below() {
  below_.assign(nodes_.size(), 0);
  height_.assign(nodes_.size(), 0);
  for (std::uint32_t node = static_cast<std::uint32_t>(nodes_.size()); node-- > 0;) {
    for (std::uint32_t child = node + 1; child < node + nodes_[node].subtree;
         child += nodes_[child].subtree) {
      const unsigned char byte = nodes_[child].byte;
      const std::uint32_t left = byte < 0xC0 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
      // These first bytes also begin characters that are too long, surrogates, or beyond the last code point.
      const unsigned char low = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
      const unsigned char high = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
      height_[node] = static_cast<std::uint8_t>(
          std::max<std::uint32_t>(height_[node], std::min(kHigh, height_[child] + 1U)));
      below_[node] |= CharClasses{1} << class_of(byte) | below_part(child, left, low, high);
    }
  }
}

std::span<const std::uint32_t> TokenTrie::tokens_of(std::uint32_t node) const {
  const std::uint32_t behind = node + nodes_[node].subtree;
  const std::size_t begin = nodes_[node].first_token;
  const std::size_t end = behind < nodes_.size() ? nodes_[behind].first_token : ids_.size();
  return std::span(ids_).subspan(begin, end - begin);
}

void TokenTrie::add_plain(std::uint32_t most, TokenMask& mask) const {
  const std::uint32_t longest =
      plain_longer_.empty() ? kMostUsualCharacters : plain_longer_.back().first;
  const bool all = most >= longest;
  const TokenMask& known = all ? plain_ : plain_up_to_[std::min(most, kMostUsualCharacters)];
  for (std::size_t word = 0; word < mask.size(); ++word)
    mask[word] |= known[word];
  if (all) return;
  for (const auto& [characters, id] : plain_longer_) {
    if (characters > most) return;
    mask[id / 32] |= 1U << (id % 32);
  }
}

}  // namespace bulkhead::constrain
