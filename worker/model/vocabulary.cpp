#include "worker/model/vocabulary.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "config/base/text.hpp"
#include "worker/model/hash_maps.hpp"

namespace bulkhead::model {
namespace {

constexpr std::size_t kMaxTokenBytes = 16'384;
constexpr std::size_t kMaxSpecialBytes = 1'024;
constexpr std::size_t kMaxTokens = 1U << 22;
constexpr std::size_t kMaxForbidden = 1'024;  // each costs every step a little

// Texts that end a turn or a document in common vocabularies. Files often name only one of them in eos_token_id,
// while the model ends its turns with another one.
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",
                                          "<|im_end|>",
                                          "<|end|>",
                                          "<end_of_turn>",
                                          "<turn|>",
                                          "<|tool_response>",
                                          "<|endoftext|>",
                                          "<|end_of_text|>",
                                          "</s>",
                                          "<|eom_id|>",
                                          "<EOT>",
                                          "_<EOT>",
                                          "[EOT]",
                                          "[EOS]",
                                          "[e~[",
                                          "<eos>",
                                          "<|return|>",
                                          "<|fim_pad|>",
                                          "<fim_pad>",
                                          "<fim-pad>",
                                          "<|repo_name|>",
                                          "<|fim_repo|>",
                                          "<fim-repo>",
                                          "<reponame>",
                                          "<|file_sep|>",
                                          "<|endofturn|>",
                                          "<｜end▁of▁sentence｜>",
                                          "<end_of_utterance>"};

class VocabularyReader {
 public:
  VocabularyReader(const GgufFile& file, const VocabularyDefaults& defaults)
      : file_(file), defaults_(defaults) {}

  Result<Vocabulary> read() {
    BULKHEAD_RETURN_IF_ERROR(texts());
    BULKHEAD_RETURN_IF_ERROR(types());
    BULKHEAD_RETURN_IF_ERROR(scores());
    BULKHEAD_RETURN_IF_ERROR(special_ids());
    BULKHEAD_RETURN_IF_ERROR(special_texts());
    BULKHEAD_RETURN_IF_ERROR(forbidden());
    return std::move(vocabulary_);
  }

 private:
  Error corrupt(const std::string& what) const {
    return Error(ErrorCode::kCorrupt,
                 file_.name() + ": " + what + "; the file is damaged or was converted wrongly");
  }
  std::string length_text(std::size_t length) const {
    return " has " + std::to_string(length) + " entries, tokenizer.ggml.tokens " +
           std::to_string(vocabulary_.texts.size());
  }

  Status texts() {
    BULKHEAD_TRY(const auto tokens, file_.get_strings("tokenizer.ggml.tokens"));
    if (!tokens) return corrupt("metadata key tokenizer.ggml.tokens is missing");
    if (tokens->empty() || tokens->size() > kMaxTokens)
      return corrupt("tokenizer.ggml.tokens has " + std::to_string(tokens->size()) + " entries");
    TextMap seen;
    seen.reserve(tokens->size());
    vocabulary_.texts.reserve(tokens->size());
    for (const std::string_view text : *tokens) {
      const std::string number = std::to_string(vocabulary_.texts.size());
      if (text.size() > kMaxTokenBytes)
        return corrupt("token " + number + " is " + std::to_string(text.size()) + " bytes long");
      const std::string_view kept = vocabulary_.arena.add(text);
      // Real files have empty tokens; no text becomes one.
      if (!text.empty() && !seen.insert(kept, static_cast<std::uint32_t>(vocabulary_.texts.size())))
        return corrupt("tokens " + std::to_string(*seen.find(text)) + " and " + number +
                       " have the same text");
      vocabulary_.texts.push_back(kept);
    }
    return {};
  }

