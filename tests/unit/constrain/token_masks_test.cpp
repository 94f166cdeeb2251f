// Masks compared with their definition: a token is allowed if its bytes are. The tests compare every token of a
// vocabulary at every step of random texts, for grammars that stress what masks remember.
#include "worker/constrain/token_masks.hpp"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/sample.hpp"
#include "worker/constrain/constraint.hpp"
#include "worker/constrain/regex.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::constrain {
namespace {

// The built-in model's tokens, and some difficult ones: parts of characters and of escapes, and texts that leave a
// string or cross several strings.
std::vector<std::string> vocabulary() {
  std::vector<std::string> pieces;
  const auto file =
      model::GgufFile::open(std::string(BULKHEAD_SOURCE_DIR) + "/worker/builtin/builtin.gguf");
  const auto tokenizer = model::Tokenizer::from_gguf(**file);
  for (std::uint32_t id = 0; id < (*tokenizer)->size(); ++id)
    pieces.emplace_back((*tokenizer)->ends_generation(id) ? "" : (*tokenizer)->piece(id));
  for (int byte = 0; byte < 256; ++byte)
    pieces.emplace_back(1, static_cast<char>(byte));
  for (const char* text : {"\"",
                           "\",",
                           "\",\"",
                           "\":\"",
                           "\"}",
                           "a\"",
                           "ab\":",
                           "abc\",",
                           "\\",
                           "\\u",
                           "\\u0",
                           "\\ud83d",
                           "\\ude00",
                           "\\ud83d\\u",
                           "\\ud83d\\ude00x",
                           "\\n\\n",
                           "\\\"",
                           "x\\",
                           "\xC3",
                           "\xC3\xA9",
                           "\xE4\xB8",
                           "\xAD",
                           "\xB8\xAD",
                           "a\xE4",
                           "\xF0\x9F\x98\x80",
                           "\xF0\x9F",
                           "\x98\x80\"",
                           "12",
                           "12,",
                           "]}",
                           "{\"",
                           "            ",
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                           "abab",
                           "cccc\"",
                           "\"a",
                           "<",
                           "</",
                           "</v",
                           "</v>",
                           ">\n",
                           "</v>\n\n",
                           "a</v>",
                           "a <b",
                           "\n<",
                           "\n</v>",
                           "\xE4\xB8\xAD\xE6\x96\x87",
                           "\xE4\xB8\xAD<",
                           "<\xE4\xB8\xAD",
                           " \xE4\xB8",
                           "\xE4\xB8\xAD</v>",
                           "\xE2\x80\xA8",
                           "\xE2\x80\xA9x",
                           "\xD0\xB6\xD0\xB8",
                           "\xC0\x80",
                           "\xED\xA0\x80",
                           "\xED\x9F\xBF",
                           "\xF4\x90\x80\x80",
                           "\x01\xE0\x9F\xBF",
                           "\x02\xED\xA0\x80",
                           "\x03\xF0\x8F\x80\x80",
                           "\x04\xF4\x90\x80\x80",
                           "\xFFmark"})
    pieces.emplace_back(text);
  return pieces;
}

struct Words {
  std::vector<std::string> pieces;
  std::uint32_t end = 0;
  std::shared_ptr<const TokenTrie> trie;
  explicit Words(std::vector<std::string> texts = vocabulary()) : pieces(std::move(texts)) {
    pieces.emplace_back();  // the token that ends an answer
    end = static_cast<std::uint32_t>(pieces.size() - 1);
    trie = std::make_shared<TokenTrie>(std::vector<std::string_view>(pieces.begin(), pieces.end()));
  }
};

// Writes random texts with the mask, and compares each mask with the bytes of all tokens.
void expect_exact(const std::shared_ptr<const Grammar>& grammar, const Words& words, int texts) {
  std::mt19937 random(17);
  TokenMasks masks(grammar, words.trie, {words.end});
  Automaton plain(grammar);
  std::size_t compared = 0;
  for (int text = 0; text < texts; ++text) {
    ConfigId at = masks.start(), same = plain.start();
    for (int step = 0; step < 60 && !masks.only_end(at); ++step) {
      const TokenMask mask = *masks.mask(at);
      std::vector<std::uint32_t> allowed;
      for (std::uint32_t id = 0; id < words.pieces.size(); ++id) {
        ConfigId next = words.pieces[id].empty() ? kNowhere : same;
        for (const char byte : words.pieces[id])
          next = plain.step(next, static_cast<unsigned char>(byte));
        const bool may = id == words.end ? plain.accepting(same) : next != kNowhere;
        ASSERT_EQ(allows(mask, id), may) << "token " << id << " \"" << words.pieces[id] << '"';
        if (may && id != words.end) allowed.push_back(id);
        ++compared;
      }
      if (allowed.empty()) break;
      // Short tokens are chosen more often; otherwise few strings would reach their bounds.
      std::uint32_t chosen = allowed[random() % allowed.size()];
      for (int i = 0; i < 3; ++i) {
        const std::uint32_t other = allowed[random() % allowed.size()];
        if (words.pieces[other].size() < words.pieces[chosen].size()) chosen = other;
      }
      at = masks.advance(at, words.pieces[chosen]);
      for (const char byte : words.pieces[chosen])
        same = plain.step(same, static_cast<unsigned char>(byte));
      ASSERT_NE(at, kNowhere);
    }
  }
  EXPECT_GT(compared, 0U);
}

// Plain text, as between the tags of a call, with a vocabulary that has the characters of many scripts.
TEST(TokenMasks, OfPlainTextsAreLittleWork) {
  std::vector<std::string> pieces;
  for (int first = 0xE3; first <= 0xEC; ++first) {
    for (int second = 0x80; second <= 0xBF; ++second) {
      for (int third = 0x80; third <= 0xBF; ++third)
        pieces.push_back(
            {static_cast<char>(first), static_cast<char>(second), static_cast<char>(third)});
    }
  }
  const Words words(std::move(pieces));
  const auto compiled = compile_gbnf("root ::= [^<]* \"</value>\"");
  ASSERT_TRUE(compiled.ok());
  TokenMasks masks(compiled->grammar, words.trie, {words.end});
  const TokenMask* mask = masks.mask(masks.start());
  ASSERT_NE(mask, nullptr);
  EXPECT_TRUE(allows(*mask, 0));
  EXPECT_LT(masks.last_work(), 5'000U);
}

// The texts between the tags of a call: until "</v>", and in several ways to write that.
const char* const kFreeTexts[] = {
    "root ::= [^<]* \"</v>\"",
    "root ::= ([^<] | \"<\" [^/])* \"</v>\" \"\\n\"*",
    "root ::= \"<\" [a-z]+ \">\" text \"\\n</v>\" (\"\\n\" root)?\ntext ::= [^<]* (\"<\" [^/] [^<]*)*",
    "root ::= .* ",
    "root ::= ([a-z] [^<]* | [0-9]+) \"</v>\"",
};

// 65,536 tokens of four letters.
std::vector<std::string> many_words() {
  std::vector<std::string> pieces;
  const std::string letters = "abcdefghijklmnop";
  for (const char a : letters) {
    for (const char b : letters) {
      for (const char c : letters) {
        for (const char d : letters)
          pieces.push_back({a, b, c, d});
      }
    }
  }
  return pieces;
}

// Whatever the vocabulary's size, almost all tokens continue such a text as they did before.
TEST(TokenMasks, OfFreeTextsDoNotWalkTheVocabulary) {
  std::vector<std::string> pieces = many_words();
  pieces.insert(pieces.end(), {"<", "</", "</v>", "ab<", "\n"});
  const Words words(std::move(pieces));
  for (const char* text : kFreeTexts) {
    SCOPED_TRACE(text);
    const auto compiled = compile_gbnf(text);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message();
    TokenMasks masks(compiled->grammar, words.trie, {words.end});
    ConfigId at = masks.start();
    for (const char* next : {"<", "a", ">", "bc", "\n", "d", "<", "e", "<"}) {
      const ConfigId behind = masks.advance(at, next);
      if (behind == kNowhere) continue;
      at = behind;
      ASSERT_NE(masks.mask(at), nullptr);
      EXPECT_LT(masks.last_work(), 1'000U) << next;
    }
  }
}

// Returns the grammar of the texts that match the expression and do not contain the tag, which follows them.
std::shared_ptr<const Grammar> before_a_tag(std::string_view expression, std::string_view tag) {
  Grammar made;
  const auto matching = regex_automaton(expression, Match::kWhole);
  const auto without = texts_without(tag);
  if (!matching.ok() || !without.ok()) return nullptr;
  const auto texts = intersect(*matching, *without);
  if (!texts.ok()) return nullptr;
  const NodeId end = made.add(Node{});
  const RuleId text = made.add_rule();
  made.rules[text] = made.leaf(NodeKind::kText, *texts, end);
  made.root = made.add_rule();
  made.rules[made.root] = made.add(NodeKind::kCall, text, made.bytes(tag, end));
  return made.finish().ok() ? std::make_shared<const Grammar>(std::move(made)) : nullptr;
}

// A text of bounded length has a state for each length, and none leads back to itself.
TEST(TokenMasks, OfBoundedTextsDoNotWalkTheVocabulary) {
  const Words words(many_words());
  const auto compiled = compile_regex("[^<]{0,200}");
  ASSERT_TRUE(compiled.ok()) << compiled.error().message();
  // The same as a call's argument, between tags.
  const auto tagged = before_a_tag("[\\s\\S]{0,200}", "\n</v>");
  ASSERT_NE(tagged, nullptr);
  for (const auto& grammar : {compiled->grammar, tagged}) {
    TokenMasks masks(grammar, words.trie, {words.end});
    ConfigId at = masks.start();
    for (int i = 0; i < 200; ++i) {
      const TokenMask* mask = masks.mask(at);
      ASSERT_NE(mask, nullptr);
      EXPECT_EQ(allows(*mask, 0), i <= 196);
      // At the very end, the tokens that are too long must be looked at.
      if (i < 196) {
        EXPECT_LT(masks.last_work(), 800U) << i;
      }
      at = masks.advance(at, "a");
    }
  }
}

TEST(TokenMasks, OfFreeTextsAreWhatTheirTokensBytesSay) {
  const Words words;
  for (const char* text : kFreeTexts) {
    SCOPED_TRACE(text);
    const auto compiled = compile_gbnf(text);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message();
    expect_exact(compiled->grammar, words, 6);
  }
  for (const char* expression :
       {".{0,40}x?", "(?:[a-z ]{1,30}|.{2,5})(!|.{9})", "[^\\n]*\\n[^<]*",
        "(?:[^<]|<[^/])*</v>\\n*", "\\S+( \\S+)*", "[^\\u2028]{2,}x", "(a|[^b]*)c?"}) {
    SCOPED_TRACE(expression);
    const auto compiled = compile_regex(expression);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message();
    expect_exact(compiled->grammar, words, 6);
  }
  for (const char* pattern : {"^.{1,30}$", "^(?:.{5}|[a-f]{0,9})$", "^[^<]*$", "^(?:[^<]|<[^/])*$",
                              "^\\\\S+$", "^[^\\u4e2d]*$", "a.b"}) {
    SCOPED_TRACE(pattern);
    const auto compiled =
        compile_schema(R"({"type": "array", "items": {"type": "string", "pattern": ")" +
                           std::string(pattern) + "\"}}",
                       Strictness::kStrict);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message();
    expect_exact(compiled->grammar, words, 6);
  }
}

// A text that begins with `a` and a text that begins with another character are in different states afterwards. One of
// the two may end where the other may not.
TEST(TokenMasks, OfTextsThatDependOnTheirBeginningAreWhatTheirTokensBytesSay) {
  const Words words;
  for (const char* expression : {"a[^<]*|[^a<][^<]*;", "a[^<]*;|[^a<][^<]*", "[^a<][^<]*",
                                 "a[^<]*|[^a<][^<\\n]*", "a.{2,30}|[^a]*"}) {
    SCOPED_TRACE(expression);
    const auto grammar = before_a_tag(expression, "</v>");
    ASSERT_NE(grammar, nullptr);
    expect_exact(grammar, words, 6);
  }
}

TEST(TokenMasks, AreWhatTheirTokensBytesSay) {
  const Words words;
  for (
      const char* schema : {
          R"({"type": "string"})",
          R"({"type": "string", "minLength": 3, "maxLength": 9})",
          R"({"type": "string", "maxLength": 40})",
          R"({"type": "string", "minLength": 30})",
          R"({"type": "string", "pattern": "^[a-c]+$"})",
          R"({"type": "string", "pattern": "^[a-c]+$", "minLength": 4, "maxLength": 7})",
          R"({"type": "string", "pattern": "a.*b", "maxLength": 6})",
          R"({"type": "string", "pattern": "^(ab)*$", "minLength": 5, "maxLength": 8})",
          R"({"type": "string", "pattern": "[\u4e00-\u9fff\ud83d\ude00]{2}$", "maxLength": 5})",
          R"({"type": "string", "format": "date"})",
          R"({"type": "string", "pattern": "^[^<>]*$", "minLength": 2, "maxLength": 9})",
          R"({"type": "string", "pattern": "^[^<>]*$", "minLength": 3})",
          R"({"type": "string", "pattern": "^[a-z ]+$", "maxLength": 6})",
          R"({"type": "string", "format": "hostname", "maxLength": 12})",
          R"({"type": "string", "format": "email"})",
          R"({"type": "array", "items": {"type": "string", "maxLength": 2}, "maxItems": 3})",
          R"({"type": "object", "properties": {"a": {"type": "string", "minLength": 1, "maxLength": 3},
               "b": {"enum": ["x", "y\"z", 7]}}, "additionalProperties": {"type": "integer"}})",
          R"({"type": "object"})",
          R"({"enum": [{"a": "x", "b": 1}, {"a": "xy", "b": 1.5}, {"a": "x\"", "b": [1, 2]}, {"ab": null},
               [1, {"a": "x"}], [10, "y"], [1.0, "x"], [], {}, "x", 1, [[], {}], [[], []]]})",
          R"({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "string", "pattern": "^x"}]})",
      }) {
    SCOPED_TRACE(schema);
    const auto compiled = compile_schema(schema, Strictness::kStrict);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message();
    expect_exact(compiled->grammar, words, 4);
  }
}

