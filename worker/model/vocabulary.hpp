// The token list of a model file, checked and copied from it. All kinds of tokenizer share it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model {

enum class TokenType : std::uint8_t {  // the values are GGUF's
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Strings that the tokenizer owns and that do not move while more are added.
class StringArena {
 public:
  std::string_view add(std::string_view text);

 private:
  static constexpr std::size_t kBlockBytes = 1U << 20;
  std::vector<std::string> blocks_;  // each is reserved at once and never grows beyond that
};

// What becomes of the white space beside a special token: it stays text, or one side's belongs to the token.
enum class Blanks : std::uint8_t { kStay, kBeforeTaken, kBehindTaken };

// Finds special tokens' text in a prompt: the leftmost one, and of those the longest.
class SpecialTokens {
 public:
  struct Entry {
    std::string_view text;
    TokenId id;
    // User-defined tokens are recognised everywhere, control tokens only where the caller trusts the text.
    bool always;
    Blanks blanks = Blanks::kStay;
  };
  struct Match {
    std::size_t begin = 0;
    std::size_t end = 0;
    TokenId id = 0;
    Blanks blanks = Blanks::kStay;
  };

  void build(std::vector<Entry> entries);
  std::optional<Match> find(std::string_view text, std::size_t from, bool controls) const;

 private:
  std::vector<Entry> entries_;                      // sorted by text, like a trie without nodes
  std::array<std::uint32_t, 257> by_first_byte_{};  // entries that start with byte b: [b, b + 1)
  bool any_always_ = false;
};

struct Vocabulary {
  std::vector<std::string_view> texts;  // as the file writes them, in the arena
  std::vector<TokenType> types;
  std::vector<float> scores;  // empty if the file has none
  SpecialTokens special;
  std::vector<bool> ends;          // ends_generation
  std::vector<TokenId> forbidden;  // each once
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> unknown;
  bool add_bos = false;
  bool add_eos = false;
  StringArena arena;

  std::uint32_t size() const { return static_cast<std::uint32_t>(texts.size()); }
  // Returns whether plain text may become the token. Other tokens only come from their special text.
  bool from_text(TokenId id) const {
    return types[id] != TokenType::kControl && types[id] != TokenType::kUnknown &&
           types[id] != TokenType::kByte && !texts[id].empty();
  }
};

struct VocabularyDefaults {
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> unknown;
  bool add_bos = false;
  bool always_bos = false;      // whatever add_bos_token says
  std::optional<bool> add_eos;  // if set, whatever add_eos_token says
  // The keys that name the tokens around a prompt.
  const char* bos_key = "tokenizer.ggml.bos_token_id";
  const char* eos_key = "tokenizer.ggml.eos_token_id";
  bool needs_unknown = false;  // text without a token becomes the unknown one, so there must be one
  bool specials_take_blanks =
      false;  // special tokens but <unk>, <s> and <|endoftext|> take white space after them
};

// Reads tokenizer.ggml.{tokens,token_type,scores,*_token_id,add_*_token}. kCorrupt for lists of different lengths,
// duplicates, ids beyond the end and the like.
Result<Vocabulary> read_vocabulary(const GgufFile& file, const VocabularyDefaults& defaults);

// Returns the number of the token that a key names; nothing if the key is absent, or has the -1 that llama.cpp writes
// for a token that the vocabulary doesn't have, as an unsigned number or not. The vocabulary may be shorter.
Result<std::optional<std::uint64_t>> named_token(const GgufFile& file, std::string_view key);

// Returns a key's text in lower case; empty if the file has no such text.
std::string lower_text(const GgufFile& file, const char* key);

// The kinds of tokenizers. They keep nothing of the file.
Result<std::unique_ptr<Tokenizer>> make_spm_tokenizer(const GgufFile& file);
Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(const GgufFile& file);
Result<std::unique_ptr<Tokenizer>> make_gemma_tokenizer(const GgufFile& file);
Result<std::unique_ptr<Tokenizer>> make_wordpiece_tokenizer(const GgufFile& file);
Result<std::unique_ptr<Tokenizer>> make_unigram_tokenizer(const GgufFile& file);

// What all kinds have in common: special tokens, segments, pieces.
class VocabularyTokenizer : public Tokenizer {
 public:
  using Tokenizer::encode;
  std::vector<TokenId> encode(std::span<const Segment> segments, bool add_special) const override;
  std::string_view piece(TokenId token) const override {
    return token < pieces_.size() ? pieces_[token] : std::string_view();
  }
  std::string_view vocabulary_text(TokenId token) const override {
    return token < vocabulary_.size() ? vocabulary_.texts[token] : std::string_view();
  }
  std::string decode(std::span<const TokenId> tokens) const override;

  std::uint32_t size() const override { return vocabulary_.size(); }
  bool ends_generation(TokenId token) const override {
    return token < vocabulary_.size() && vocabulary_.ends[token];
  }
  bool is_control(TokenId token) const override {
    return token < vocabulary_.size() && vocabulary_.types[token] == TokenType::kControl;
  }
  std::span<const TokenId> forbidden() const override { return vocabulary_.forbidden; }
  bool adds_bos() const override { return vocabulary_.add_bos; }
  std::optional<TokenId> bos() const override { return vocabulary_.bos; }
  std::optional<TokenId> eos() const override { return vocabulary_.eos; }

 protected:
  explicit VocabularyTokenizer(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

  // Appends the tokens of text that contains no special ones. `first`: it starts the prompt or follows a special
  // token.
  virtual void encode_text(std::string_view text, bool first, std::vector<TokenId>& out) const = 0;

  Vocabulary vocabulary_;
  std::vector<std::string_view> pieces_;  // by token; empty for control and unknown tokens
  bool adds_space_ = false;               // SentencePiece's leading space, which decode() removes
};

}  // namespace bulkhead::model
