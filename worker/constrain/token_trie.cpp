// Building the trie of token_trie.hpp.
#include "worker/constrain/token_trie.hpp"

#include <algorithm>
#include <numeric>

#include "worker/model/unicode.hpp"

namespace bulkhead::constrain {
namespace {

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
  plain_.assign(words(), 0);
  ids_.resize(pieces.size());
  std::iota(ids_.begin(), ids_.end(), 0U);
  std::erase_if(ids_, [&](std::uint32_t id) { return pieces[id].empty(); });
  // Bytes are compared without sign, as string_view does.
  std::sort(ids_.begin(), ids_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return pieces[a] != pieces[b] ? pieces[a] < pieces[b] : a < b;
  });
  nodes_.emplace_back();
  std::vector<std::uint32_t> path = {0};  // nodes of the text before, by length
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
      nodes_.emplace_back().byte = static_cast<unsigned char>(piece[i]);
    }
    Node& end = nodes_[path.back()];
    if (end.tokens == 0) end.first_token = place;
    ++end.tokens;
    before = piece;
    if (is_plain(piece)) plain_[ids_[place] / 32] |= 1U << (ids_[place] % 32);
  }
  close(0);
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

}  // namespace bulkhead::constrain
