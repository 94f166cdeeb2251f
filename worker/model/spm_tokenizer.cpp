// SentencePiece's BPE: characters merge by the score of the token that they make, the highest score first; characters
// that no token covers become byte tokens. Spaces are written as U+2581.
//
// Kudo, Richardson: "SentencePiece: A simple and language independent subword tokenizer and
// detokenizer", 2018.
#include <algorithm>
#include <functional>

#include "worker/model/hash_maps.hpp"
#include "worker/model/merge.hpp"
#include "worker/model/space_mark.hpp"
#include "worker/model/unicode.hpp"
#include "worker/model/vocabulary.hpp"
#include "worker/model/word_cache.hpp"

namespace bulkhead::model {
namespace {

unsigned byte_of(char c) {
  return static_cast<unsigned char>(c);
}

// Returns the bytes of the character at `at`. A byte that starts no character counts alone, so that it does not
// swallow a space after it.
std::size_t char_bytes(std::string_view text, std::size_t at) {
  return decode_char(text.substr(at)).bytes;
}

// Remembers which token two symbols become. Most pairs of a long text occur again, and a look-up of the joined text
// takes long. Direct-mapped, with a fixed size.
class PairCache {
 public:
  // For a short text the table is not worth its cost.
  explicit PairCache(std::size_t text_bytes) : slots_(text_bytes < kLeastText ? 0 : kSlots) {}

  // find() -> the token or kNoSymbol.
  template <typename Find>
  TokenId get(std::uint32_t left, std::uint32_t right, Find&& find) {
    if (slots_.empty()) return find();
    const std::uint64_t key = std::uint64_t{left} << 32 | right;
    Slot& slot = slots_[mix_hash(key ^ seed_, 0x9E3779B97F4A7C15ULL) % kSlots];
    if (slot.key != key) slot = {key, find()};
    return slot.token;
  }

 private:
  static constexpr std::size_t kSlots = 1U << 16;
  static constexpr std::size_t kLeastText = 1U << 16;
  struct Slot {
    std::uint64_t key = ~0ULL;  // this is no pair of symbols
    TokenId token = kNoSymbol;
  };
  std::vector<Slot> slots_;
  std::uint64_t seed_ = process_hash_seed();
};

class SpmTokenizer final : public VocabularyTokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> make(const GgufFile& file) {
    // The defaults of SentencePiece models, for files that say nothing.
    VocabularyDefaults defaults;
    defaults.unknown = 0;
    defaults.bos = 1;
    defaults.eos = 2;
    defaults.add_bos = true;
    defaults.specials_take_blanks = of_phi3(file);
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

  // Phi-3's tokenizers say for each special token that it takes the white space after it (rstrip), but a GGUF file
  // doesn't contain that. Some files give Phi-3 the architecture llama; the model's name shows these, as in
  // llama.cpp.
  static bool of_phi3(const GgufFile& file) {
    const std::string architecture = lower_text(file, "general.architecture");
    const std::string name = lower_text(file, "general.name");
    return architecture == "phi3" || architecture == "phimoe" || name.find("phi-3") != name.npos ||
           name.find("phi3") != name.npos;
  }