// Compares the trie's facts about its subtrees with all tokens.
TEST(TokenTrie, KnowsTheCharactersOfItsSubtrees) {
  const Words words;
  const std::vector<TokenTrie::Node>& nodes = words.trie->nodes();
  std::size_t whole = 0, broken = 0;
  for (std::uint32_t top = 0; top < nodes.size(); ++top) {
    // A walk from the node to each token below it.
    CharClasses expected = 0;
    std::vector<std::uint32_t> tokens;
    std::vector<std::pair<std::uint32_t, std::string>> open = {{top + nodes[top].subtree, ""}};
    for (std::uint32_t node = top; node < top + nodes[top].subtree; ++node) {
      while (open.back().first <= node)
        open.pop_back();
      const std::string text =
          node == top ? "" : open.back().second + static_cast<char>(nodes[node].byte);
      for (std::uint32_t i = 0; i < nodes[node].tokens; ++i)
        tokens.push_back(words.trie->ids()[nodes[node].first_token + i]);
      open.emplace_back(node + nodes[node].subtree, text);
      if (nodes[node].tokens == 0) continue;
      std::u32string characters;
      if (!decode_utf8(text, characters)) expected |= CharClasses{1} << kNoCharacter;
      for (std::size_t i = 0; i < text.size(); ++i) {
        if ((text[i] & 0xC0) != 0x80)
          expected |= CharClasses{1} << class_of(static_cast<unsigned char>(text[i]));
      }
    }
    EXPECT_TRUE(std::ranges::equal(words.trie->tokens_of(top), tokens));
    EXPECT_EQ(words.trie->below(top), expected) << top;
    ++((expected >> kNoCharacter) != 0 ? broken : whole);
  }
  EXPECT_GT(whole, 100U);
  EXPECT_GT(broken, 3U);
}

