// SentencePiece's unigram model, the tokenizer of XLM-RoBERTa and the encoders after it: of all ways to cut a text into
// the vocabulary's pieces it takes the one whose scores, logarithms of probabilities, have the greatest sum. The text
// is normalised before (charsmap.hpp). Spaces are written as U+2581.
//
// This follows the library SentencePiece. Hugging Face's fast implementation takes a character and the marks after it
// as one when it normalises, and gives other tokens for some of those.
//
// Kudo: "Subword regularization: Improving neural network translation models with multiple subword candidates", 2018.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "worker/model/charsmap.hpp"
#include "worker/model/piece_trie.hpp"
#include "worker/model/space_mark.hpp"
#include "worker/model/unicode.hpp"
#include "worker/model/vocabulary.hpp"

namespace bulkhead::model {
namespace {

// What an unknown character costs more than the worst piece.
constexpr double kUnknownPenalty = 10;
// At each character of a text at most that many bytes are looked at. Vocabularies are trained with pieces of at most
// 16 characters.
constexpr std::size_t kMostPieceBytes = 256;

class UnigramTokenizer final : public VocabularyTokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> make(const GgufFile& file) {
    VocabularyDefaults defaults;  // T5's
    defaults.eos = 1;
    defaults.unknown = 2;
    defaults.needs_unknown = true;
    BULKHEAD_TRY(const auto add_eos, file.get_bool("tokenizer.ggml.add_eos_token"));
    defaults.add_eos = add_eos.value_or(true);
    BULKHEAD_TRY(auto vocabulary, read_vocabulary(file, defaults));
    if (vocabulary.scores.empty())
      return Error(ErrorCode::kCorrupt, file.name() +
                                            ": metadata key tokenizer.ggml.scores is "
                                            "missing, which a \"t5\" tokenizer needs; "
                                            "convert the model again");
    BULKHEAD_TRY(auto charsmap, Charsmap::from_gguf(file));
    auto tokenizer = std::unique_ptr<UnigramTokenizer>(
        new UnigramTokenizer(std::move(vocabulary), std::move(charsmap)));
    BULKHEAD_TRY(const auto prefix, file.get_bool("tokenizer.ggml.add_space_prefix"));
    tokenizer->adds_space_ = prefix.value_or(false);
    BULKHEAD_TRY(const auto merges, file.get_bool("tokenizer.ggml.remove_extra_whitespaces"));
    tokenizer->merges_spaces_ = merges.value_or(false);
    BULKHEAD_RETURN_IF_ERROR(tokenizer->index(file));
    return std::unique_ptr<Tokenizer>(std::move(tokenizer));
  }

 private:
  UnigramTokenizer(Vocabulary vocabulary, Charsmap charsmap)
      : VocabularyTokenizer(std::move(vocabulary)), charsmap_(std::move(charsmap)) {}

  Status index(const GgufFile& file) {
    pieces_.resize(vocabulary_.size());
    std::vector<PieceTrie::Piece> found;
    double worst = 0;
    for (TokenId token = 0; token < vocabulary_.size(); ++token) {
      if (!vocabulary_.from_text(token)) continue;
      const std::string_view text = vocabulary_.texts[token];
      const TokenType type = vocabulary_.types[token];
      pieces_[token] =
          type == TokenType::kUserDefined ? text : vocabulary_.arena.add(without_marks(text));
      // User-defined tokens are found before the text is normalised; unused ones are never made.
      if (type == TokenType::kUserDefined || type == TokenType::kUnused) continue;
      const auto score = static_cast<double>(vocabulary_.scores[token]);
      if (text.size() > kMostPieceBytes || !std::isfinite(score))
        return Error(ErrorCode::kUnsupported,
                     file.name() + ": token " + std::to_string(token) + " has " +
                         std::to_string(text.size()) + " bytes and the score " +
                         std::to_string(score) + "; a \"t5\" tokenizer takes at most " +
                         std::to_string(kMostPieceBytes) + " bytes and finite scores");
      worst = found.empty() ? score : std::min(worst, score);
      if (!valid_utf8(text)) continue;  // no normalised text has such bytes
      found.push_back({text, token});
      crosses_spaces_ |= word_bytes(text) < text.size();
    }
    unknown_score_ = worst - kUnknownPenalty;
    if (!trie_.build(std::move(found)))
      return Error(ErrorCode::kUnsupported,
                   file.name() +
                       ": the texts of tokenizer.ggml.tokens are too long together for a "
                       "\"t5\" tokenizer: more than " +
                       std::to_string(PieceTrie::kMostBytes) + " bytes");
    return {};
  }

