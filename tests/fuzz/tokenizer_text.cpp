// Gives any bytes to each kind of tokenizer and many a pre-tokenizer. The tokens must give the same bytes back, because
// the vocabularies here have a token for each byte. WordPiece and the unigram model change the text, but the text of
// their tokens must give the same tokens again. The assembler must give valid UTF-8 for any input.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/model/gguf_builder.hpp"
#include "tests/unit/model/made_tokenizer.hpp"
#include "worker/model/pre_tokenizer.hpp"
#include "worker/model/tokenizer.hpp"
#include "worker/model/unicode.hpp"

namespace {

using namespace bulkhead::model;

std::unique_ptr<Tokenizer> from(const testing::GgufBuilder& builder) {
  const std::string bytes = builder.bytes();
  auto file = testing::open_bytes(bytes);
  if (!file.ok()) std::abort();
  auto tokenizer = Tokenizer::from_gguf(**file);
  if (!tokenizer.ok()) std::abort();
  return *std::move(tokenizer);
}

std::unique_ptr<Tokenizer> byte_level(const char* pre) {
  std::vector<std::string> tokens;
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    tokens.emplace_back();
    append_utf8(tokens.back(), printable ? byte : next++);
  }
  for (const char* merged : {"ab", "abc", "aa", "aaaa", "12"})
    tokens.emplace_back(merged);
  testing::GgufBuilder file;
  file.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pre);
  file.strings("tokenizer.ggml.tokens", tokens);
  file.strings("tokenizer.ggml.merges", {"a b", "ab c", "a a", "aa aa", "1 2"});
  return from(file);
}

std::unique_ptr<Tokenizer> wordpiece(bool uncased) {
  std::vector<std::string> tokens{"[PAD]", "[UNK]", "[CLS]", "[SEP]"};
  std::vector<std::int32_t> types(tokens.size(), 3);
  for (char32_t code = 0x21; code < 0x250; ++code) {
    std::string text;
    append_utf8(text, code);
    tokens.push_back(text);
    tokens.push_back("\u2581" + text);
  }
  for (const char* piece :
       {"ab", "\u2581ab", "abc", "\u1161", "\u2581\u1112", "\u2581\u4e2d", "\u0301"})
    tokens.emplace_back(piece);
  types.resize(tokens.size(), 1);
  testing::GgufBuilder file;
  file.text("tokenizer.ggml.model", "bert").strings("tokenizer.ggml.tokens", tokens);
  file.numbers("tokenizer.ggml.token_type", ValueType::kInt32, types);
  file.u32("tokenizer.ggml.bos_token_id", 2).u32("tokenizer.ggml.seperator_token_id", 3);
  file.u32("tokenizer.ggml.unknown_token_id", 1);
  file.boolean("tokenizer.ggml.normalizer.lowercase", uncased);
  return from(file);
}

void check_wordpiece(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<TokenId> words = tokenizer.encode(text, false, false);
  // An unknown word has no text.
  std::erase(words, TokenId{1});
  if (tokenizer.encode(tokenizer.decode(words), false, false) != words) std::abort();
}

std::unique_ptr<Tokenizer> unigram() {
  std::vector<std::string> tokens{"<s>", "<unk>", "</s>"};
  std::vector<std::int32_t> types{3, 2, 3};
  std::vector<float> scores(tokens.size());
  for (char32_t code = 0x21; code < 0x250; ++code) {
    tokens.emplace_back();
    append_utf8(tokens.back(), code);
    scores.push_back(-9 - static_cast<float>(code) / 1024);
  }
  for (const char* piece : {"\u2581", "ab", "\u2581ab", "bc", "abc", "aa", "aaa", "\u4e2d"}) {
    tokens.emplace_back(piece);
    scores.push_back(-2 - static_cast<float>(tokens.size()) / 1024);
  }
  types.resize(tokens.size(), 1);
  const std::string map = testing::charsmap(
      {{"A", "a"}, {"e\u0301", "\u00e9"}, {"\t", " "}, {"\u3000", " "}, {"\u200b", ""}});
  testing::GgufBuilder file;
  file.text("tokenizer.ggml.model", "t5").strings("tokenizer.ggml.tokens", tokens);
  file.numbers("tokenizer.ggml.token_type", ValueType::kInt32, types);
  file.numbers("tokenizer.ggml.scores", ValueType::kFloat32, scores);
  file.u32("tokenizer.ggml.eos_token_id", 2).u32("tokenizer.ggml.unknown_token_id", 1);
  file.boolean("tokenizer.ggml.add_space_prefix", true);
  file.boolean("tokenizer.ggml.remove_extra_whitespaces", true);
  file.numbers("tokenizer.ggml.precompiled_charsmap", ValueType::kUint8,
               std::vector<std::uint8_t>(map.begin(), map.end()));
  return from(file);
}

void check_unigram(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<TokenId> pieces = tokenizer.encode(text, false, false);
  // Without unknown characters, whose text is lost.
  if (std::ranges::find(pieces, TokenId{1}) != pieces.end()) return;
  if (tokenizer.encode(tokenizer.decode(pieces), false, false) != pieces) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto* const tokenizers = [] {
    auto* all = new std::vector<std::unique_ptr<Tokenizer>>;
    for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "default", "smollm"})
      all->push_back(byte_level(pre));
    all->push_back(from(testing::small_llama()));
    return all;
  }();
  std::string text(reinterpret_cast<const char*>(data), size);
  // SentencePiece writes spaces as U+2581, so that character itself comes back as a space.
  for (std::size_t at = 0; (at = text.find("\xE2\x96\x81", at)) != text.npos;)
    text.replace(at, 3, " ");
  for (const auto& tokenizer : *tokenizers) {
    if (tokenizer->decode(tokenizer->encode(text, false, false)) != text) std::abort();
  }
  static const auto uncased = wordpiece(true), cased = wordpiece(false), best = unigram();
  check_wordpiece(*uncased, text);
  check_wordpiece(*cased, text);
  check_unigram(*best, text);
  Utf8Assembler assembler;
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += 3)
    out += assembler.push(text.substr(at, 3));
  out += assembler.finish();
  if (!valid_utf8(out)) std::abort();
  return 0;
}
