// Byte-level BPE. Text is cut into words. Each word's bytes merge by the rank of their pair in the merge list, the
// lowest rank first. Vocabulary and merges write each byte as a printable character (GPT-2's table).
//
// Sennrich, Haddow, Birch: "Neural Machine Translation of Rare Words with Subword Units", 2016.

#include "config/base/clean_text.hpp"
#include "config/base/log.hpp"
#include "worker/model/hash_maps.hpp"
#include "worker/model/merge_list.hpp"
#include "worker/model/pre_tokenizer.hpp"
#include "worker/model/tokenizer_check.hpp"
#include "worker/model/unicode.hpp"
#include "worker/model/vocabulary.hpp"
#include "worker/model/word_cache.hpp"

namespace bulkhead::model {
namespace {

// GPT-2's table: printable Latin-1 characters stand for themselves, and U+0100 and the following ones stand for the
// other 68 bytes, in order.
class ByteTable {
 public:
  ByteTable() {
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      to_code_[byte] = printable ? byte : next++;
      to_byte_[to_code_[byte]] = static_cast<int>(byte);
    }
  }
  char32_t code(unsigned byte) const { return to_code_[byte]; }
  // -1 when the character stands for no byte
  int byte(char32_t code) const { return code < kCodes ? to_byte_[code] : -1; }

 private:
  static constexpr std::size_t kCodes = 0x100 + 68;
  std::array<char32_t, 256> to_code_{};
  std::array<int, kCodes> to_byte_ = [] {
    std::array<int, kCodes> none{};
    none.fill(-1);
    return none;
  }();
};

class BpeTokenizer final : public VocabularyTokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> make(const GgufFile& file) {
    const auto rule = pre_tokenizer_of(file);
    if (!rule.ok()) return rule.error();
    if (!file.has("tokenizer.ggml.pre"))
      spdlog::warn(
          "{}: metadata key tokenizer.ggml.pre is missing; the pre-tokenizer \"default\" is "
          "used, which may not be the model's own",
          file.name());
    BULKHEAD_TRY(const auto name, file.get_string("tokenizer.ggml.pre"));
    if (name && !find_pre_tokenizer(*name).ok())
      spdlog::info("{}: the pre-tokenizer \"{}\" is taken from tokenizer.huggingface.json",
                   file.name(), cleaned(name->substr(0, 64)));
    VocabularyDefaults defaults;
    BULKHEAD_TRY(const auto bos, named_token(file, defaults.bos_key));
    defaults.add_bos = rule->adds_bos && bos.has_value();
    BULKHEAD_TRY(auto vocabulary, read_vocabulary(file, defaults));
    auto tokenizer = std::unique_ptr<BpeTokenizer>(new BpeTokenizer(std::move(vocabulary), *rule));
    tokenizer->index();
    BULKHEAD_RETURN_IF_ERROR(tokenizer->merges_.read(file, "gpt2"));
    return std::unique_ptr<Tokenizer>(std::move(tokenizer));
  }

 private:
  BpeTokenizer(Vocabulary vocabulary, PreTokenizerInfo rule)
      : VocabularyTokenizer(std::move(vocabulary)), rule_(rule) {}

  void index() {
    const ByteTable bytes;
    merges_.reserve(vocabulary_.size() + 256);
    if (rule_.whole_words_first) by_bytes_.reserve(vocabulary_.size());
    pieces_.resize(vocabulary_.size());
    for (TokenId token = 0; token < vocabulary_.size(); ++token) {
      const std::string_view text = vocabulary_.texts[token];
      if (vocabulary_.types[token] == TokenType::kControl ||
          vocabulary_.types[token] == TokenType::kUnknown)
        continue;
      const bool raw = vocabulary_.types[token] == TokenType::kUserDefined;
      const auto decoded = raw ? std::nullopt : to_bytes(bytes, text);
      pieces_[token] = decoded ? vocabulary_.arena.add(*decoded) : text;
      if (!vocabulary_.from_text(token)) continue;
      merges_.add_token(text, token);
      if (decoded && rule_.whole_words_first) by_bytes_.insert(pieces_[token], token);
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      std::string text;
      append_utf8(text, bytes.code(byte));
      byte_symbols_[byte] = merges_.symbol(text);
    }
  }

  static std::optional<std::string> to_bytes(const ByteTable& bytes, std::string_view text) {
    std::string out;
    while (!text.empty()) {
      const DecodedChar next = decode_char(text);
      const int byte = next.valid ? bytes.byte(next.code) : -1;
      if (byte < 0) return std::nullopt;
      out += static_cast<char>(byte);
      text.remove_prefix(next.bytes);
    }
    return out;
  }

  void encode_text(std::string_view text, bool /*first*/,
                   std::vector<TokenId>& out) const override {
    WordCache cache(text.size());
    MergeScratch scratch;
    WordSplitter words(rule_, text);
    for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
      if (cache.append(word, out)) continue;
      const std::size_t before = out.size();
      encode_word(word, scratch, out);
      cache.remember(word, out, before);
    }
  }

  void encode_word(std::string_view word, MergeScratch& scratch, std::vector<TokenId>& out) const {
    if (rule_.whole_words_first) {
      if (const auto whole = by_bytes_.find(word)) {
        out.push_back(*whole);
        return;
      }
    }
    MergeChain& chain = scratch.chain;
    chain.clear(word.size());
    for (const char c : word)
      chain.add(byte_symbols_[static_cast<unsigned char>(c)], 1);
    merges_.merge(scratch);
    for (std::uint32_t at = 0, next = 0; at < chain.size(); at = next) {
      next = chain.next(at);
      if (const std::uint32_t symbol = chain.id(at); symbol < vocabulary_.size()) {
        out.push_back(symbol);
        continue;
      }
      // The merges made a text that is not a token (the vocabulary was cut short), so it is written byte by byte.
      for (const char c : word.substr(at, next - at)) {
        const std::uint32_t byte = byte_symbols_[static_cast<unsigned char>(c)];
        if (byte < vocabulary_.size())
          out.push_back(byte);
        else if (vocabulary_.unknown)
          out.push_back(*vocabulary_.unknown);
      }
    }
  }

  PreTokenizerInfo rule_;
  MergeList merges_{vocabulary_};
  TextMap by_bytes_;  // by the bytes that tokens stand for; filled only for whole_words_first
  std::array<std::uint32_t, 256> byte_symbols_{};
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(const GgufFile& file) {
  return BpeTokenizer::make(file);
}

}  // namespace bulkhead::model
