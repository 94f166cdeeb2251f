// Masks compared with their definition, for random grammars of all front ends and random vocabularies. At every step of
// random texts, a token must be allowed exactly if its bytes are; an object that remembers nothing must give the same
// mask for the same work; and a limit of work must fail by that work alone.
//
// BULKHEAD_MASK_SEEDS=FIRST:COUNT tries other seeds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/sample.hpp"
#include "tests/unit/constrain/random_grammars.hpp"
#include "worker/constrain/token_masks.hpp"

namespace bulkhead::constrain {
namespace {

// These are no UTF-8, or have a meaning in JSON.
const char* const kPieces[] = {"\xC0\x80",     "\xED\xA0\x80", "\xF4\x90\x80\x80",
                               "\xE0\x80",     "\xF8",         "\xFF",
                               "\\u",          "\\u00",        "\\ud83d",
                               "\\ude00",      "\\ud83d\\",    "\\n",
                               "\\\"",         "\\/",          "\",\"",
                               "\":",          "\": \"",       "\"}",
                               "{\"",          "[\"",          "]}",
                               "true",         "null",         "False",
                               "</v>",         "</",           "\n</parameter>",
                               "</arg_value>", "e</",          "  ",
                               "1e",           "0.",           "-1",
                               "00",           "word",         " word"};

// Returns a text that the grammar allows, or the beginning of one.
std::string sample(Source& from, const std::shared_ptr<const Grammar>& grammar) {
  Automaton automaton(grammar);
  ConfigId at = automaton.start();
  std::string out;
  const std::size_t most = 20 + from.below(100);
  while (out.size() < most) {
    std::vector<unsigned char> usual, all;
    for (int byte = 0; byte < 256; ++byte) {
      if (automaton.step(at, static_cast<unsigned char>(byte)) == kNowhere) continue;
      all.push_back(static_cast<unsigned char>(byte));
      if (std::string_view("ae0 \"<>/{}:,]\n").find(static_cast<char>(byte)) != std::string::npos)
        usual.push_back(static_cast<unsigned char>(byte));
    }
    if (all.empty()) break;
    const unsigned char byte = from.of(usual.empty() || from.one_in(4) ? all : usual);
    out += static_cast<char>(byte);
    at = automaton.step(at, byte);
  }
  return out;
}

// The last token ends an answer.
std::vector<std::string> vocabulary(Source& from, const Made& made, bool all_bytes) {
  std::vector<std::string> pieces;
  for (int byte = 0; byte < 256; ++byte) {
    if (all_bytes || from.one_in(2)) pieces.emplace_back(1, static_cast<char>(byte));
  }
  for (int i = 0; i < 80; ++i)
    pieces.push_back(from.word(5));
  // All words of few letters: whole subtrees of the trie.
  std::vector<std::string> texts, few = {"e", from.of(std::vector<const char*>{"a", "0", "x"}),
                                         from.one_in(2) ? "<" : from.letter()};
  for (int i = 0; i < 3; ++i)
    texts.push_back(sample(from, made.grammar));
  const std::string behind =
      !made.behind.empty() ? made.behind : texts[1].substr(texts[1].size() / 2, 8);
  if (!texts[0].empty() && from.one_in(2))
    few.push_back(texts[0].substr(from.below(texts[0].size()), 1 + from.below(6)));
  std::vector<std::string> words = {""};
  for (std::size_t begin = 0, length = 0; length < 4; ++length) {
    const std::size_t end = words.size();
    for (; begin < end; ++begin) {
      for (const std::string& letter : few)
        words.push_back(words[begin] + letter);
    }
  }
  for (const std::string& word : words) {
    if (!from.one_in(8)) pieces.push_back(word);
  }
  for (int i = 0; i < 40; ++i)
    pieces.push_back(from.word(2) + from.of(kPieces) + (from.one_in(2) ? from.word(2) : ""));
  pieces.insert(pieces.end(), std::begin(kPieces), std::end(kPieces));
  for (const std::string& text : texts) {
    for (int i = 0; i < 20 && !text.empty(); ++i)
      pieces.push_back(text.substr(from.below(text.size()), 1 + from.below(14)));
  }
  // The same after an escape, after the rest of a character, or after the end of a string.
  const std::string prefix = from.of(std::vector<const char*>{
      "\\n", "\\u00e9", "\\ud83d\\ude00", "\xAD", "\xB8\xAD", "\x80", "\",\"", "\": \""});
  for (std::size_t i = 0; i < words.size() && words[i].size() < 4; ++i)
    pieces.push_back(prefix + words[i]);
  for (int i = 0; i < 80 && !behind.empty(); ++i) {
    const std::string tail = behind + from.letter();
    pieces.push_back(from.of(words) + tail.substr(0, 1 + from.below(tail.size())));
  }
  // Some tokens have the same bytes, end within a character, or write nothing.
  for (int i = 0; i < 30; ++i) {
    std::string again = pieces[from.below(pieces.size())];
    if (from.one_in(2)) again.resize(from.below(again.size() + 1));
    pieces.push_back(std::move(again));
  }
  std::vector<std::string> mixed;
  for (; !pieces.empty(); pieces.pop_back()) {
    std::swap(pieces[from.below(pieces.size())], pieces.back());
    mixed.push_back(std::move(pieces.back()));
  }
  mixed.emplace_back();
  return mixed;
}

// ---- the comparison ----

// Returns whether a text may begin with these bytes, from the automaton over characters alone.
bool may_begin(const Dfa& dfa, std::string_view text) {
  std::uint32_t state = 0;
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    std::u32string code;
    if (text.size() < length) {
      // The first and the last character with this beginning.
      std::string low(text), high(text);
      const unsigned char least = text.size() > 1 ? 0x80
                                  : first == 0xE0 ? 0xA0
                                  : first == 0xF0 ? 0x90
                                                  : 0x80;
      const unsigned char most = text.size() > 1 ? 0xBF
                                 : first == 0xED ? 0x9F
                                 : first == 0xF4 ? 0x8F
                                                 : 0xBF;
      low += static_cast<char>(least), high += static_cast<char>(most);
      low.resize(length, '\x80'), high.resize(length, '\xBF');
      std::u32string from, to;
      return decode_utf8(low, from) && decode_utf8(high, to) && dfa.any_in(state, from[0], to[0]);
    }
    if (!decode_utf8(text.substr(0, length), code)) return false;
    state = dfa.step(state, code[0]);
    if (state == kDead) return false;
    text.remove_prefix(length);
  }
  return true;
}

struct Tally {
  std::size_t grammars = 0, masks = 0, allowed = 0, refused = 0, none = 0, too_much = 0;
};

class Comparison {
 public:
  Comparison(Source& from, const Made& made, Tally& tally)
      : from_(from),
        made_(made),
        tally_(tally),
        all_bytes_(!from.one_in(3)),
        pieces_(vocabulary(from, made, all_bytes_)),
        end_(static_cast<std::uint32_t>(pieces_.size() - 1)),
        trie_(std::make_shared<TokenTrie>(
            std::vector<std::string_view>(pieces_.begin(), pieces_.end()))),
        limit_(from.of(std::vector<std::uint64_t>{5, 20, 60, 200, 800})),
        warm_(made.grammar, trie_, {end_}),
        limited_(made.grammar, trie_, {end_}, limit_),
        plain_(made.grammar, trie_, {end_}) {}