  Status types() {
    BULKHEAD_TRY(const auto types, file_.get_ints("tokenizer.ggml.token_type"));
    vocabulary_.types.assign(vocabulary_.texts.size(), TokenType::kNormal);
    if (!types) return {};
    if (types->size() != vocabulary_.texts.size())
      return corrupt("tokenizer.ggml.token_type" + length_text(types->size()));
    for (std::size_t i = 0; i < types->size(); ++i) {
      const std::int64_t type = (*types)[i];
      if (type < 0 || type > static_cast<int>(TokenType::kByte))
        return corrupt("token " + std::to_string(i) + " has the unknown type " +
                       std::to_string(type));
      vocabulary_.types[i] = static_cast<TokenType>(type);
    }
    return {};
  }

  Status scores() {
    BULKHEAD_TRY(auto scores, file_.get_floats("tokenizer.ggml.scores"));
    if (!scores) return {};
    if (scores->size() != vocabulary_.texts.size())
      return corrupt("tokenizer.ggml.scores" + length_text(scores->size()));
    for (std::size_t i = 0; i < scores->size(); ++i) {
      if (std::isnan((*scores)[i]))
        return corrupt("the score of token " + std::to_string(i) + " is not a number");
    }
    vocabulary_.scores = *std::move(scores);
    return {};
  }

  Result<std::optional<TokenId>> id(const char* key, std::optional<TokenId> fallback) const {
    BULKHEAD_TRY(const auto value, named_token(file_, key));
    if (!value) return fallback && *fallback < vocabulary_.size() ? fallback : std::nullopt;
    if (*value >= vocabulary_.size())
      return corrupt("metadata key " + std::string(key) + " is " + std::to_string(*value) +
                     ", but there are " + std::to_string(vocabulary_.size()) + " tokens");
    return std::optional(static_cast<TokenId>(*value));
  }

  Status special_ids() {
    BULKHEAD_TRY(vocabulary_.bos, id(defaults_.bos_key, defaults_.bos));
    BULKHEAD_TRY(vocabulary_.eos, id(defaults_.eos_key, defaults_.eos));
    BULKHEAD_RETURN_IF_ERROR(unknown_id());

    vocabulary_.ends.assign(vocabulary_.size(), false);
    if (vocabulary_.eos) vocabulary_.ends[*vocabulary_.eos] = true;
    for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
      BULKHEAD_TRY(const auto end, id(key, std::nullopt));
      if (end) vocabulary_.ends[*end] = true;
    }
    // A model that fills in text writes one of these tokens after the text, to pad it or to begin another file. A
    // shortened vocabulary may lack such a token although its key is still there. Such a key has no effect.
    for (const char* key : {"tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id",
                            "tokenizer.ggml.fim_sep_token_id"}) {
      BULKHEAD_TRY(const auto end, named_token(file_, key));
      if (end && *end < vocabulary_.size()) vocabulary_.ends[*end] = true;
    }

    BULKHEAD_TRY(const auto add_bos, file_.get_bool("tokenizer.ggml.add_bos_token"));
    BULKHEAD_TRY(const auto add_eos, file_.get_bool("tokenizer.ggml.add_eos_token"));
    vocabulary_.add_bos = defaults_.always_bos || add_bos.value_or(defaults_.add_bos);
    vocabulary_.add_eos = defaults_.add_eos.value_or(add_eos.value_or(false));
    if (vocabulary_.add_bos && !vocabulary_.bos)
      return corrupt("prompts should start with BOS, but " + std::string(defaults_.bos_key) +
                     " is missing");
    if (vocabulary_.add_eos && !vocabulary_.eos)
      return corrupt("prompts should end with EOS, but " + std::string(defaults_.eos_key) +
                     " is missing");
    return {};
  }

  Status unknown_id() {
    constexpr const char* kKey = "tokenizer.ggml.unknown_token_id";
    if (defaults_.needs_unknown) {
      BULKHEAD_TRY(vocabulary_.unknown, id(kKey, defaults_.unknown));
      if (!vocabulary_.unknown)
        return corrupt("text that has no token should become the unknown one, but " +
                       std::string(kKey) + " is missing");
      return {};
    }
    // Other kinds hardly ever add this token to a prompt, so a wrong value does no harm.
    BULKHEAD_TRY(const auto unknown, named_token(file_, kKey));
    vocabulary_.unknown = unknown && *unknown < vocabulary_.size()
                              ? std::optional(static_cast<TokenId>(*unknown))
                              : defaults_.unknown;
    if (vocabulary_.unknown && *vocabulary_.unknown >= vocabulary_.size())
      vocabulary_.unknown.reset();
    return {};
  }

