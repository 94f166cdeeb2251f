// SentencePiece's BPE: characters merge by the score of the token that they make, highest first; characters that no
// token covers become byte tokens. Spaces are written as U+2581.
//
// Kudo, Richardson: "SentencePiece: A simple and language independent subword tokenizer and detokenizer", 2018.
#include <algorithm>
#include <bit>

#include "worker/model/hash_maps.hpp"
#include "worker/model/merge.hpp"
#include "worker/model/unicode.hpp"
#include "worker/model/vocabulary.hpp"
#include "worker/model/word_cache.hpp"

namespace bulkhead::model {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

unsigned byte_of(char c) {
  return static_cast<unsigned char>(c);
}

// Bytes of the character at `at`; a byte that starts none stands alone, so that it can't swallow a space after it.
std::size_t char_bytes(std::string_view text, std::size_t at) {
  return decode_char(text.substr(at)).bytes;
}

// "<0x0A>" -> 10
std::optional<unsigned> byte_token_value(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : text.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c >= 'A' && c <= 'F')) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(digit ? c - '0' : c - 'A' + 10);
  }
  return value;
}

class SpmTokenizer final : public VocabularyTokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> make(const GgufFile& file) {
    // What SentencePiece models have when the file says nothing.
    VocabularyDefaults defaults;
    defaults.unknown = 0;
    defaults.bos = 1;
    defaults.eos = 2;
    defaults.add_bos = true;
    BULKHEAD_TRY(auto vocabulary, read_vocabulary(file, defaults));
    if (vocabulary.scores.empty())
      return Error(ErrorCode::kCorrupt, file.name() +
                                            ": metadata key tokenizer.ggml.scores is "
                                            "missing, which a \"llama\" tokenizer needs; "
                                            "convert the model again");
    auto tokenizer = std::unique_ptr<SpmTokenizer>(new SpmTokenizer(std::move(vocabulary)));
    BULKHEAD_TRY(const auto prefix, file.get_bool("tokenizer.ggml.add_space_prefix"));
    tokenizer->adds_space_ = prefix.value_or(true);
    tokenizer->index();
    return std::unique_ptr<Tokenizer>(std::move(tokenizer));
  }

 private:
  using VocabularyTokenizer::VocabularyTokenizer;

  void index() {
    by_text_.reserve(vocabulary_.size());
    priorities_.resize(vocabulary_.size());
    pieces_.resize(vocabulary_.size());
    for (TokenId token = 0; token < vocabulary_.size(); ++token) {
      const std::string_view text = vocabulary_.texts[token];
      priorities_[token] = priority(vocabulary_.scores[token]);
      if (const auto value = byte_token_value(text); value && !byte_tokens_[*value]) {
        byte_tokens_[*value] = token;
        // Typed otherwise in some files; generated, it must still be its byte.
        vocabulary_.types[token] = TokenType::kByte;
      }
      if (vocabulary_.from_text(token)) {
        by_text_.insert(text, token);
        longest_ = std::max(longest_, text.size());
        note_pairs(text);
      }
      pieces_[token] = make_piece(token);
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      const char one = static_cast<char>(byte);
      if (!byte_tokens_[byte]) byte_tokens_[byte] = by_text_.find({&one, 1});
      if (!byte_tokens_[byte]) byte_tokens_[byte] = vocabulary_.unknown;
    }
  }

  // Highest score first: floats in order as integers, turned around.
  static std::uint32_t priority(float score) {
    const auto bits = std::bit_cast<std::uint32_t>(score == 0.0F ? 0.0F : score);
    const std::uint32_t ascending = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
    return ~ascending;
  }

  std::string_view make_piece(TokenId token) {
    const std::string_view text = vocabulary_.texts[token];
    switch (vocabulary_.types[token]) {
      case TokenType::kControl:
      case TokenType::kUnknown:
        return {};
      case TokenType::kByte: {
        const auto value = byte_token_value(text);
        if (!value) return {};
        const char byte = static_cast<char>(*value);
        return vocabulary_.arena.add({&byte, 1});
      }
      case TokenType::kUserDefined:
        return text;
      default:
        break;
    }
    std::string plain;
    for (std::size_t at = 0; at < text.size();) {
      const bool space = text.substr(at).starts_with(kSpace);
      plain += space ? ' ' : text[at];
      at += space ? kSpace.size() : 1;
    }
    return vocabulary_.arena.add(plain);
  }

  // Which bytes stand next to one another inside tokens, at borders of characters. Where two characters of a text meet and no
  // token has such a pair, no merge can ever cross, so the text may be cut there: with the usual vocabularies before each
  // space. That keeps words short, and the same word comes again.
  void note_pairs(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t next = at + char_bytes(text, at);
      if (next < text.size()) {
        const unsigned last = byte_of(text[next - 1]);
        if (text.substr(next).starts_with(kSpace))
          meets_space_[last] = true;
        else
          meets_[last << 8 | byte_of(text[next])] = true;
      }
      at = next;
    }
  }
  bool may_merge(std::string_view text, std::size_t border) const {
    const unsigned last = byte_of(text[border - 1]);
    return text.substr(border).starts_with(kSpace) ? meets_space_[last]
                                                   : meets_[last << 8 | byte_of(text[border])];
  }

  void encode_text(std::string_view text, bool first, std::vector<TokenId>& out) const override {
    std::string escaped;
    escaped.reserve(text.size() + text.size() / 2 + kSpace.size());
    if (first && adds_space_) escaped += kSpace;
    for (const char c : text) {
      if (c == ' ')
        escaped += kSpace;
      else
        escaped += c;
    }
    constexpr std::size_t kLongestWord = 1U << 30;  // positions within a word are 32 bits
    WordCache cache(escaped.size());
    MergeScratch scratch;
    const std::string_view all = escaped;
    std::size_t start = 0;
    for (std::size_t at = 0; at < all.size();) {
      at += char_bytes(all, at);
      if (at < all.size() && at - start < kLongestWord && may_merge(all, at)) continue;
      const std::string_view word = all.substr(start, at - start);
      start = at;
      if (cache.append(word, out)) continue;
      const std::size_t before = out.size();
      encode_word(word, scratch, out);
      cache.remember(word, out, before);
    }
  }

  void encode_word(std::string_view word, MergeScratch& scratch, std::vector<TokenId>& out) const {
    scratch.clear();
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t length = char_bytes(word, at);
      scratch.add(by_text_.find(word.substr(at, length)).value_or(kNoSymbol),
                  static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(length));
      at += length;
    }
    merge_all(scratch, [&](const MergeSymbol& a, const MergeSymbol& b) -> std::optional<MergeRule> {
      const std::size_t length = std::size_t{a.length} + b.length;
      if (length > longest_) return std::nullopt;
      const auto token = by_text_.find(word.substr(a.start, length));
      if (!token) return std::nullopt;
      return MergeRule{priorities_[*token], *token};
    });
    for (std::uint32_t i = 0; i != kNoSymbol; i = scratch.symbols[i].next) {
      const MergeSymbol& symbol = scratch.symbols[i];
      if (symbol.id != kNoSymbol) {
        out.push_back(symbol.id);
        continue;
      }
      const std::string_view text = word.substr(symbol.start, symbol.length);
      // A vocabulary without U+2581: its bytes would come back as that character, not as a space.
      for (const char c : text == kSpace ? std::string_view(" ") : text)
        if (const auto& token = byte_tokens_[byte_of(c)]) out.push_back(*token);
    }
  }

  TextMap by_text_;
  std::vector<std::uint32_t> priorities_;
  std::size_t longest_ = 0;  // bytes of the longest token that text becomes
  std::array<std::optional<TokenId>, 256> byte_tokens_{};
  std::array<bool, 256> meets_space_{};
  std::vector<bool> meets_ = std::vector<bool>(1U << 16);
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_spm_tokenizer(const GgufFile& file) {
  return SpmTokenizer::make(file);
}

}  // namespace bulkhead::model
