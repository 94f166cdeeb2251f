// The pieces of a vocabulary as a trie of their bytes: a single walk along a text finds every piece that it starts
// with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "worker/model/hash_maps.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model {

class PieceTrie {
 public:
  // The most bytes that the pieces may have together, not counting those that a piece has in common with the piece
  // before it in the alphabet. Vocabularies of half a million pieces have a few million.
  static constexpr std::size_t kMostBytes = 1U << 24;

  struct Piece {
    std::string_view text;
    TokenId token;
  };

  // Returns false if the pieces are too many. Their texts must differ; they are not needed afterwards.
  bool build(std::vector<Piece> pieces) {
    std::ranges::sort(pieces, {}, &Piece::text);
    std::size_t edges = 0;
    std::string_view before;
    for (const Piece& piece : pieces) {
      edges += piece.text.size() - common_bytes(before, piece.text);
      before = piece.text;
    }
    if (edges > kMostBytes) return false;
    edges_ = PairMap(edges);
    // The nodes along the piece before. A piece comes after those that it starts with, so an edge's token is known
    // when the edge is made.
    std::vector<std::uint32_t> path{0};
    std::uint32_t nodes = 1;
    before = {};
    for (const Piece& piece : pieces) {
      path.resize(common_bytes(before, piece.text) + 1);
      while (path.size() <= piece.text.size()) {
        const bool whole = path.size() == piece.text.size();
        edges_.insert(path.back(), byte_at(piece.text, path.size() - 1),
                      {whole ? piece.token : kNoToken, nodes});
        path.push_back(nodes++);
      }
      before = piece.text;
    }
    return true;
  }

  // Calls take(token, bytes) for each piece that the text starts with, the shortest first.
  template <typename Take>
  void each_prefix(std::string_view text, Take&& take) const {
    std::uint32_t node = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
      const auto edge = edges_.find(node, byte_at(text, at));
      if (!edge) return;
      if (edge->rank != kNoToken) take(TokenId{edge->rank}, at + 1);
      node = edge->product;
    }
  }

 private:
  static constexpr TokenId kNoToken = ~TokenId{0};

  static std::uint32_t byte_at(std::string_view text, std::size_t at) {
    return static_cast<unsigned char>(text[at]);
  }
  static std::size_t common_bytes(std::string_view a, std::string_view b) {
    return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  }

  PairMap
      edges_;  // (node, byte) -> (token that ends here or kNoToken, next node); the first node is 0
};

}  // namespace bulkhead::model
