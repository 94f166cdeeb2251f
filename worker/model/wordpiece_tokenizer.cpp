// WordPiece, the tokenizer of BERT and the encoders after it: text is normalised and cut into words, and each word into
// the longest pieces that the vocabulary has, from left to right. The vocabulary writes a word's first piece with
// U+2581 in front, and the pieces that continue a word plainly.
//
// Where the makers' implementations differ, this follows Hugging Face's fast one, with which these models are used.
//
// Devlin, Chang, Lee, Toutanova: "BERT: Pre-training of deep bidirectional transformers for language understanding",
// 2019.
#include <algorithm>
#include <string>
#include <utility>

#include "worker/model/piece_trie.hpp"
#include "worker/model/space_mark.hpp"
#include "worker/model/unicode.hpp"
#include "worker/model/unicode_forms.hpp"
#include "worker/model/vocabulary.hpp"

namespace bulkhead::model {
namespace {

// A word of more characters becomes [UNK], whatever the vocabulary has: Hugging Face's limit.
constexpr std::size_t kMostWordChars = 100;
constexpr std::size_t kMostWordBytes = kMostWordChars * 4;

// Unicode's punctuation, and ASCII's symbols.
bool is_punctuation(char32_t code) {
  if (code >= 0x80) return char_class(code) == CharClass::kPunctuation;
  return (code > ' ' && code < '0') || (code > '9' && code < 'A') || (code > 'Z' && code < 'a') ||
         (code > 'z' && code < 0x7F);
}

// Ideographs as the vocabularies' makers count them. Extension E starts at U+2B820, but the implementation that this
// follows starts it at U+2B920.
bool is_ideograph(char32_t code) {
  constexpr std::pair<char32_t, char32_t> kIdeographs[] = {
      {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
      {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return std::ranges::any_of(kIdeographs, [code](const auto& range) {
    return code >= range.first && code <= range.second;
  });
}

// A vertical tab, a form feed and U+0085 are controls, which leave nothing, not even a border between words.
bool separates(char32_t code) {
  return code == '\t' || code == '\n' || code == '\r' ||
         (char_class(code) == CharClass::kSpace && !is_control(code));
}

struct Normalisation {
  bool lower_case = true;
  bool strips_accents = true;
};

// Normalises text and hands each word to a function.
template <typename TakeWord>
class WordReader {
 public:
  WordReader(Normalisation how, TakeWord take_word) : how_(how), take_word_(std::move(take_word)) {}

  void read(std::string_view text) {
    while (!text.empty()) {
      const DecodedChar next = decode_char(text);
      text.remove_prefix(next.bytes);
      // U+FFFD, which stands for bytes that are no character, leaves nothing, and such bytes don't either.
      if (next.code == 0xFFFD) continue;
      if (separates(next.code))
        end_word();
      else if (!is_control(next.code))
        add(next.code);
    }
    end_word();
  }

 private:
  void add(char32_t code) {
    const bool alone = is_ideograph(code);
    if (alone) end_word();
    // NFD also sorts accents. Of what remains here, only some rare marks that take up space would change places.
    forms_.clear();
    if (how_.strips_accents)
      append_without_accents(forms_, code);
    else
      forms_ += code;
    lower_.clear();
    for (const char32_t form : forms_) {
      if (how_.lower_case)
        append_lower_case(lower_, form);
      else
        lower_ += form;
    }
    for (const char32_t form : lower_) {
      const bool punctuation = is_punctuation(form);
      if (punctuation) end_word();
      append(form);
      if (punctuation) end_word();
    }
    if (alone) end_word();
  }

  void append(char32_t code) {
    if (++chars_ <= kMostWordChars) append_utf8(word_, code);
  }

  void end_word() {
    if (chars_ > 0) take_word_(std::string_view(word_), chars_ > kMostWordChars);
    word_.clear();
    chars_ = 0;
  }

  const Normalisation how_;
  TakeWord take_word_;
  std::string word_;  // at most kMostWordChars characters of it
  std::size_t chars_ = 0;
  std::u32string forms_;  // of one character, and in lower case: kept because they own memory
  std::u32string lower_;
};

class WordPieceTokenizer final : public VocabularyTokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> make(const GgufFile& file) {
    // Files of this kind name [CLS] and [SEP] by keys of their own, or as BOS and EOS, or have them where BERT has.
    VocabularyDefaults defaults;
    defaults.bos = 101;
    defaults.eos = 102;
    defaults.unknown = 100;
    defaults.needs_unknown = true;
    defaults.add_bos = true;
    BULKHEAD_TRY(defaults.add_eos, adds_separator(file));
    constexpr const char* kStartKey = "tokenizer.ggml.cls_token_id";
    constexpr const char* kSeparatorKey = "tokenizer.ggml.seperator_token_id";  // GGUF writes it so
    BULKHEAD_TRY(const auto start, named_token(file, kStartKey));
    BULKHEAD_TRY(const auto separator, named_token(file, kSeparatorKey));
    if (start) defaults.bos_key = kStartKey;
    if (separator) defaults.eos_key = kSeparatorKey;
    BULKHEAD_TRY(auto vocabulary, read_vocabulary(file, defaults));
    auto tokenizer =
        std::unique_ptr<WordPieceTokenizer>(new WordPieceTokenizer(std::move(vocabulary)));
    Normalisation& how = tokenizer->normalisation_;
    BULKHEAD_TRY(const auto lower_case, file.get_bool("tokenizer.ggml.normalizer.lowercase"));
    BULKHEAD_TRY(const auto strips, file.get_bool("tokenizer.ggml.normalizer.strip_accents"));
    how.lower_case = lower_case.value_or(true);
    how.strips_accents = strips.value_or(how.lower_case);
    if (!tokenizer->index())
      return Error(ErrorCode::kUnsupported,
                   file.name() +
                       ": the texts of tokenizer.ggml.tokens are too long together for a "
                       "\"bert\" tokenizer: more than " +
                       std::to_string(PieceTrie::kMostBytes) + " bytes");
    return std::unique_ptr<Tokenizer>(std::move(tokenizer));
  }

 private:
  using VocabularyTokenizer::VocabularyTokenizer;

  // One [SEP] ends a prompt. Files ask for it by add_eos_token, or, older ones, by add_sep_token; newer files say by
  // the latter whether two texts get a second one between them.
  static Result<bool> adds_separator(const GgufFile& file) {
    BULKHEAD_TRY(const auto eos, file.get_bool("tokenizer.ggml.add_eos_token"));
    BULKHEAD_TRY(const auto separator, file.get_bool("tokenizer.ggml.add_sep_token"));
    return eos.value_or(separator.value_or(true)) || separator.value_or(false);
  }

  bool index() {
    adds_space_ = true;
    pieces_.resize(vocabulary_.size());
    std::vector<PieceTrie::Piece> starts, continuations;
    for (TokenId token = 0; token < vocabulary_.size(); ++token) {
      if (!vocabulary_.from_text(token)) continue;
      std::string_view text = vocabulary_.texts[token];
      // The mark alone is a piece that continues a word: a first piece has text after it.
      const bool starts_word = text.size() > kSpaceMark.size() && text.starts_with(kSpaceMark);
      pieces_[token] = text;
      if (starts_word) {
        text.remove_prefix(kSpaceMark.size());
        pieces_[token] = vocabulary_.arena.add(" " + std::string(text));
      }
      if (text.size() <= kMostWordBytes && valid_utf8(text))
        (starts_word ? starts : continuations).push_back({text, token});
    }
    return starts_.build(std::move(starts)) && continuations_.build(std::move(continuations));
  }

  void encode_text(std::string_view text, bool /*first*/,
                   std::vector<TokenId>& out) const override {
    WordReader reader(normalisation_, [&](std::string_view word, bool too_long) {
      const std::size_t before = out.size();
      if (!too_long && cut(word, out)) return;
      out.resize(before);
      out.push_back(*vocabulary_.unknown);
    });
    reader.read(text);
  }

  // Appends the word's pieces. Returns false if no piece fits at some place.
  bool cut(std::string_view word, std::vector<TokenId>& out) const {
    for (bool starts = true; !word.empty(); starts = false) {
      std::size_t longest = 0;
      TokenId best = 0;
      (starts ? starts_ : continuations_).each_prefix(word, [&](TokenId token, std::size_t bytes) {
        longest = bytes;
        best = token;
      });
      if (longest == 0) return false;
      out.push_back(best);
      word.remove_prefix(longest);
    }
    return true;
  }

  Normalisation normalisation_;
  PieceTrie starts_;         // the pieces that start a word, without their mark
  PieceTrie continuations_;  // the pieces that continue a word
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_wordpiece_tokenizer(const GgufFile& file) {
  return WordPieceTokenizer::make(file);
}

}  // namespace bulkhead::model