  bool has(std::string_view text) const {
    return std::ranges::find(vocabulary_.texts, text) != vocabulary_.texts.end();
  }

  // In some forms <|end|> closes one message of an answer, and the answer may go on. It ends with one of two other
  // tokens.
  void take_ends_of_parts() {
    constexpr std::string_view kForms[][2] = {{"<|return|>", "<|call|>"},   // harmony: gpt-oss
                                              {"<|flush|>", "<|calls|>"}};  // Solar Open
    const auto find = [this](std::string_view text) {
      return static_cast<std::size_t>(std::ranges::find(vocabulary_.texts, text) -
                                      vocabulary_.texts.begin());
    };
    const std::size_t size = vocabulary_.texts.size(), end = find("<|end|>");
    for (const auto& form : kForms) {
      if (find(form[0]) == size || find(form[1]) == size) continue;
      for (const std::string_view text : form) {
        vocabulary_.ends[find(text)] = true;
        vocabulary_.types[find(text)] = TokenType::kControl;
      }
      if (end != size) vocabulary_.ends[end] = false;
    }
  }

  // Returns the token that takes the white space before it; empty: none does. The models' own tokenizers say so
  // (lstrip), but a GGUF file doesn't contain that. llama.cpp (src/llama-vocab.cpp) goes by the same names.
  std::string_view mask_with_blanks() const {
    const auto within = [this](const char* key, std::string_view part) {
      return lower_text(file_, key).find(part) != std::string::npos;
    };
    for (const char* rule : {"jina-v2-de", "jina-v2-es", "jina-v2-code"})
      if (within("tokenizer.ggml.pre", rule)) return "<mask>";
    for (const char* architecture : {"nomic-bert-moe", "jina-bert-v3"})
      if (within("general.architecture", architecture)) return "<mask>";
    return within("general.name", "modern-bert") ? "[MASK]" : "";
  }

  Status special_texts() {
    // In Gemma 4's vocabulary </s> is a tag of HTML and ends nothing.
    const bool has_tags = has("<|tool_response>");
    for (TokenId token = 0; token < vocabulary_.size(); ++token) {
      const auto text = vocabulary_.texts[token];
      if (std::find(std::begin(kEndTexts), std::end(kEndTexts), text) == std::end(kEndTexts))
        continue;
      if (has_tags && text == "</s>" && !vocabulary_.ends[token]) continue;
      vocabulary_.ends[token] = true;
      // Some converters forget the type; a user's text must not become such a token.
      vocabulary_.types[token] = TokenType::kControl;
    }
    take_ends_of_parts();
    const std::string_view mask = mask_with_blanks();
    std::vector<SpecialTokens::Entry> entries;
    for (TokenId token = 0; token < vocabulary_.size(); ++token) {
      const TokenType type = vocabulary_.types[token];
      const std::string_view text = vocabulary_.texts[token];
      const bool always = type == TokenType::kUserDefined;
      if (text.empty() || !(always || type == TokenType::kControl || type == TokenType::kUnknown))
        continue;
      if (text.size() > kMaxSpecialBytes)
        return corrupt("special token " + std::to_string(token) + " is " +
                       std::to_string(text.size()) + " bytes long");
      const bool behind = defaults_.specials_take_blanks && text != "<unk>" && text != "<s>" &&
                          text != "<|endoftext|>";
      entries.push_back({text, token, always,
                         text == mask ? Blanks::kBeforeTaken
                         : behind     ? Blanks::kBehindTaken
                                      : Blanks::kStay});
    }
    vocabulary_.special.build(std::move(entries));
    return {};
  }

