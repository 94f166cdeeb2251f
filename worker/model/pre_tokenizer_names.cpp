// The names that files give their pre-tokenizers (tokenizer.ggml.pre), and the rule of each. The expressions come
// from the tokenizer.json, or the program, that a vocabulary's maker publishes, or from llama.cpp's table of them.
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "worker/model/pre_tokenizer.hpp"
#include "worker/model/tokenizer_check.hpp"
#include "worker/model/tokenizer_json.hpp"

namespace bulkhead::model {
namespace {

// What a name stands for: a rule, or expressions.
struct NamedRule {
  PreTokenizer rule = PreTokenizer::kExpressions;
  bool whole_words_first = false;
  bool adds_bos = false;
  std::vector<std::string> expressions = {};
};
const NamedRule kGpt2Row{PreTokenizer::kGpt2};
const NamedRule kLlama3Row{PreTokenizer::kLlama3, true, true};
const NamedRule kPlainLlama3Row{PreTokenizer::kLlama3};
const NamedRule kQwen2Row{PreTokenizer::kQwen2};
const NamedRule kDigitsRow{PreTokenizer::kDigitsThenGpt2};
const NamedRule kDefaultRow{PreTokenizer::kDefault};
// As kQwen2, but a mark belongs to the letters before it.
const NamedRule kQwen35Row{
    .expressions = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
                    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
// A word ends before a capital letter that follows small letters; numbers are cut into threes.
const std::string kO200kWords =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const NamedRule kO200kRow{.expressions = {kO200kWords}};
const NamedRule kGraniteEmbeddingRow{.whole_words_first = true, .expressions = {kO200kWords}};
// Returns expressions that cut a number into threes from its right end: the first one cuts out whole numbers. The
// makers' expression looks ahead to a number's end at every third digit, which takes quadratic time. Here the second
// expression cuts off the one or two digits that are left over, and the third one cuts what is all digits into threes.
std::vector<std::string> threes_from_the_right(const std::string& numbers,
                                               const std::string& digit) {
  const std::string three = digit + "{3}";
  return {numbers, "^(?:" + three + R"()++\z|^)" + digit + "{1,2}(?=(?:" + three + R"()++\z))",
          "^" + three + "(?=(?:" + three + R"()*+\z)|(?!^)\G)" + three};
}
std::vector<std::string> with_more(std::vector<std::string> first,
                                   const std::vector<std::string>& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}
// A number that a letter follows is cut from its left end. PCRE2's \b is no match for the maker's: it takes all of
// \p{N} for parts of words, and marks for none.
const NamedRule kTinyAyaRow{
    .expressions =
        with_more(threes_from_the_right(R"((?<!\d)\d++(?![\p{Alphabetic}\p{M}\p{Pc}]))", R"(\d)"),
                  {kO200kWords})};
// The same without contractions, and each digit is a word.
const NamedRule kTekkenRow{
    PreTokenizer::kExpressions,
    true,
    true,
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
     R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
// SuperBPE (Liu et al. 2025, arXiv 2503.13423): words of its vocabulary go over blanks, so only numbers are cut.
const NamedRule kSuperBpeRow{.expressions = threes_from_the_right(R"(\p{N}+)", R"(\d)")};
const std::string kDeepseek3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const NamedRule kDeepseek3Row{
    .expressions = {R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
                    kDeepseek3Words}};
// Trinity's, as llama.cpp has it: runs of East Asian letters, and of some of South East Asia, are words of their own.
const NamedRule kAfmoeRow{
    .expressions = with_more(
        threes_from_the_right(R"(\p{N}+)", R"(\p{N})"),
        {R"([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF})"
         R"(\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF})"
         R"(\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+)",
         kDeepseek3Words})};
const NamedRule kDeepseekCoderRow{
    .expressions = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                    R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)", R"(\p{N})"}};

// Letters that have a case, as DeepSeek's first vocabulary lists them. The small letters of Armenian and Georgian are
// missing there.
const std::string kCasedLetters =
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A})"
    R"(\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556})"
    R"(\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF})"
    R"(\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D})"
    R"(\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D})"
    R"(\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})"
    R"(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})"
    R"(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3})"
    R"(\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF})"
    R"(\x{1E900}-\x{1E943})";
const NamedRule kDeepseekLlmRow{
    .expressions = {
        R"([\r\n])", R"(\s?[)" + kCasedLetters + "]+",
        R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)",
        R"(\s+$)", R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)", R"(\p{N})"}};
// As kDefault, but with the backtick as punctuation.
const NamedRule kFalconRow{
    .expressions = {R"([\p{P}$+<=>^~|`]+)",
                    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                    R"(\p{N}+)", R"([0-9][0-9][0-9])"}};
// Words end at spaces and, in some languages, at the marks between sentences; BLOOM cuts nothing else.
const std::string kBetweenMarks =
    R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)";
const NamedRule kBloomRow{.expressions = {kBetweenMarks}};
const NamedRule kVikingRow{.expressions = {kBetweenMarks, R"(\p{N})"}};
// As kO200kRow, but runs of Chinese characters are words of their own, and no slash follows symbols.
const NamedRule kKimiRow{
    .expressions = {R"(\p{Han}+|)"
                    R"([^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*)"
                    R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                    R"([^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+)"
                    R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
// Words as in kO200kRow, but each digit is a word, and runs of Korean, of wide punctuation, of Bopomofo, and of
// Chinese and Japanese are cut first.
const NamedRule kYoutuRow{
    PreTokenizer::kExpressions,
    true,
    false,
    {R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|)"
     R"([\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A})"
     R"(\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|)"
     R"([\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
// As kQwen2, but line breaks don't belong to the symbols before them.
const NamedRule kSeedCoderRow{
    .expressions = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                    R"( ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)"}};

// As kLlama3, but numbers are cut out first, so blanks before them stay together.
const NamedRule kMiniCpm5Row{
    PreTokenizer::kExpressions,
    true,
    false,
    {R"(\p{N}{1,3})", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+|)"
                      R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};

// As kQwen2, but words with single blanks between them stay together, letters keep their marks, and only one line break
// or slash belongs to the symbols before it.
const NamedRule kExaoneMoeRow{
    .expressions = {
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*+(?: \p{L}\p{M}*+)*+)++|\p{N}|)"
        R"( ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)"}};

struct Named {
  const char* name;
  const NamedRule& rule;
};
// Several vocabularies may share one rule under different names.
const Named kNamed[] = {
    {"gpt-2", kGpt2Row},
    {"llama-bpe", kLlama3Row},
    {"qwen2", kQwen2Row},
    {"default", kDefaultRow},
    {"llama3", kLlama3Row},
    {"llama-v3", kLlama3Row},
    {"falcon3", kLlama3Row},
    {"pixtral", kLlama3Row},
    {"lfm2", kLlama3Row},
    {"falcon-h1", kLlama3Row},
    {"midm-2.0", kLlama3Row},
    {"jina-v5-nano", kLlama3Row},
    {"smaug-bpe", kPlainLlama3Row},
    {"dbrx", kPlainLlama3Row},
    {"glm4", kPlainLlama3Row},
    {"chatglm-bpe", kPlainLlama3Row},
    {"deepseek-r1-qwen", kQwen2Row},
    {"f2llmv2", kQwen2Row},
    {"megrez", kQwen2Row},
    {"stablelm2", kQwen2Row},
    {"hunyuan", kQwen2Row},
    {"grok-2", kQwen2Row},
    {"kormo", kQwen2Row},
    {"solar-open", kQwen2Row},
    {"phi-2", kGpt2Row},
    {"mpt", kGpt2Row},
    {"olmo", kGpt2Row},
    {"exaone4", kGpt2Row},
    {"jais", kGpt2Row},
    {"trillion", kGpt2Row},
    {"gigachat", kGpt2Row},
    {"a.x-4.0", kGpt2Row},
    {"mellum", kGpt2Row},
    {"granite-docling", kGpt2Row},
    {"roberta-bpe", kGpt2Row},
    {"modern-bert", kGpt2Row},
    {"smollm", kDigitsRow},
    {"starcoder", kDigitsRow},
    {"refact", kDigitsRow},
    {"codeshell", kDigitsRow},
    {"command-r", kDigitsRow},
    {"exaone", kDigitsRow},
    {"minerva-7b", kDigitsRow},
    {"qwen35", kQwen35Row},
    {"gpt-4o", kO200kRow},
    {"llama4", kO200kRow},
    {"kanana2", kO200kRow},
    {"minimax-m2", kO200kRow},
    {"granite-embed-multi-97m", kGraniteEmbeddingRow},
    {"tekken", kTekkenRow},
    {"deepseek-v3", kDeepseek3Row},
    {"hunyuan-dense", kDeepseek3Row},
    {"joyai-llm", kDeepseek3Row},
    {"deepseek-coder", kDeepseekCoderRow},
    {"deepseek-llm", kDeepseekLlmRow},
    {"falcon", kFalconRow},
    {"bloom", kBloomRow},
    {"poro-chat", kBloomRow},
    {"gpt3-finnish", kBloomRow},
    {"viking", kVikingRow},
    {"kimi-k2", kKimiRow},
    {"youtu", kYoutuRow},
    {"bailingmoe", kQwen2Row},
    {"bailingmoe2", kQwen2Row},
    {"llada-moe", kQwen2Row},
    {"seed-coder", kSeedCoderRow},
    {"tiny_aya", kTinyAyaRow},
    {"afmoe", kAfmoeRow},
    {"minicpm5", kMiniCpm5Row},
    {"exaone-moe", kExaoneMoeRow},
    {"mellum2", kDigitsRow},
    {"superbpe", kSuperBpeRow},
};

}  // namespace

