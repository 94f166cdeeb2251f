// Files as other converters and other checkpoints make them: with tensors that change nothing, and
// with keys and tensors in another spelling.
#include "tests/unit/model/converted_files.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/gguf_builder.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/template_file.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::model {
namespace {

using testing::GgufBuilder;
using testing::has_none;
using ::testing::HasSubstr;
using testing::keys_of;
using testing::open_bytes;
using testing::read;
using testing::refusal_of;
using testing::with_tensors;

// Gemma 4 E2B's and E4B's first checkpoints have matrices of keys and values in layers that use
// those of others.
TEST(ConvertedFiles, HaveKeysOfGemma4sLayersThatShareKeys) {
  GgufBuilder file = keys_of("gemma4", 3);
  file.u32("gemma4.attention.key_length", 16).u32("gemma4.attention.value_length", 16);
  file.numbers<std::uint8_t>("gemma4.attention.sliding_window_pattern", ValueType::kBool,
                             {0, 0, 0});
  file.u32("gemma4.attention.shared_kv_layers", 1);
  file = with_tensors(file, has_none);
  file.tensor("blk.2.attn_k.weight", {32, 16}).tensor("blk.2.attn_v.weight", {32, 16});
  file.tensor("blk.2.attn_k_norm.weight", {16});
  read(file, [](const ModelGraph& graph) {
    EXPECT_EQ(graph.kv.size(), 2U);
    for (const TensorRow& row : graph.tensors)
      EXPECT_THAT(row.name, ::testing::Not(::testing::StartsWith("blk.2.attn_k")));
  });
  // Another layer's tensors that nothing reads change the result.
  file.tensor("blk.2.attn_q.bias", {32});
  EXPECT_THAT(refusal_of(file), HasSubstr("tensor blk.2.attn_q.bias takes part in a computation"));
}

// The keys that llama.cpp writes for what a model doesn't have when it saves one
// (llama_model_save_to_file), as llama-finetune does.
void add_unset_keys(GgufBuilder& file, const std::string& prefix) {
  const auto absent = [&](const std::string& key) {
    return std::ranges::find(file.metadata, key, &std::pair<std::string, std::string>::first) ==
           file.metadata.end();
  };
  for (const char* const name : {"leading_dense_block_count",
                                 "expert_feed_forward_length",
                                 "expert_shared_feed_forward_length",
                                 "expert_count",
                                 "expert_used_count",
                                 "expert_shared_count",
                                 "expert_group_count",
                                 "expert_group_used_count",
                                 "expert_gating_func",
                                 "moe_every_n_layers",
                                 "nextn_predict_layers",
                                 "pooling_type",
                                 "interleave_moe_layer_step",
                                 "attention.q_lora_rank",
                                 "attention.kv_lora_rank",
                                 "attention.sliding_window",
                                 "attention.temperature_length",
                                 "attention.key_length_mla",
                                 "attention.value_length_mla",
                                 "attention.recurrent_layers",
                                 "ssm.inner_size",
                                 "ssm.conv_kernel",
                                 "ssm.state_size",
                                 "ssm.time_step_rank",
                                 "ssm.group_count",
                                 "kda.head_dim",
                                 "shortconv.l_cache",
                                 "dense_2_feat_out"}) {
    if (absent(prefix + name)) file.u32(prefix + name, 0);
  }
  for (const char* const name :
       {"expert_weights_scale", "logit_scale", "residual_scale", "embedding_scale",
        "attention.max_alibi_bias", "attention.clamp_kqv", "attention.scale",
        "attention.output_scale", "attention.value_scale", "attention.temperature_scale",
        "attention.layer_norm_epsilon", "rope.scaling.factor",
        "rope.scaling.yarn_log_multiplier"}) {
    if (absent(prefix + name)) file.f32(prefix + name, 0);
  }
  // Numbers of other models, which this one does not read.
  file.f32(prefix + "attn_logit_softcapping", 50).f32(prefix + "final_logit_softcapping", 30);
  file.f32(prefix + "router_logit_softcapping", 30).f32(prefix + "expert_group_scale", 0.05F);
  file.f32(prefix + "rope.freq_base_swa", 10'000).f32(prefix + "rope.scaling.attn_factor", 1);
  file.f32(prefix + "rope.scaling.yarn_ext_factor", -1);
  file.f32(prefix + "rope.scaling.yarn_attn_factor", 1);
  file.boolean(prefix + "expert_weights_norm", false);
  file.numbers<std::int32_t>(prefix + "rope.dimension_sections", ValueType::kInt32, {0, 0, 0, 0});
  if (absent(prefix + "rope.scaling.type")) file.text(prefix + "rope.scaling.type", "linear");
}

// The parts of a graph that keys decide.
std::string facts_of(const ModelGraph& graph) {
  std::string text = std::to_string(graph.context) + " " + std::to_string(graph.kv.size());
  for (const TensorRow& row : graph.tensors)
    text += "\n" + row.name + " " + std::to_string(row.width) + " " + std::to_string(row.rows);
  for (const Rope& rope : graph.ropes) {
    text += "\n" + std::to_string(rope.magnitude);
    for (const double frequency : rope.frequencies)
      text += " " + std::to_string(frequency);
  }
  if (const auto* const experts = first_operation<Experts>(graph)) {
    const Router& router = experts->router;
    text += "\n" + std::to_string(router.groups_used) + " " + std::to_string(router.scale) + " " +
            std::to_string(static_cast<int>(router.sigmoid));
  }
  return text + "\n" + std::to_string(graph.embedding_scale);
}

// The keys of two layers, the first of them recurrent.
GgufBuilder qwen3next() {
  GgufBuilder file = keys_of("qwen3next", 2);
  file.u32("qwen3next.expert_count", 4).u32("qwen3next.expert_used_count", 2);
  file.u32("qwen3next.expert_feed_forward_length", 32).u32("qwen3next.full_attention_interval", 2);
  file.u32("qwen3next.ssm.conv_kernel", 4).u32("qwen3next.ssm.state_size", 16);
  file.u32("qwen3next.ssm.group_count", 1).u32("qwen3next.ssm.time_step_rank", 2);
  return file.u32("qwen3next.ssm.inner_size", 32);
}

TEST(ConvertedFiles, HaveKeysForWhatTheModelLacks) {
  for (const char* const name : {"llama", "qwen2", "qwen3", "qwen3moe", "qwen2moe", "granite",
                                 "phi3", "smollm3", "glm4moe", "hunyuan-dense", "ernie4_5-moe",
                                 "gemma2", "gpt-oss", "deepseek2", "command-r", "qwen3next"}) {
    SCOPED_TRACE(name);
    const std::string architecture = name, prefix = architecture + ".";
    GgufBuilder file = keys_of(architecture, 2);
    if (architecture == "command-r") file.f32(prefix + "attention.layer_norm_epsilon", 1e-5F);
    if (architecture == "gpt-oss") file.u32(prefix + "attention.sliding_window", 16);
    if (architecture == "qwen3next") file = qwen3next();
    if (architecture.ends_with("moe") || architecture == "gpt-oss") {
      file.u32(prefix + "expert_count", 4).u32(prefix + "expert_used_count", 2);
      if (architecture != "qwen3moe") file.u32(prefix + "expert_feed_forward_length", 32);
    }
    if (architecture == "deepseek2") {
      file.u32(prefix + "attention.kv_lora_rank", 16).u32(prefix + "rope.dimension_count", 8);
      file.u32(prefix + "attention.key_length", 24).u32(prefix + "attention.value_length", 16);
      file.text(prefix + "rope.scaling.type", "yarn").f32(prefix + "rope.scaling.factor", 4);
    }
    const GgufBuilder plain = with_tensors(file, has_none);
    GgufBuilder saved = plain;
    add_unset_keys(saved, prefix);
    std::string wanted, got;
    read(plain, [&](const ModelGraph& graph) { wanted = facts_of(graph); });
    read(saved, [&](const ModelGraph& graph) { got = facts_of(graph); });
    EXPECT_EQ(got, wanted);
  }
}

TEST(ConvertedFiles, NameTheRecurrentLayers) {
  for (const std::int32_t first : {0, 1}) {
    GgufBuilder file = qwen3next();
    file.numbers<std::int32_t>("qwen3next.attention.recurrent_layers", ValueType::kInt32,
                               {first, 1 - first});
    read(with_tensors(file, has_none), [first](const ModelGraph& graph) {
      ASSERT_EQ(graph.layers.size(), 2U);
      const auto holds_state = [](const Operation& each) {
        return std::holds_alternative<DeltaNet>(each);
      };
      EXPECT_EQ(std::ranges::any_of(graph.layers[0].operations, holds_state), first == 1);
      EXPECT_EQ(std::ranges::any_of(graph.layers[1].operations, holds_state), first == 0);
    });
  }
}

// A size of 0 counts as absent, so the width must be as many heads.
TEST(ConvertedFiles, HaveHeadsWithoutASize) {
  GgufBuilder file = keys_of("llama", 1);
  file.drop("llama.embedding_length");
  file.drop("llama.attention.head_count");
  file.u32("llama.embedding_length", 100).u32("llama.attention.head_count", 3);
  file.u32("llama.attention.key_length", 0);
  EXPECT_THAT(refusal_of(file), HasSubstr("is not a multiple of head_count 3"));
}

// The windows of the layers, in order.
std::vector<std::uint32_t> windows_of(const ModelGraph& graph) {
  std::vector<std::uint32_t> windows;
  for (const Layer& layer : graph.layers) {
    for (const Operation& each : layer.operations)
      if (const auto* const attend = std::get_if<Attend>(&each))
        windows.push_back(attend->rules.window);
  }
  return windows;
}

TEST(ConvertedFiles, NameTheLayersWithAWindow) {
  using Windows = std::vector<std::uint32_t>;
  for (const std::string architecture : {"gpt-oss", "gemma2"}) {
    const std::string pattern = architecture + ".attention.sliding_window_pattern";
    GgufBuilder file = keys_of(architecture, 4);
    file.u32(architecture + ".attention.sliding_window", 16);
    if (architecture == "gpt-oss") {
      file.u32("gpt-oss.expert_count", 4).u32("gpt-oss.expert_used_count", 2);
      file.u32("gpt-oss.expert_feed_forward_length", 32);
    }
    file = with_tensors(file, has_none);
    const auto expect = [&file](const Windows& windows) {
      read(file, [&](const ModelGraph& graph) { EXPECT_EQ(windows_of(graph), windows); });
    };
    expect({16, 0, 16, 0});
    file.u32(pattern, 3);
    expect({16, 16, 0, 16});
    file.drop(pattern);
    file.numbers<std::uint8_t>(pattern, ValueType::kBool, {0, 0, 1, 0});
    expect({0, 0, 16, 0});
  }
}

TEST(ConvertedFiles, OfOtherComputationsAreRefused) {
  const auto with = [](const char* key, float number) {
    GgufBuilder file = testing::small_llama();
    file.f32(std::string("llama.") + key, number);
    return refusal_of(file);
  };
  for (const char* const key :
       {"attention.clamp_kqv", "attention.max_alibi_bias", "attention.value_scale",
        "attention.output_scale", "rope.scaling.alpha"}) {
    EXPECT_THAT(with(key, 8), HasSubstr(std::string("metadata key llama.") + key + " asks for"));
    EXPECT_EQ(with(key, 0), "nothing");
  }
  // A factor of 1 changes nothing, but these are no factors.
  for (const char* const key :
       {"attention.clamp_kqv", "attention.max_alibi_bias", "attention.temperature_scale"})
    EXPECT_THAT(with(key, 1), HasSubstr(std::string("metadata key llama.") + key + " asks for"));
  for (const char* const key : {"attention.value_scale", "logit_scale", "rope.scaling.alpha"})
    EXPECT_EQ(with(key, 1), "nothing");
  for (const char* const key :
       {"attn_logit_softcapping", "final_logit_softcapping", "router_logit_softcapping"})
    EXPECT_THAT(with(key, 20), HasSubstr(std::string("metadata key llama.") + key + " asks for"));
  GgufBuilder file = testing::small_llama();
  file.boolean("llama.use_parallel_residual", true);
  EXPECT_THAT(refusal_of(file), HasSubstr("metadata key llama.use_parallel_residual asks for"));
  file = testing::small_llama();
  file.tensor("output.scale", {1});
  EXPECT_THAT(refusal_of(file), HasSubstr("tensor output.scale takes part"));
}

// A number that the description does not read must be the one that it computes with, whatever that is.
TEST(ConvertedFiles, OfOtherFactorsThanTheArchitecturesAreRefused) {
  constexpr float kUsual = 0.25F;  // of heads of 16
  for (const char* const name : {"llama", "qwen3", "gemma"}) {
    const std::string prefix = std::string(name) + ".";
    const auto with = [&](const char* key, float number) {
      GgufBuilder file = keys_of(name, 2);
      file.u32(prefix + "attention.key_length", 16).u32(prefix + "attention.value_length", 16);
      file = with_tensors(file, has_none);
      return refusal_of(file.f32(prefix + key, number));
    };
    EXPECT_EQ(with("attention.scale", kUsual), "nothing") << name;
    EXPECT_THAT(with("attention.scale", 1),
                HasSubstr("metadata key " + prefix + "attention.scale asks for"));
    const bool gemma = prefix == "gemma.";
    EXPECT_EQ(with("embedding_scale", gemma ? std::sqrt(32.0F) : 1), "nothing") << name;
    EXPECT_THAT(with("embedding_scale", gemma ? 1 : 2),
                HasSubstr("metadata key " + prefix + "embedding_scale asks for"));
  }
  GgufBuilder mixture = keys_of("qwen2moe", 2);
  mixture.u32("qwen2moe.expert_count", 4).u32("qwen2moe.expert_used_count", 2);
  mixture.u32("qwen2moe.expert_feed_forward_length", 32);
  mixture = with_tensors(mixture, has_none);
  EXPECT_THAT(refusal_of(mixture.boolean("qwen2moe.expert_weights_norm", true)),
              HasSubstr("metadata key qwen2moe.expert_weights_norm asks for"));
}

// Graphs that several architectures share are for embeddings in files of some of them alone.
TEST(ConvertedFiles, OfOtherArchitecturesWithoutCausalAttentionAreRefused) {
  for (const char* const name :
       {"llama", "qwen2", "qwen3", "ernie4_5", "internlm2", "exaone", "qwen2vl", "qwen3vl"}) {
    const std::string architecture = name;
    GgufBuilder file = keys_of(name, 1);
    if (architecture.ends_with("vl"))
      file.numbers<std::int32_t>(architecture + ".rope.dimension_sections", ValueType::kInt32,
                                 {4, 2, 2, 0});
    file = with_tensors(file, has_none);
    EXPECT_EQ(refusal_of(file), "nothing") << name;
    file.boolean(architecture + ".attention.causal", false);
    if (architecture == "llama" || architecture == "qwen2" || architecture == "qwen3") {
      EXPECT_EQ(refusal_of(file), "nothing") << name;
    } else {
      EXPECT_THAT(refusal_of(file), HasSubstr("has attention that is not causal, as models for "
                                              "embeddings have; for architecture " +
                                              architecture));
    }
  }
}

// q, k and v of any architecture may be one tensor, and their biases, too.
TEST(ConvertedFiles, HaveBiasesOfQKVInOneTensor) {
  for (const char* const name : {"llama", "qwen2", "glm4", "phi3", "seed_oss", "gpt-oss"}) {
    SCOPED_TRACE(name);
    const std::string prefix = std::string(name) + ".";
    GgufBuilder file = keys_of(name, 1);
    if (prefix == "gpt-oss.") {
      file.u32(prefix + "expert_count", 4).u32(prefix + "expert_used_count", 2);
      file.u32(prefix + "expert_feed_forward_length", 32);
      file.u32(prefix + "attention.sliding_window", 16);
    }
    file = with_tensors(file, [](const std::string& tensor) {
      return tensor.find(".attn_qkv.") != std::string::npos;
    });
    read(file, [](const ModelGraph& graph) {
      const Rotate& rotate = *first_operation<Rotate>(graph);
      ASSERT_NE(rotate.bias, kAbsent);
      const VectorRow& bias = graph.vectors[rotate.bias];
      ASSERT_EQ(bias.parts.size(), 3U);
      for (const VectorRow::Part& part : bias.parts)
        EXPECT_EQ(graph.tensors[part.tensor].name, "blk.0.attn_qkv.bias");
    });
  }
}

// A convolution of Mamba-2 may have no biases.
TEST(ConvertedFiles, HaveMambaWithoutBiases) {
  GgufBuilder file = keys_of("nemotron_h", 2);
  file.drop("nemotron_h.attention.head_count_kv");
  file.drop("nemotron_h.feed_forward_length");
  file.numbers<std::int32_t>("nemotron_h.attention.head_count_kv", ValueType::kInt32, {0, 1});
  file.u32("nemotron_h.feed_forward_length", 0).u32("nemotron_h.ssm.conv_kernel", 4);
  file.u32("nemotron_h.ssm.state_size", 16).u32("nemotron_h.ssm.group_count", 1);
  file.u32("nemotron_h.ssm.inner_size", 64).u32("nemotron_h.ssm.time_step_rank", 4);
  for (const bool has_biases : {false, true}) {
    const GgufBuilder made = with_tensors(file, [has_biases](const std::string& tensor) {
      return has_biases && tensor.ends_with("ssm_conv1d.bias");
    });
    read(made, [has_biases](const ModelGraph& graph) {
      EXPECT_EQ(first_operation<DeltaNet>(graph)->taps_bias != kAbsent, has_biases);
    });
  }
}

TEST(ConvertedFiles, OfDraftsAloneAreNamed) {
  GgufBuilder file = keys_of("qwen3next", 3);
  file.u32("qwen3next.nextn_predict_layers", 1).tensor("token_embd.weight", {32, 8});
  file.tensor("blk.2.attn_norm.weight", {32}).tensor("blk.2.nextn.eh_proj.weight", {64, 32});
  EXPECT_THAT(refusal_of(file), HasSubstr("holds only the blocks that draft tokens"));
  GgufBuilder other = keys_of("eagle3", 1);
  EXPECT_THAT(refusal_of(other), HasSubstr("drafts tokens for another file's model"));
}

// As in llama.cpp, an answer ends where a model that fills text in begins another file.
TEST(ConvertedFiles, NameTokensBetweenFiles) {
  GgufBuilder file = testing::small_llama();
  std::vector<std::string> tokens;
  for (int i = 0; i < 260; ++i)
    tokens.push_back("t" + std::to_string(i));
  tokens[250] = "<fim_pad>";
  tokens[251] = "<reponame>";
  file.drop("tokenizer.ggml.tokens");
  file.strings("tokenizer.ggml.tokens", tokens);
  file.drop("tokenizer.ggml.token_type");
  file.u32("tokenizer.ggml.fim_sep_token_id", 252).u32("tokenizer.ggml.fim_rep_token_id", 253);
  const std::string bytes = file.bytes();
  const auto tokenizer = Tokenizer::from_gguf(**open_bytes(bytes));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  for (const TokenId token : {2U, 250U, 251U, 252U, 253U})
    EXPECT_TRUE((*tokenizer)->ends_generation(token)) << token;
  EXPECT_FALSE((*tokenizer)->ends_generation(254));
  // A vocabulary that lost its last tokens keeps their numbers, and an answer never has them.
  for (const char* const name : {"fim_sep", "fim_rep", "fim_pad"}) {
    const std::string key = "tokenizer.ggml." + std::string(name) + "_token_id";
    file.drop(key);
    file.u32(key, 260);
  }
  const std::string pruned = file.bytes();
  const auto other = Tokenizer::from_gguf(**open_bytes(pruned));
  ASSERT_TRUE(other.ok()) << other.error().message();
  EXPECT_FALSE((*other)->ends_generation(252));
}

TEST(ConvertedFiles, NameNoTokenByMinusOne) {
  for (const bool is_signed : {false, true}) {
    GgufBuilder file = testing::small_llama();
    const auto set = [&](const std::string& name, std::int32_t id) {
      const std::string key = "tokenizer.ggml." + name + "_token_id";
      file.drop(key);
      if (is_signed)
        file.value(key, ValueType::kInt32, testing::Bytes().number(id));
      else
        file.u32(key, static_cast<std::uint32_t>(id));
    };
    for (const char* const name : {"eot", "eom", "unknown", "seperator", "padding", "bos"})
      set(name, -1);
    file.boolean("tokenizer.ggml.add_bos_token", false);
    const std::string bytes = file.bytes();
    const auto opened = open_bytes(bytes);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    const auto tokenizer = Tokenizer::from_gguf(**opened);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    EXPECT_EQ((*tokenizer)->eos(), 2U);
    const auto text = template_text(**opened);
    ASSERT_TRUE(text.ok()) << text.error().message();
    EXPECT_EQ(text->bos, "");
    // Another number that is no token's is a mistake.
    set("eot", 260);
    const std::string beyond = file.bytes();
    EXPECT_FALSE(Tokenizer::from_gguf(**open_bytes(beyond)).ok());
  }
}

}  // namespace
}  // namespace bulkhead::model