  // Some files of Gemma 4 name tokens that no answer may have. As in llama.cpp, ids beyond the vocabulary don't matter.
  Status forbidden() {
    BULKHEAD_TRY(const auto found, file_.get_ints("tokenizer.ggml.suppress_tokens"));
    if (!found) return {};
    if (found->size() > kMaxForbidden)
      return corrupt("tokenizer.ggml.suppress_tokens has " + std::to_string(found->size()) +
                     " entries, more than " + std::to_string(kMaxForbidden));
    for (const std::int64_t token : *found) {
      if (token >= 0 && token < std::ssize(vocabulary_.texts))
        vocabulary_.forbidden.push_back(static_cast<TokenId>(token));
    }
    std::ranges::sort(vocabulary_.forbidden);
    const auto copies = std::ranges::unique(vocabulary_.forbidden);
    vocabulary_.forbidden.erase(copies.begin(), copies.end());
    return {};
  }

  const GgufFile& file_;
  const VocabularyDefaults& defaults_;
  Vocabulary vocabulary_;
};

}  // namespace

Result<std::optional<std::uint64_t>> named_token(const GgufFile& file, std::string_view key) {
  constexpr std::uint64_t kNone = 0xFFFF'FFFF;
  BULKHEAD_TRY(const auto any, file.get_float(key));
  if (!any || *any == -1) return std::optional<std::uint64_t>();
  BULKHEAD_TRY(const auto value, file.get_uint(key));
  return value == kNone ? std::nullopt : value;
}

std::string lower_text(const GgufFile& file, const char* key) {
  const auto text = file.get_string(key);
  return text.ok() && *text ? lower(**text) : std::string();
}

std::string_view StringArena::add(std::string_view text) {
  if (blocks_.empty() || blocks_.back().capacity() - blocks_.back().size() < text.size()) {
    blocks_.emplace_back();
    blocks_.back().reserve(std::max(kBlockBytes, text.size()));
  }
  std::string& block = blocks_.back();
  const std::size_t start = block.size();
  block.append(text);
  return std::string_view(block).substr(start);
}

void SpecialTokens::build(std::vector<Entry> entries) {
  entries_ = std::move(entries);
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.text < b.text; });
  std::size_t i = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    by_first_byte_[byte] = static_cast<std::uint32_t>(i);
    while (i < entries_.size() && static_cast<unsigned char>(entries_[i].text[0]) == byte)
      ++i;
  }
  by_first_byte_[256] = static_cast<std::uint32_t>(entries_.size());
  any_always_ =
      std::any_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.always; });
}

std::optional<SpecialTokens::Match> SpecialTokens::find(std::string_view text, std::size_t from,
                                                        bool controls) const {
  if (entries_.empty() || (!controls && !any_always_)) return std::nullopt;
  const auto byte = [](std::string_view s, std::size_t at) {
    return static_cast<unsigned char>(s[at]);
  };
  for (std::size_t at = from; at < text.size(); ++at) {
    const unsigned first = byte(text, at);
    const Entry* low = entries_.data() + by_first_byte_[first];
    const Entry* high = entries_.data() + by_first_byte_[first + 1];
    const Entry* best = nullptr;
    // [low, high): the entries that agree with the text so far. An entry that ends here comes before those that are
    // longer.
    for (std::size_t depth = 1; low != high; ++depth) {
      if (low->text.size() == depth) {
        if (controls || low->always) best = low;
        ++low;
      }
      if (at + depth >= text.size()) break;
      const unsigned next = byte(text, at + depth);
      low = std::partition_point(low, high,
                                 [&](const Entry& e) { return byte(e.text, depth) < next; });
      high = std::partition_point(low, high,
                                  [&](const Entry& e) { return byte(e.text, depth) == next; });
    }
    if (best != nullptr) return Match{at, at + best->text.size(), best->id, best->blanks};
  }
  return std::nullopt;
}

Result<Vocabulary> read_vocabulary(const GgufFile& file, const VocabularyDefaults& defaults) {
  return VocabularyReader(file, defaults).read();
}

}  // namespace bulkhead::model
