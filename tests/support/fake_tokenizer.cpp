#include "tests/support/fake_tokenizer.hpp"

namespace bulkhead::test {

FakeTokenizer::FakeTokenizer(std::vector<std::string> words, std::uint32_t size, bool adds_bos)
    : size_(size), adds_bos_(adds_bos) {
  for (int byte = 0; byte < 256; ++byte)
    pieces_.emplace_back(1, static_cast<char>(byte));
  pieces_.resize(kFirstWord);
  for (std::string& word : words)
    pieces_.push_back(std::move(word));
  pieces_.resize(size);
}

std::vector<model::TokenId> FakeTokenizer::encode(std::span<const model::Segment> segments,
                                                  bool add_special) const {
  std::vector<model::TokenId> tokens;
  if (add_special && adds_bos_) tokens.push_back(kBos);
  for (const model::Segment& segment : segments) {
    std::string_view text = segment.text;
    while (!text.empty()) {
      if (segment.parse_special && text.starts_with("<eos>")) {
        tokens.push_back(kEos);
        text.remove_prefix(5);
        continue;
      }
      auto best = static_cast<model::TokenId>(static_cast<unsigned char>(text.front()));
      for (model::TokenId word = kFirstWord; word < size_; ++word) {
        if (pieces_[word].size() > pieces_[best].size() && text.starts_with(pieces_[word]))
          best = word;
      }
      tokens.push_back(best);
      text.remove_prefix(pieces_[best].size());
    }
  }
  return tokens;
}

std::string_view FakeTokenizer::piece(model::TokenId token) const {
  return pieces_.at(token);
}

std::string_view FakeTokenizer::vocabulary_text(model::TokenId token) const {
  if (token == kBos) return "<bos>";
  if (token == kEos) return "<eos>";
  return pieces_.at(token);
}

std::string FakeTokenizer::decode(std::span<const model::TokenId> tokens) const {
  std::string text;
  for (const model::TokenId token : tokens)
    text += piece(token);
  return text;
}

}  // namespace bulkhead::test