  // Returns the text with marks instead of spaces.
  std::string normalised(std::string_view text) const {
    std::string out;
    out.reserve(text.size() + text.size() / 2);
    if (adds_space_) out += kSpaceMark;
    bool after_space = merges_spaces_;
    while (!text.empty()) {
      const Charsmap::Match match = next(text);
      text.remove_prefix(match.bytes);
      std::string_view part = match.replacement;
      while (after_space && part.starts_with(' '))
        part.remove_prefix(1);
      if (part.empty()) continue;
      out += with_marks(part);
      after_space = merges_spaces_ && part.ends_with(' ');
    }
    while (merges_spaces_ && out.ends_with(kSpaceMark))
      out.resize(out.size() - kSpaceMark.size());
    return out;
  }

  // Returns what the text starts with, and what that becomes.
  Charsmap::Match next(std::string_view text) const {
    if (const auto match = charsmap_.longest(text); match.bytes > 0) return match;
    const DecodedChar decoded = decode_char(text);
    const std::string_view whole = text.substr(0, decoded.bytes);
    if (!valid_utf8(whole)) return {1, "\uFFFD"};
    return {whole.size(), whole};
  }

  void encode_text(std::string_view text, bool /*first*/,
                   std::vector<TokenId>& out) const override {
    const std::string plain = normalised(text);
    const std::size_t before = out.size();
    std::vector<Step> steps;
    for (std::string_view rest = plain; !rest.empty();) {
      const std::size_t bytes = crosses_spaces_ ? rest.size() : word_bytes(rest);
      cut(rest.substr(0, bytes), steps, before, out);
      rest.remove_prefix(bytes);
    }
  }

  // Returns the length of the marks and the word that the text starts with.
  static std::size_t word_bytes(std::string_view text) {
    std::size_t body = 0;
    while (text.substr(body).starts_with(kSpaceMark))
      body += kSpaceMark.size();
    return std::min(text.find(kSpaceMark, body), text.size());
  }

  // The best way to a place in a text: the last token of it, and where that starts.
  struct Step {
    double score = 0;
    std::size_t from = kNowhere;
    TokenId token = 0;
  };
  static constexpr std::size_t kNowhere = ~std::size_t{0};

  // Appends the best pieces of the text. Neighbouring unknown characters become one token; out[before..] are the
  // tokens so far.
  void cut(std::string_view text, std::vector<Step>& steps, std::size_t before,
           std::vector<TokenId>& out) const {
    steps.assign(text.size() + 1, Step());
    const auto offer = [&steps](std::size_t from, std::size_t to, TokenId token, double score) {
      const double sum = steps[from].score + score;
      if (steps[to].from == kNowhere || sum > steps[to].score) steps[to] = {sum, from, token};
    };
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t character = decode_char(text.substr(at)).bytes;
      bool known = false;
      trie_.each_prefix(text.substr(at), [&](TokenId token, std::size_t bytes) {
        known = known || bytes == character;
        offer(at, at + bytes, token, static_cast<double>(vocabulary_.scores[token]));
      });
      if (!known) offer(at, at + character, *vocabulary_.unknown, unknown_score_);
      at += character;
    }
    std::vector<TokenId> reversed;
    for (std::size_t at = text.size(); at > 0; at = steps[at].from)
      reversed.push_back(steps[at].token);
    for (auto token = reversed.rbegin(); token != reversed.rend(); ++token) {
      const bool again =
          *token == *vocabulary_.unknown && out.size() > before && out.back() == *token;
      if (!again) out.push_back(*token);
    }
  }

  Charsmap charsmap_;
  PieceTrie trie_;
  double unknown_score_ = 0;
  bool merges_spaces_ = false;  // and drops those around the text
  bool crosses_spaces_ =
      false;  // some piece goes on after a space, so words can't be cut one by one
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_unigram_tokenizer(const GgufFile& file) {
  return UnigramTokenizer::make(file);
}

}  // namespace bulkhead::model