Result<PreTokenizerInfo> find_pre_tokenizer(std::string_view name) {
  const auto* found = std::find_if(std::begin(kNamed), std::end(kNamed),
                                   [name](const Named& each) { return name == each.name; });
  if (found != std::end(kNamed)) {
    const NamedRule& rule = found->rule;
    PreTokenizerInfo info{rule.rule, rule.whole_words_first, rule.adds_bos, nullptr};
    if (rule.rule == PreTokenizer::kExpressions) {
      BULKHEAD_TRY(info.expressions, Expressions::compile(rule.expressions));
    }
    return info;
  }
  std::string list;
  for (const Named& each : kNamed)
    list += (list.empty() ? "" : ", ") + std::string(each.name);
  return Error(ErrorCode::kUnsupported, "tokenizer.ggml.pre \"" + std::string(name.substr(0, 64)) +
                                            "\" is not supported; supported are: " + list);
}

Result<PreTokenizerInfo> pre_tokenizer_of(const GgufFile& file) {
  BULKHEAD_TRY(const auto name, file.get_string("tokenizer.ggml.pre"));
  auto rule = find_pre_tokenizer(name.value_or("default"));
  if (rule.ok()) return rule;
  BULKHEAD_TRY(const auto own, file.get_string("tokenizer.huggingface.json"));
  if (!own) return rule.error().within(file.name());
  rule = pre_tokenizer_of_json(*own);
  if (!rule.ok()) return rule.error().within(file.name());
  return rule;
}

}  // namespace bulkhead::model
