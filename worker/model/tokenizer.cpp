#include "worker/model/tokenizer.hpp"

#include <algorithm>

#include "worker/model/tokenizer_check.hpp"
#include "worker/model/vocabulary.hpp"

namespace bulkhead::model {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

// Collects text from segments: a view as long as the text is one piece of memory, otherwise a copy.
class Run {
 public:
  void append(std::string_view text) {
    if (text.empty()) return;
    if (view_.empty()) {
      view_ = text;
      return;
    }
    if (copy_.empty()) copy_ = view_;
    copy_ += text;
    view_ = copy_;
  }
  std::string_view text() const { return view_; }
  void drop_blanks_at_end() {
    view_ = view_.substr(0, view_.find_last_not_of(kWhiteSpace) + 1);  // npos + 1 is 0
  }
  void clear() {
    view_ = {};
    copy_.clear();
  }

 private:
  std::string_view view_;
  std::string copy_;
};

// Kinds by tokenizer.ggml.model.
struct TokenizerKind {
  std::string_view name;
  Result<std::unique_ptr<Tokenizer>> (*make)(const GgufFile&);
};
constexpr TokenizerKind kTokenizerKinds[] = {{"llama", make_spm_tokenizer},
                                             {"gpt2", make_bpe_tokenizer},
                                             {"gemma4", make_gemma_tokenizer},
                                             {"bert", make_wordpiece_tokenizer},
                                             {"t5", make_unigram_tokenizer}};

// Vocabularies of characters, as Gemma 4's, that files call byte-level BPE: their names in tokenizer.ggml.pre.
constexpr std::string_view kOfCharacters[] = {"gemma4", "granite-embed-multi-311m"};

Result<const TokenizerKind*> tokenizer_kind_of(const GgufFile& file) {
  BULKHEAD_TRY(auto name, file.get_string("tokenizer.ggml.model"));
  BULKHEAD_TRY(const auto pre, file.get_string("tokenizer.ggml.pre"));
  if (name == "gpt2" && pre && std::ranges::find(kOfCharacters, *pre) != std::end(kOfCharacters))
    name = "gemma4";
  if (!name)
    return Error(
        ErrorCode::kUnsupported,
        file.name() + ": holds no tokenizer (metadata key tokenizer.ggml.model is missing)");
  for (const TokenizerKind& kind : kTokenizerKinds) {
    if (*name == kind.name) return &kind;
  }
  return Error(ErrorCode::kUnsupported,
               file.name() + ": tokenizer.ggml.model \"" + std::string(name->substr(0, 64)) +
                   "\" is not supported; supported are: llama (SentencePiece with scores), gpt2 "
                   "(byte-level BPE), gemma4 (BPE of characters), bert (WordPiece), t5 (unigram)");
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_gguf(const GgufFile& file) {
  BULKHEAD_TRY(const TokenizerKind* const kind, tokenizer_kind_of(file));
  return kind->make(file);
}

Status check_tokenizer(const GgufFile& file) {
  BULKHEAD_TRY(const TokenizerKind* const kind, tokenizer_kind_of(file));
  if (kind->make != make_bpe_tokenizer) return {};
  const auto rule = pre_tokenizer_of(file);
  return rule.ok() ? Status() : rule.error();
}

std::vector<TokenId> VocabularyTokenizer::encode(std::span<const Segment> segments,
                                                 bool add_special) const {
  std::vector<TokenId> out;
  if (add_special && vocabulary_.add_bos) out.push_back(*vocabulary_.bos);
  Run run;
  bool first = true;
  bool skips_blanks =
      false;  // the last token takes the white space after it, and only that has come so far
  const auto add_text = [&](std::string_view text) {
    if (skips_blanks)
      text.remove_prefix(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
    skips_blanks = skips_blanks && text.empty();
    run.append(text);
  };
  const auto flush = [&] {
    if (run.text().empty()) return;
    encode_text(run.text(), first, out);
    run.clear();
    first = false;
  };
  for (const Segment& segment : segments) {
    std::size_t at = 0;
    while (const auto match = vocabulary_.special.find(segment.text, at, segment.parse_special)) {
      add_text(segment.text.substr(at, match->begin - at));
      if (match->blanks == Blanks::kBeforeTaken) run.drop_blanks_at_end();
      flush();
      out.push_back(match->id);
      first = true;
      skips_blanks = match->blanks == Blanks::kBehindTaken;
      at = match->end;
    }
    add_text(segment.text.substr(at));
  }
  flush();
  if (add_special && vocabulary_.add_eos) out.push_back(*vocabulary_.eos);
  return out;
}

std::string VocabularyTokenizer::decode(std::span<const TokenId> tokens) const {
  std::string text;
  bool strip = adds_space_;
  for (const TokenId token : tokens) {
    std::string_view part = piece(token);
    if (part.empty()) continue;
    if (strip && part.front() == ' ') part.remove_prefix(1);
    strip = false;
    text += part;
  }
  return text;
}

}  // namespace bulkhead::model