  void index() {
    by_text_.reserve(vocabulary_.size());
    rank_scores();
    pieces_.resize(vocabulary_.size());
    for (TokenId token = 0; token < vocabulary_.size(); ++token) {
      const std::string_view text = vocabulary_.texts[token];
      if (const auto value = byte_token_value(text); value && !byte_tokens_[*value]) {
        byte_tokens_[*value] = token;
        // Some files give it another type. When it is generated, it must still be its byte.
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

  // Ranks scores, the highest first; equal scores get the same rank.
  void rank_scores() {
    std::vector<float> scores = vocabulary_.scores;
    std::sort(scores.begin(), scores.end(), std::greater<>());
    scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
    distinct_ = static_cast<std::uint32_t>(scores.size());
    ranks_.reserve(vocabulary_.size());
    for (const float score : vocabulary_.scores) {
      const auto at = std::lower_bound(scores.begin(), scores.end(), score, std::greater<>());
      ranks_.push_back(static_cast<std::uint32_t>(at - scores.begin()));
    }
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
      case TokenType::kUndefined:
      case TokenType::kNormal:
      case TokenType::kUnused:
        break;
    }
    return vocabulary_.arena.add(without_marks(text));
  }

  // Notes which bytes are neighbours inside tokens, at borders of characters. If no token has the pair of bytes at
  // the border of two characters of a text, no merge can cross that border, so the text may be cut there: with the
  // usual vocabularies before each space. That keeps words short, and the same words occur again.
  void note_pairs(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t next = at + char_bytes(text, at);
      if (next < text.size()) {
        const unsigned last = byte_of(text[next - 1]);
        if (text.substr(next).starts_with(kSpaceMark))
          meets_space_[last] = true;
        else
          meets_[last << 8 | byte_of(text[next])] = true;
      }
      at = next;
    }
  }
  bool may_merge(std::string_view text, std::size_t border) const {
    const unsigned last = byte_of(text[border - 1] == ' ' ? kSpaceMark.back() : text[border - 1]);
    return text[border] == ' ' || text.substr(border).starts_with(kSpaceMark)
               ? meets_space_[last]
               : meets_[last << 8 | byte_of(text[border])];
  }

  // A space stays one byte here, though the vocabulary writes it as U+2581; token() converts only the text that it
  // looks up.
  void encode_text(std::string_view text, bool first, std::vector<TokenId>& out) const override {
    std::string prefixed;
    if (first && adds_space_) {
      prefixed.reserve(text.size() + 1);
      prefixed += ' ';
      text = prefixed += text;
    }
    constexpr std::size_t kLongestWord = MergeChain::kMostBytes;
    WordCache cache(text.size());
    PairCache pairs(text.size());
    MergeScratch scratch;
    std::size_t start = 0;
    for (std::size_t at = 0; at < text.size();) {
      at += char_bytes(text, at);
      if (at < text.size() && at - start < kLongestWord && may_merge(text, at)) continue;
      const std::string_view word = text.substr(start, at - start);
      start = at;
      if (cache.append(word, out)) continue;
      const std::size_t before = out.size();
      encode_word(word, scratch, pairs, out);
      cache.remember(word, out, before);
    }
  }

  // Returns the token for a whole piece of the text, or kNoSymbol. Looks at no more bytes than a token can have.
  TokenId token(std::string_view text) const {
    if (text.find(' ') == text.npos)
      return text.size() > longest_ ? kNoSymbol : by_text_.find(text).value_or(kNoSymbol);
    std::string spelt;
    for (const char c : text.substr(0, longest_ + 1)) {
      if (c == ' ')
        spelt += kSpaceMark;
      else
        spelt += c;
    }
    return spelt.size() > longest_ ? kNoSymbol : by_text_.find(spelt).value_or(kNoSymbol);
  }

  void encode_word(std::string_view word, MergeScratch& scratch, PairCache& pairs,
                   std::vector<TokenId>& out) const {
    MergeChain& chain = scratch.chain;
    chain.clear(word.size());
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t length = char_bytes(word, at);
      chain.add(token(word.substr(at, length)), static_cast<std::uint32_t>(length));
      at += length;
    }
    merge_all(
        scratch, distinct_,
        [&](std::uint32_t left, std::uint32_t right) -> std::optional<MergeRule> {
          const std::uint32_t a = chain.id(left);
          const std::uint32_t b = chain.id(right);
          const auto find = [&] { return token(word.substr(left, chain.next(right) - left)); };
          // A character that is not a token may still be a part of one, but many such characters share one id.
          const TokenId product = a == kNoSymbol || b == kNoSymbol ? find() : pairs.get(a, b, find);
          if (product == kNoSymbol) return std::nullopt;
          return MergeRule{ranks_[product], product};
        });
    for (std::uint32_t at = 0, next = 0; at < chain.size(); at = next) {
      next = chain.next(at);
      if (const std::uint32_t symbol = chain.id(at); symbol != kNoSymbol) {
        out.push_back(symbol);
        continue;
      }
      const std::string_view text = word.substr(at, next - at);
      // If the vocabulary lacks U+2581, the bytes of that character would come back as that character, not as a
      // space.
      for (const char c : text == kSpaceMark ? std::string_view(" ") : text)
        if (const auto& byte = byte_tokens_[byte_of(c)]) out.push_back(*byte);
    }
  }

  TextMap by_text_;
  std::vector<std::uint32_t> ranks_;  // by token: the rank of its score among the distinct scores
  std::uint32_t distinct_ = 0;
  std::size_t longest_ = 0;  // bytes of the longest token that a text can become
  std::array<std::optional<TokenId>, 256> byte_tokens_{};
  std::array<bool, 256> meets_space_{};
  std::vector<bool> meets_ = std::vector<bool>(1U << 16);
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_spm_tokenizer(const GgufFile& file) {
  return SpmTokenizer::make(file);
}

}  // namespace bulkhead::model