  void walk(std::size_t steps) {
    std::string text;
    ConfigId at = warm_.start(), limited = limited_.start(), plain = plain_.start();
    for (std::size_t step = 0; step < steps && !warm_.only_end(at); ++step) {
      std::vector<std::uint32_t> allowed;
      ASSERT_NO_FATAL_FAILURE(compare(text, at, limited, plain, allowed))
          << "behind \"" << text << '"';
      if (allowed.empty()) return;
      std::uint32_t chosen = from_.of(allowed);
      for (std::size_t i = from_.below(4); i > 0; --i) {
        const std::uint32_t other = from_.of(allowed);
        if (pieces_[other].size() < pieces_[chosen].size()) chosen = other;
      }
      text += pieces_[chosen];
      at = warm_.advance(at, pieces_[chosen]);
      limited = limited_.advance(limited, pieces_[chosen]);
      plain = plain_.advance(plain, pieces_[chosen]);
    }
  }

 private:
  void compare(const std::string& text, ConfigId at, ConfigId limited, ConfigId plain,
               std::vector<std::uint32_t>& allowed) {
    TokenMasks cold(made_.grammar, trie_, {end_});
    const TokenMask* alone = cold.mask(cold.advance(cold.start(), text));
    const TokenMask* mask = warm_.mask(at);
    const TokenMask* within = limited_.mask(limited);
    ASSERT_EQ(mask == nullptr, alone == nullptr);
    const std::uint64_t work = cold.last_work();
    if (work != limit_) {
      ASSERT_EQ(within == nullptr, work > limit_) << work << " of " << limit_;
    }
    ++(within == nullptr ? tally_.too_much : tally_.masks);
    if (mask == nullptr) return;
    ASSERT_EQ(*mask, *alone);
    if (within != nullptr) {
      ASSERT_EQ(*mask, *within);
    }
    if (seen_.insert(at).second) {
      ASSERT_EQ(warm_.last_work(), work);
    }
    ASSERT_EQ(allows(*mask, end_), plain_.accepting(plain));
    for (std::uint32_t id = 0; id < end_; ++id) {
      const std::string& piece = pieces_[id];
      const bool may = !piece.empty() && plain_.advance(plain, piece) != kNowhere;
      ASSERT_EQ(allows(*mask, id), may) << "token " << id << " " << testing::PrintToString(piece);
      if (made_.whole != nullptr && !piece.empty()) {
        ASSERT_EQ(may, may_begin(*made_.whole, text + piece)) << piece;
      }
      ++(may ? tally_.allowed : tally_.refused);
      if (may) allowed.push_back(id);
    }
    // With all bytes as tokens, each text can be completed.
    if (all_bytes_) {
      ASSERT_TRUE(!allowed.empty() || plain_.accepting(plain));
    }
  }

