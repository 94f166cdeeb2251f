// Special tokens that take the white space beside them. A GGUF file doesn't say which tokens do; the tokenizer
// goes by the names in the file.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model {
namespace {

using ::testing::ElementsAre;

struct Names {
  std::string architecture = "llama";
  std::string name = "a model";
  std::string rule = "default";
};

// 0: <unk>, 1: <s>, 2: </s>, 3: h, 4: a space, 5: a line's end, 6: <|user|>, 7: <|assistant|>, 8: <|endoftext|>,
// 9: <mask>, 10: [MASK]
std::unique_ptr<Tokenizer> tokenizer_of(const Names& names) {
  testing::GgufBuilder file;
  file.text("general.architecture", names.architecture).text("general.name", names.name);
  file.text("tokenizer.ggml.model", "llama").text("tokenizer.ggml.pre", names.rule);
  const std::vector<std::string> tokens{"<unk>",         "<s>",    "</s>",     "h",
                                        "\u2581",        "\n",     "<|user|>", "<|assistant|>",
                                        "<|endoftext|>", "<mask>", "[MASK]"};
  file.strings("tokenizer.ggml.tokens", tokens);
  file.numbers("tokenizer.ggml.token_type", ValueType::kInt32,
               std::vector<std::int32_t>{2, 3, 3, 1, 1, 1, 3, 4, 3, 3, 3});
  file.numbers("tokenizer.ggml.scores", ValueType::kFloat32, std::vector<float>(tokens.size()));
  file.boolean("tokenizer.ggml.add_space_prefix", false);
  const std::string bytes = file.bytes();
  const auto gguf = testing::open_bytes(bytes);
  auto made = Tokenizer::from_gguf(**gguf);
  EXPECT_TRUE(made.ok()) << made.error().message();
  return *std::move(made);
}

// Phi-3's tokens between turns take the line break that its template writes after them. Some files give Phi-3
// another architecture; the tokenizer then finds it by the model's name.
TEST(SpecialBlanks, AfterPhi3sTokensAreTaken) {
  const Segment parts[] = {{"<|user|>\n", true}, {"", false}, {" \n", false}, {"h\n", false}};
  for (const Names& names : {Names{.architecture = "phi3"}, Names{.name = "Phi-3-mini-4k"},
                             Names{.name = "my-phi3-tuned"}}) {
    const auto tokenizer = tokenizer_of(names);
    const auto ids = [&](std::string_view text) { return tokenizer->encode(text, false, true); };
    EXPECT_THAT(ids("\n<|user|>\n \nh\n<|assistant|>\n"), ElementsAre(5, 6, 3, 5, 7));
    EXPECT_THAT(ids("</s>\n<|assistant|>\n<s>\n"), ElementsAre(2, 7, 1, 5));
    EXPECT_THAT(ids("<unk>\n<|endoftext|>\n"), ElementsAre(0, 5, 8, 5));
    EXPECT_THAT(tokenizer->encode(parts, false), ElementsAre(6, 3, 5)) << names.name;
  }
  const auto other = tokenizer_of({});
  EXPECT_THAT(other->encode("<|user|>\nh", false, true), ElementsAre(6, 5, 3));
  EXPECT_THAT(other->encode(parts, false), ElementsAre(6, 5, 4, 5, 3, 5));
}

TEST(SpecialBlanks, BeforeTheMasksOfSomeEncodersAreTaken) {
  const Segment parts[] = {{"h \n", true}, {" ", false}, {"<mask> h [MASK]", true}};
  for (const Names& names : {Names{.architecture = "nomic-bert-moe"},
                             Names{.architecture = "jina-bert-v3"}, Names{.rule = "jina-v2-de"}}) {
    const auto tokenizer = tokenizer_of(names);
    EXPECT_THAT(tokenizer->encode("h \n<mask> h [MASK]", false, true),
                ElementsAre(3, 9, 4, 3, 4, 10));
    EXPECT_THAT(tokenizer->encode(parts, false), ElementsAre(3, 9, 4, 3, 4, 10));
    EXPECT_THAT(tokenizer->encode(" \n<mask>", false, true), ElementsAre(9));
  }
  EXPECT_THAT(tokenizer_of({.name = "Modern-BERT-base"})->encode(parts, false),
              ElementsAre(3, 4, 5, 4, 9, 4, 3, 10));
  EXPECT_THAT(tokenizer_of({})->encode(parts, false), ElementsAre(3, 4, 5, 4, 9, 4, 3, 4, 10));
}

}  // namespace
}  // namespace bulkhead::model