TEST(TokenMasks, OfAVocabularyOfBytesAlone) {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte)
    bytes.emplace_back(1, static_cast<char>(byte));
  const Words words(bytes);
  const auto compiled =
      compile_schema(R"({"type": "string", "minLength": 2, "maxLength": 6})", Strictness::kStrict);
  expect_exact(compiled->grammar, words, 30);
}

// The number of ways grows with each character. The search for a mask must end with an error.
TEST(TokenMasks, OfGrammarsThatAreTooAmbiguousAreNone) {
  const Words words;
  int refused = 0;
  for (const char* many : {"{0,20}", "{0,60}", "{0,300}"}) {
    const std::string grammar = std::string("root ::= a") + many + "\na ::= b" + many + " b" +
                                many + "\nb ::= [a-z]" + many + " [a-z]" + many + " [a-z ]";
    const auto gbnf = compile_gbnf(grammar);
    ASSERT_TRUE(gbnf.ok()) << gbnf.error().message();
    TokenMasks masks(gbnf->grammar, words.trie, {words.end});
    ConfigId at = masks.start();
    for (int i = 0; i < 40; ++i) {
      const TokenMask* mask = masks.mask(at);
      EXPECT_LT(masks.last_work(), 4 * TokenMasks::kMostWork);
      at = masks.advance(at, "abcde");
      if (mask != nullptr && at != kNowhere) continue;
      ++refused;
      break;
    }
  }
  EXPECT_GT(refused, 0);
}

