#include "worker/model/chat_template.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"

namespace bulkhead::model {
namespace {

using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::open_bytes;

Result<std::string> rendered(std::string_view source, const std::vector<ChatTurn>& turns) {
  GgufBuilder builder;
  builder.text("tokenizer.chat_template", source);
  const std::string bytes = builder.bytes();
  auto file = open_bytes(bytes);
  if (!file.ok()) return file.error();
  auto chat = ChatTemplate::from_gguf(**file);
  if (!chat.ok()) return chat.error();
  auto pieces = chat->render(turns);
  if (!pieces.ok()) return pieces.error();
  std::string text;
  for (const RenderedPiece& piece : *pieces)
    text += piece.text;
  return text;
}

const std::vector<ChatTurn> kPlain = {{"user", "Hi"}, {"assistant", "Hello."}, {"user", "Bye"}};
const std::vector<ChatTurn> kSystem = {
    {"system", "Be kind."}, {"user", "Hi"}, {"assistant", "Hello."}, {"user", "Bye"}};

constexpr char kQwen25[] =
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0]['role'] == 'system' %}{{- "
    "messages[0]['content'] }}{%- else %}{{- 'You are Qwen, created by Alibaba Cloud. You are a "
    "helpful "
    "assistant.' }}{%- endif %}{%- else %}{%- if messages[0]['role'] == 'system' %}{{- "
    "'<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}{%- else %}{{- "
    "'<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
    "assistant.<|im_end|>\\n' }}{%- endif %}{%- endif %}";

TEST(ChatTemplate, ChatMlWithTheFilesOwnSystemText) {
  EXPECT_EQ(rendered(kQwen25, kPlain).value(),
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
            "assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello."
            "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(
      rendered(kQwen25, kSystem).value(),
      "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>"
      "assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, Qwen3ForcesNoSystemAndQuotesAnswersWithoutThinking) {
  constexpr char kQwen3[] =
      "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- set content = "
      "message.content.split('</think>')[-1].lstrip('\\n') %}{{- '<|im_start|>assistant\\n' }}";
  EXPECT_EQ(
      rendered(kQwen3,
               {{"user", "Hi"}, {"assistant", "<think>\nhm\n</think>\n\nHello."}, {"user", "Bye"}})
          .value(),
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\n"
      "Bye<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, Llama3) {
  constexpr char kLlama3[] =
      "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
      "message['content'] | trim + '<|eot_id|>' %}";
  EXPECT_EQ(
      rendered(kLlama3, kSystem).value(),
      "<|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|><|start_header_id|>user"
      "<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello."
      "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>"
      "assistant<|end_header_id|>\n\n");
  const std::string later =
      std::string(kLlama3) + "{{- \"Cutting Knowledge Date: December 2023\\n\" }}";
  constexpr char kDates[] = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  EXPECT_THAT(rendered(later, kPlain).value(),
              ::testing::StartsWith("<|start_header_id|>system<|end_header_id|>\n\n" +
                                    std::string(kDates) + "<|eot_id|><|start_header_id|>user"));
  EXPECT_THAT(rendered(later, kSystem).value(),
              ::testing::StartsWith("<|start_header_id|>system<|end_header_id|>\n\n" +
                                    std::string(kDates) + "Be kind.<|eot_id|>"));
}

TEST(ChatTemplate, Llama2) {
  constexpr char kLlama2[] =
      "{{ bos_token + '[INST] ' + '<<SYS>>\\n' + content.strip() + ' [/INST]' }}";
  EXPECT_EQ(rendered(kLlama2, kPlain).value(),
            "[INST] Hi [/INST] Hello. </s><s>[INST] Bye [/INST]");
  EXPECT_EQ(rendered(kLlama2, kSystem).value(),
            "[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST] Hello. </s><s>[INST] Bye [/INST]");
}

TEST(ChatTemplate, MistralGenerations) {
  EXPECT_EQ(rendered("{{ '[INST] ' + message['content'] + ' [/INST]' }}", kPlain).value(),
            "[INST] Hi [/INST]Hello.</s>[INST] Bye [/INST]");
  EXPECT_EQ(rendered("{{ ' [INST] ' + system_message + '[/INST]' }}", kPlain).value(),
            " [INST] Hi [/INST] Hello.</s> [INST] Bye [/INST]");
  EXPECT_EQ(rendered("{{ '[AVAILABLE_TOOLS] ' }}{{ '[INST] ' }}", kPlain).value(),
            "[INST] Hi[/INST] Hello.</s>[INST] Bye[/INST]");
  EXPECT_EQ(rendered("{{ \"[AVAILABLE_TOOLS]\" }}{{ \"[INST]\" }}", kPlain).value(),
            "[INST]Hi[/INST]Hello.</s>[INST]Bye[/INST]");
  EXPECT_EQ(rendered("{{ '[SYSTEM_PROMPT] ' }}{{ '[INST] ' }}", kSystem).value(),
            "[SYSTEM_PROMPT] Be kind.[/SYSTEM_PROMPT][INST] Hi[/INST] Hello.</s>[INST] Bye[/INST]");
}

TEST(ChatTemplate, GemmaMergesTheSystemTextIntoTheFirstTurn) {
  constexpr char kGemma[] =
      "{{ '<start_of_turn>' + role + '\\n' + content | trim + '<end_of_turn>\\n' }}";
  EXPECT_EQ(rendered(kGemma, kSystem).value(),
            "<start_of_turn>user\nBe "
            "kind.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
            "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n");
}

TEST(ChatTemplate, UnknownFormsPointToCompletions) {
  EXPECT_THAT(rendered("{{ '### Human: ' }}", kPlain).error().message(),
              HasSubstr("/v1/completions"));
  EXPECT_EQ(rendered("{{ '### Human: ' }}", kPlain).error().code(), ErrorCode::kUnsupported);
}

TEST(ChatTemplate, ImpossibleOrdersAreTheCallersError) {
  constexpr char kGemma[] = "<start_of_turn>";
  for (const std::vector<ChatTurn>& turns : {std::vector<ChatTurn>{},
                                             {{"assistant", "x"}},
                                             {{"user", "x"}, {"user", "y"}},
                                             {{"user", "x"}, {"assistant", "y"}},
                                             {{"system", "x"}},
                                             {{"wizard", "x"}}}) {
    const auto result = rendered(kGemma, turns);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(ChatTemplate, UserContentIsNeverASpecialPiece) {
  GgufBuilder builder;
  builder.text("tokenizer.chat_template", kQwen25);
  const std::string bytes = builder.bytes();
  auto file = open_bytes(bytes);
  const auto chat = ChatTemplate::from_gguf(**file);
  ASSERT_TRUE(chat.ok());
  const std::vector<ChatTurn> turns = {{"user", "<|im_end|>"}};
  const auto pieces = chat->render(turns);
  ASSERT_TRUE(pieces.ok());
  for (const RenderedPiece& piece : *pieces) {
    if (piece.text == "<|im_end|>") {
      EXPECT_FALSE(piece.special);
    }
  }
}

}  // namespace
}  // namespace bulkhead::model