  Source& from_;
  const Made& made_;
  Tally& tally_;
  const bool all_bytes_;
  const std::vector<std::string> pieces_;
  const std::uint32_t end_;
  const std::shared_ptr<const TokenTrie> trie_;
  const std::uint64_t limit_;
  TokenMasks warm_, limited_, plain_;
  std::set<ConfigId> seen_;
};

TEST(RandomMasks, AreWhatTheirTokensBytesSay) {
  std::uint64_t first = 1, count = test::rounds(50);
  if (const char* seeds = std::getenv("BULKHEAD_MASK_SEEDS"); seeds != nullptr) {
    char* end = nullptr;
    first = std::strtoull(seeds, &end, 10);
    if (*end == ':') count = std::strtoull(end + 1, nullptr, 10);
  }
  Tally tally;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Source from(seed);
    const Made made = random_grammar(from);
    if (made.grammar == nullptr) {
      ++tally.none;
      continue;
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ", grammar " + made.text);
    ++tally.grammars;
    Comparison comparison(from, made, tally);
    for (int texts = 0; texts < 4; ++texts) {
      comparison.walk(12);
      if (HasFatalFailure()) return;
    }
  }
  std::printf(
      "%zu grammars (%zu could not be made), %zu masks and %zu beyond a limit, %zu tokens allowed "
      "and %zu not\n",
      tally.grammars, tally.none, tally.masks, tally.too_much, tally.allowed, tally.refused);
  EXPECT_GT(tally.grammars, count / 2);
  EXPECT_GT(tally.allowed, 0U);
}

}  // namespace
}  // namespace bulkhead::constrain