// A worker that continues another worker's answer remembers nothing. It must not fail where the first worker did not.
TEST(TokenMasks, FailByTheirWorkAloneWhateverIsRemembered) {
  const Words words;
  const auto grammar =
      compile_gbnf("root ::= a{0,20}\na ::= b{0,20} b{0,20}\nb ::= [a-z]{0,20} [a-z]{0,20} [a-z ]");
  const auto schema = compile_schema(
      R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 30}, "b": {"type": "integer"},
          "c": {"type": "array", "items": {"anyOf": [{"type": "string", "pattern": "^x"}, {"type": "number"}]}}}})",
      Strictness::kStrict);
  const auto free = compile_gbnf(kFreeTexts[2]);
  const struct {
    std::shared_ptr<const Grammar> grammar;
    std::string text;
  } cases[] = {{grammar->grammar, "abcde fghi jklm nopq"},
               {free->grammar, "<ab>a \xE4\xB8\xAD <b>\n</v>\n<c>d</v"},
               {schema->grammar, R"({"a": "some text", "b": 17, "c": [1.5, "xyz", 2]})"}};
  int failed = 0, found = 0;
  for (const auto& each : cases) {
    for (const std::uint64_t most : {30, 120, 500, 4'000}) {
      TokenMasks warm(each.grammar, words.trie, {words.end}, most);
      ConfigId at = warm.start();
      std::set<ConfigId> seen;
      for (std::size_t i = 0; i < each.text.size(); ++i) {
        const TokenMask* mask = warm.mask(at);
        const bool first = mask != nullptr && seen.insert(at).second;
        if (i % test::kStride == 0) {
          TokenMasks cold(each.grammar, words.trie, {words.end}, most);
          const TokenMask* alone =
              cold.mask(cold.advance(cold.start(), std::string_view(each.text).substr(0, i)));
          ASSERT_EQ(mask == nullptr, alone == nullptr) << most << " at " << i;
          if (mask != nullptr) {
            EXPECT_EQ(*mask, *alone);
          }
          if (first) {
            EXPECT_EQ(warm.last_work(), cold.last_work()) << i;
          }
        }
        ++(mask == nullptr ? failed : found);
        at = warm.advance(at, each.text.substr(i, 1));
      }
    }
  }
  EXPECT_GT(failed, 10);
  EXPECT_GT(found, 10);
}

TEST(TokenMasks, OfGrammarsAndExpressionsToo) {
  const Words words;
  for (const char* expression : {"[a-z ]{3,20}[.]", "(a|bc)*d?", ".*", "[^\"]*\"x\""}) {
    SCOPED_TRACE(expression);
    expect_exact(compile_regex(expression)->grammar, words, 4);
  }
  const auto gbnf = compile_gbnf("root ::= item (\",\" item)*\nitem ::= [a-z]+ | \"(\" root \")\"");
  ASSERT_TRUE(gbnf.ok());
  expect_exact(gbnf->grammar, words, 4);
}

}  // namespace
}  // namespace bulkhead::constrain
