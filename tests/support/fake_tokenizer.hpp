// A tokenizer without a model file: tokens 0 to 255 are the bytes, followed by BOS, EOS, and the given words, longest
// match first. The text "<eos>" is the special token where special text is allowed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker/model/tokenizer.hpp"

namespace bulkhead::test {

class FakeTokenizer : public model::Tokenizer {
 public:
  static constexpr model::TokenId kBos = 256, kEos = 257, kFirstWord = 258;

  explicit FakeTokenizer(std::vector<std::string> words = {}, std::uint32_t size = 300,
                         bool adds_bos = false);

  using model::Tokenizer::encode;
  std::vector<model::TokenId> encode(std::span<const model::Segment> segments,
                                     bool add_special) const override;
  std::string_view piece(model::TokenId token) const override;
  std::string_view vocabulary_text(model::TokenId token) const override;
  std::string decode(std::span<const model::TokenId> tokens) const override;
  std::uint32_t size() const override { return size_; }
  bool ends_generation(model::TokenId token) const override { return token == kEos; }
  bool is_control(model::TokenId token) const override { return token == kBos || token == kEos; }
  std::span<const model::TokenId> forbidden() const override { return never; }
  bool adds_bos() const override { return adds_bos_; }
  std::optional<model::TokenId> bos() const override { return kBos; }
  std::optional<model::TokenId> eos() const override { return kEos; }

  std::vector<model::TokenId> never;

 private:
  std::vector<std::string> pieces_;  // by token
  std::uint32_t size_;
  bool adds_bos_;
};

}  // namespace bulkhead::test
