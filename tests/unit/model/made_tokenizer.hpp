// Tokenizers of files that tests write.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/sample.hpp"
#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model::testing {

inline Result<std::unique_ptr<Tokenizer>> tokenizer_of(const GgufBuilder& file) {
  const std::string bytes = file.bytes();
  BULKHEAD_TRY(const auto opened, open_bytes(bytes));
  return Tokenizer::from_gguf(*opened);
}

inline std::string tokenizer_error(const GgufBuilder& file) {
  const auto tokenizer = tokenizer_of(file);
  return tokenizer.ok() ? "no error" : tokenizer.error().message();
}

inline constexpr std::size_t kMegabyte = test::rounds(1 << 20);  // less under the sanitizers
// Returns a megabyte, and what is missing to the end of the last piece.
inline std::string megabyte_of(std::string_view piece) {
  std::string text;
  while (text.size() < kMegabyte)
    text += piece;
  return text;
}

// The replacements of sequences of characters.
using CharRules = std::map<std::string, std::string>;

// Writes the rules as SentencePiece does: a double array, and the replacements. Here each node that has others after
// it takes a block of 256 units.
inline std::string charsmap(const CharRules& rules) {
  std::map<std::string, std::uint32_t> places{{"", 0}};  // of all nodes, by what they have read
  std::string replacements;
  for (const auto& [sequence, replacement] : rules) {
    for (std::size_t bytes = 1; bytes <= sequence.size(); ++bytes)
      places[sequence.substr(0, bytes)] = 0;
  }
  std::vector<std::uint32_t> units(256);
  for (const auto& [node, place] : places) {  // a node comes before those after it
    const auto block = static_cast<std::uint32_t>(units.size());
    units.resize(block + 256);
    units[place] |= (place ^ block) << 10;
    for (auto& [other, its_place] : places) {
      if (other.size() != node.size() + 1 || !other.starts_with(node)) continue;
      const auto byte = static_cast<unsigned char>(other.back());
      its_place = block ^ byte;
      units[its_place] = byte;
    }
    if (const auto rule = rules.find(node); rule != rules.end()) {
      units[place] |= 1U << 8;
      units[block] = 1U << 31 | static_cast<std::uint32_t>(replacements.size());
      replacements += rule->second + '\0';
    }
  }
  Bytes bytes;
  bytes.number(static_cast<std::uint32_t>(units.size() * 4));
  for (const std::uint32_t unit : units)
    bytes.number(unit);
  return bytes.raw(replacements).data();
}

}  // namespace bulkhead::model::testing
