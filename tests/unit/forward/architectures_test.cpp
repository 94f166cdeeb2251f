// Architectures, and variations of them, that no fixture has, against an evaluation in double of small random models.
#include <limits>
#include <numeric>

#include <gmock/gmock.h>

#include "architecture_cases.hpp"
#include "worker/forward/layer_split.hpp"
#include "worker/forward/model_plan.hpp"
#include "worker/model/architecture.hpp"

namespace bulkhead::forward {
namespace {

TEST_F(Architectures, Qwen2Moe) {
  Facts facts{.architecture = "qwen2moe", .qkv_biases = true};
  facts.experts = {.count = 8, .used = 3, .width = 32, .shared_width = 64, .gated_share = true};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32)
        .u32(prefix + "expert_shared_feed_forward_length", 64);
  };
  expect_computes(facts, 10);
}

Facts granite(const std::string& name) {
  Facts facts{.architecture = name, .halves = false, .score_scale = 0.2};
  facts.embedding_scale = 3;
  facts.residual_scale = 0.4;
  facts.logit_divisor = 4;
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.f32(prefix + "embedding_scale", 3).f32(prefix + "residual_scale", 0.4F);
    file.f32(prefix + "logit_scale", 4).f32(prefix + "attention.scale", 0.2F);
  };
  return facts;
}

TEST_F(Architectures, GraniteMoe) {
  Facts facts = granite("granitemoe");
  facts.hidden = 32;
  facts.experts = {.count = 8, .used = 3, .width = 32, .shared_width = 64, .renormalise = true};
  facts.add_keys = [scales = facts.add_keys](GgufBuilder& file, const std::string& prefix) {
    scales(file, prefix);
    file.u32(prefix + "expert_shared_feed_forward_length", 64);
  };
  expect_computes(facts, 10);
}

TEST_F(Architectures, Glm4Moe) {
  Facts facts{.architecture = "glm4moe",
              .layers = 3,
              .turned = 16,
              .qkv_biases = true,
              .norms_heads = true};
  facts.feed_forward_norm = "post_attention_norm";
  facts.experts = {.count = 8,
                   .used = 3,
                   .width = 32,
                   .shared_width = 64,
                   .sigmoid = true,
                   .biased = true,
                   .renormalise = true,
                   .scale = 1.5,
                   .dense_layers = 1};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32).u32(prefix + "expert_shared_count", 2);
    file.u32(prefix + "leading_dense_block_count", 1).boolean(prefix + "expert_weights_norm", true);
    file.f32(prefix + "expert_weights_scale", 1.5F).u32(prefix + "expert_gating_func", 2);
  };
  expect_computes(facts, 10);
}

TEST_F(Architectures, Mistral3) {
  Facts facts{.architecture = "mistral3", .halves = false, .yarn = {.factor = 4, .original = 16}};
  facts.temperature = 0.3;
  facts.temperature_span = 16;
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.f32(prefix + "attention.temperature_scale", 0.3F);
  };
  expect_computes(facts, 40);
}

TEST_F(Architectures, Gemma) {
  expect_computes(
      {.architecture = "gemma", .function = Function::kGelu, .embedding_scale = 8, .tied = true},
      20);
}

TEST_F(Architectures, StarCoder2) {
  expect_computes({.architecture = "starcoder2",
                   .layer_norms = true,
                   .product_biases = true,
                   .qkv_biases = true,
                   .function = Function::kGelu,
                   .gated = false},
                  20);
}

TEST_F(Architectures, Nemotron) {
  Facts facts{.architecture = "nemotron", .turned = 16, .layer_norms = true};
  facts.function = Function::kSquaredRelu;
  facts.gated = false;
  expect_computes(facts, 20);
  facts.product_biases = facts.qkv_biases = true;
  expect_computes(facts, 20);
}

// The text part of a vision model, whose heads' sections turn by equal positions.
TEST_F(Architectures, Glm4WithSections) {
  Facts facts{.architecture = "glm4",
              .turned = 16,
              .qkv_biases = true,
              .norms_after = true,
              .fused_gate = true};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.numbers<std::int32_t>(prefix + "rope.dimension_sections", model::ValueType::kInt32,
                               {2, 3, 3, 0});
  };
  expect_computes(facts, 20);
  // Sections of nothing are none.
  facts.halves = false;
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.numbers<std::int32_t>(prefix + "rope.dimension_sections", model::ValueType::kInt32,
                               {0, 0, 0, 0});
  };
  expect_computes(facts, 20);
}

TEST_F(Architectures, ChatGlm) {
  Facts facts{.architecture = "chatglm", .halves = false, .turned = 16, .qkv_biases = true};
  facts.fused_qkv = facts.fused_gate = true;
  expect_computes(facts, 20);
}

TEST_F(Architectures, GraniteWithoutRotations) {
  for (const bool turns : {false, true}) {
    Facts facts = granite("granite");
    facts.turns = turns;
    facts.add_keys = [keys = facts.add_keys, turns](GgufBuilder& file, const std::string& prefix) {
      keys(file, prefix);
      file.boolean(prefix + "rope.scaling.finetuned", turns);
    };
    expect_computes(facts, 20);
  }
}

// A file's yarn_attn_factor takes the place of YaRN's own factor, as in OLMo 3, whose files have the same number there.
TEST_F(Architectures, YarnWithAnAttentionFactor) {
  Facts facts{.architecture = "llama", .halves = false};
  const double usual = 0.1 * std::log(4) + 1;
  const auto expect_factor = [&](float whole, double attention) {
    facts.yarn = {.factor = 4, .original = 32, .attention = attention};
    facts.add_keys = [whole](GgufBuilder& file, const std::string& prefix) {
      file.f32(prefix + "rope.scaling.yarn_attn_factor", whole)
          .f32(prefix + "rope.scaling.attn_factor", 1.1F);
    };
    expect_computes(facts, 20);
  };
  expect_factor(1.5F, 1.5 * 1.1 / usual);
  expect_factor(static_cast<float>(usual), 1.1);
  expect_factor(1, 1.1);
}

TEST_F(Architectures, ExpertsWithGateAndUpInOneTensor) {
  Facts facts{.architecture = "qwen3moe", .norms_heads = true};
  facts.experts = {.count = 8, .used = 3, .width = 32, .renormalise = true, .fused = true};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32);
  };
  expect_computes(facts, 10);
}

// Some converters write numbers that all layers share as arrays with an entry for each layer.
TEST_F(Architectures, LlamaWithArraysOfEqualNumbers) {
  Facts facts{.architecture = "llama", .halves = false};
  facts.add_keys = [&facts](GgufBuilder& file, const std::string& prefix) {
    const auto repeat = [&](const char* name, std::uint32_t number) {
      file.drop(prefix + name);
      file.numbers<std::int32_t>(
          prefix + name, model::ValueType::kInt32,
          std::vector<std::int32_t>(facts.layers, static_cast<std::int32_t>(number)));
    };
    repeat("attention.head_count", facts.heads);
    repeat("attention.head_count_kv", facts.kv_heads);
    repeat("feed_forward_length", facts.hidden);
  };
  expect_computes(facts, 20);
}

TEST_F(Architectures, BiasesOfAttentionsOutput) {
  for (const char* const name : {"llama", "mistral3"})
    expect_computes(
        {.architecture = name, .halves = false, .output_bias = true, .qkv_biases = true}, 20);
  Facts facts = granite("granite");
  facts.output_bias = true;
  expect_computes(facts, 20);
  facts = granite("granitemoe");
  facts.output_bias = true;
  facts.hidden = 32;
  facts.experts = {.count = 8, .used = 3, .width = 32, .renormalise = true};
  expect_computes(facts, 20);
}

// With matrices of their own for the logits, and with that of the embedding.
TEST_F(Architectures, BiasesOfLogits) {
  for (const bool tied : {false, true}) {
    const Facts facts{
        .architecture = "qwen2", .qkv_biases = true, .tied = tied, .logit_biases = true};
    expect_computes(facts, 20);
    expect_computes(facts, 20, true);
    expect_keeps_bits(facts);
  }
}

// What matrix units multiply is rounded to halves. So an embedding matrix is packed for them only if it
// makes the logits, too, and in a stage of a split model it is as in the whole model.
TEST(Embeddings, ArePackedForMatrixUnitsIfTheyMakeLogits) {
  gpu::kernels::Mapping units;
  units.units = true;
  for (const bool tied : {false, true}) {
    const std::string bytes =
        tiny::Model({.architecture = "qwen2", .qkv_biases = true, .tied = tied}, 1).file();
    const auto file = model::testing::open_bytes(bytes);
    ASSERT_TRUE(file.ok()) << file.error().message();
    const auto graph = model::read_model(**file);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    const auto layers = static_cast<std::uint32_t>(graph->layers.size());
    ASSERT_GT(layers, 1U);
    for (const std::uint32_t end : {1U, layers}) {
      const auto plan = plan_model(stage_graph(*graph, {0, end}, false), **file, units,
                                   gpu::kernels::KvFormat::kF16);
      ASSERT_TRUE(plan.ok()) << plan.error().message();
      const bool packed = plan->matrices[plan->embedding].packed->layout().block_bytes != 0;
      EXPECT_EQ(packed, tied) << end << " layers";
    }
  }
}

// As in Granite Code.
TEST_F(Architectures, BiasesOfTheFeedForward) {
  Facts facts{.architecture = "llama", .halves = false, .product_biases = true};
  facts.qkv_biases = true;
  expect_computes(facts, 20);
  expect_computes(facts, 20, true);
}

TEST_F(Architectures, QueriesKeysAndValuesInOneTensor) {
  expect_computes({.architecture = "qwen3", .norms_heads = true, .fused_qkv = true}, 20);
  expect_computes({.architecture = "qwen2", .qkv_biases = true, .fused_qkv = true}, 20);
}

// Without a width of its own, an expert has its share of feed_forward_length.
TEST_F(Architectures, ExpertsWithoutAWidth) {
  Facts facts{.architecture = "qwen3moe", .hidden = 3 * 32, .norms_heads = true};
  facts.experts = {.count = 8, .used = 3, .width = 32, .renormalise = true};
  expect_computes(facts, 10);
}

// Queries grow beyond the context that the model was trained for; without an original one that is the file's context.
TEST_F(Architectures, Mistral3WithoutAnOriginalContext) {
  Facts facts{.architecture = "mistral3", .context = 32, .halves = false};
  facts.temperature = 0.3;
  facts.temperature_span = 32;
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.f32(prefix + "attention.temperature_scale", 0.3F);
  };
  expect_computes(facts, 20);
}

// What a file of these facts is refused for.
std::string refusal_of(const Facts& facts) {
  const std::string bytes = tiny::Model(facts, 1).file();
  const auto file = model::testing::open_bytes(bytes);
  if (!file.ok()) return file.error().message();
  const auto graph = model::read_model(**file);
  return graph.ok() ? "nothing" : graph.error().message();
}

TEST(RefusedShapes, AreNamed) {
  Facts facts{.architecture = "llama"};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.drop(prefix + "attention.head_count_kv");
    file.numbers<std::int32_t>(prefix + "attention.head_count_kv", model::ValueType::kInt32,
                               {2, 4});
  };
  EXPECT_THAT(refusal_of(facts),
              ::testing::HasSubstr("llama.attention.head_count_kv is 2 for layer 0 and 4 for layer "
                                   "1; for architecture llama only models whose layers have the "
                                   "same are supported"));
}

// A layer reads the keys and values of another one only in the shape in which that one wrote them.
TEST(RefusedShapes, OfLayersThatShareKeys) {
  using ::testing::HasSubstr;
  Facts facts{.architecture = "gemma4", .layers = 3, .norms_after = true, .norms_heads = true};
  const auto with_kv_heads = [&facts](std::vector<std::int32_t> kv_heads) {
    facts.add_keys = [kv_heads](GgufBuilder& file, const std::string& prefix) {
      file.drop(prefix + "attention.head_count_kv");
      file.numbers<std::int32_t>(prefix + "attention.head_count_kv", model::ValueType::kInt32,
                                 kv_heads);
      file.u32(prefix + "attention.shared_kv_layers", 1);
    };
    return refusal_of(facts);
  };
  EXPECT_THAT(with_kv_heads({2, 2, 1}),
              HasSubstr("layer 2 has 1 key-value heads, but uses those of a layer with 2"));
  // This file is refused for a tensor's shape only.
  EXPECT_THAT(with_kv_heads({2, 2, 2}), ::testing::Not(HasSubstr("but uses those")));
}

TEST(RefusedShapes, OfHeadsWithoutEntries) {
  Facts facts{.architecture = "gemma4", .width = 32, .heads = 64, .kv_heads = 1, .size = 2};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.drop(prefix + "attention.key_length");
    file.drop(prefix + "attention.value_length");
  };
  EXPECT_THAT(refusal_of(facts),
              ::testing::HasSubstr("gemma4.attention.key_length is missing, and embedding_length "
                                   "32 is less than the 64 attention heads"));
}

TEST(RefusedShapes, OfExpertsThatNoTokenTakes) {
  Facts facts{.architecture = "hy_v3"};
  facts.experts = {.count = 8, .used = 0, .width = 32};
  EXPECT_THAT(refusal_of(facts),
              ::testing::HasSubstr("hy_v3.expert_used_count is 0, not from 1 to the 8 experts"));
}

TEST(RefusedShapes, OfLayersWithOtherNumbersOfHeads) {
  using ::testing::HasSubstr;
  Facts facts{.architecture = "deci", .layers = 3, .halves = false};
  facts.mixers = "lnn";
  EXPECT_THAT(refusal_of(facts), HasSubstr("has no layer that attends to all positions"));
  facts.mixers = "naa";
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.drop(prefix + "attention.head_count_kv");
    file.u32(prefix + "attention.head_count_kv", 2);
  };
  EXPECT_THAT(refusal_of(facts),
              HasSubstr("layer 0 has 2 key-value heads "
                        "(deci.attention.head_count_kv) and no attention heads"));
  facts.mixers = "aaa";
  facts.layer_kv_heads = {2, 3, 2};
  facts.add_keys = nullptr;
  EXPECT_THAT(refusal_of(facts),
              HasSubstr("4 attention heads are not a multiple of 3 key-value heads"));
  facts.layer_kv_heads = {};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.drop(prefix + "attention.head_count");
    file.drop(prefix + "attention.key_length");
    file.drop(prefix + "attention.value_length");
    file.numbers<std::int32_t>(prefix + "attention.head_count", model::ValueType::kInt32,
                               {4, 2, 4});
  };
  EXPECT_THAT(refusal_of(facts), HasSubstr("has heads of different sizes"));
}

// Each layer with a width of its own needs a buffer.
TEST(RefusedShapes, OfLayersThatAllDiffer) {
  Facts facts{.architecture = "gemma4", .layers = 60};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    std::vector<std::int32_t> widths(60);
    std::iota(widths.begin(), widths.end(), 32);
    file.drop(prefix + "feed_forward_length");
    file.numbers<std::int32_t>(prefix + "feed_forward_length", model::ValueType::kInt32, widths);
    file.u32(prefix + "vocab_size", 96);
  };
  const std::string bytes = tiny::Model(facts, 1).file();
  const auto file = model::testing::open_bytes(bytes);
  ASSERT_TRUE(file.ok());
  const auto graph = model::imagine_model(**file, [](const std::string&) { return false; });
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.error().message(),
              ::testing::HasSubstr("has layers of too many different widths"));
}

TEST(RefusedShapes, OfAttention) {
  using ::testing::HasSubstr;
  Facts facts{.architecture = "granite", .layers = 1, .halves = false};
  for (const float scale : {-0.5F, std::numeric_limits<float>::quiet_NaN()}) {
    facts.add_keys = [scale](GgufBuilder& file, const std::string& prefix) {
      file.f32(prefix + "attention.scale", scale);
    };
    EXPECT_THAT(refusal_of(facts), HasSubstr("granite.attention.scale is not a number from 0"));
  }
  // This file has norms of queries without norms of keys.
  facts = {.architecture = "glm4moe", .layers = 1, .norms_heads = true};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "vocab_size", 96);
  };
  const std::string bytes = tiny::Model(facts, 1).file();
  const auto file = model::testing::open_bytes(bytes);
  ASSERT_TRUE(file.ok());
  const auto graph = model::imagine_model(
      **file, [](const std::string& name) { return name.ends_with("attn_q_norm.weight"); });
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.error().message(),
              HasSubstr("blk.0.attn_{q,k}_norm.weight: one is there and one is not"));
}

TEST(RefusedWindows, AreNamed) {
  using ::testing::HasSubstr;
  Facts facts{.architecture = "gemma4"};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "attention.sliding_window", 16);
  };
  EXPECT_THAT(refusal_of(facts), HasSubstr("gemma4.attention.sliding_window_pattern, which says"));
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.numbers<std::uint8_t>(prefix + "attention.sliding_window_pattern", model::ValueType::kBool,
                               {1, 0});
  };
  EXPECT_THAT(refusal_of(facts), HasSubstr("gemma4.attention.sliding_window is missing or 0"));
  facts.architecture = "exaone-moe";
  facts.add_keys = nullptr;
  EXPECT_THAT(refusal_of(facts), HasSubstr("exaone-moe.attention.sliding_window is missing"));
  facts.architecture = "step35";
  facts.window = 16;
  EXPECT_THAT(refusal_of(facts), HasSubstr("step35.attention.sliding_window_pattern, which says"));
  facts.experts = {.count = 8, .used = 3, .width = 32};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.numbers<std::uint8_t>(prefix + "attention.sliding_window_pattern", model::ValueType::kBool,
                               {1, 0});
    file.u32(prefix + "expert_feed_forward_length", 32);
    file.f32(prefix + "swiglu_clamp_exp", 5);
  };
  EXPECT_THAT(refusal_of(facts),
              HasSubstr("step35.swiglu_clamp_exp has a limit that is not 0, 7 or 16"));
}

TEST(RefusedRotations, AreNamed) {
  using ::testing::HasSubstr;
  Facts facts{.architecture = "phi3"};
  const auto with = [&facts](auto add) {
    facts.add_keys = add;
    return refusal_of(facts);
  };
  EXPECT_THAT(with([](GgufBuilder& file, const std::string& prefix) {
                file.text(prefix + "rope.scaling.type", "dynamic");
              }),
              HasSubstr("rope scaling \"dynamic\" is not supported"));
  EXPECT_THAT(with([](GgufBuilder& file, const std::string& prefix) {
                file.text(prefix + "rope.scaling.type", "longrope");
              }),
              HasSubstr("rope_factors_short.weight and rope_factors_long.weight are missing"));
  facts.architecture = "qwen2";
  EXPECT_THAT(with([](GgufBuilder& file, const std::string& prefix) {
                file.f32(prefix + "attention.temperature_scale", 0.1F);
              }),
              HasSubstr("qwen2.attention.temperature_scale asks for a computation"));
  EXPECT_THAT(with([](GgufBuilder& file, const std::string& prefix) {
                file.f32(prefix + "rope.scaling.yarn_attn_factor", 1.1F);
              }),
              HasSubstr("other than 1 is not supported without YaRN"));
  facts.architecture = "hunyuan-dense";
  facts.norms_heads = true;
  facts.yarn = {.factor = 4, .original = 32};
  EXPECT_THAT(with(nullptr), HasSubstr("normed after a rotation that stretches them"));
  facts.yarn = {};
}

// The first layers see 16 positions, fewer than a page, and turn by plain frequencies; the last one is stretched.
TEST_F(Architectures, Olmo2WithWindows) {
  Facts facts{.architecture = "olmo2", .layers = 4, .yarn = {.factor = 4, .original = 64}};
  facts.norms_before = false;
  facts.norms_after = facts.norms_rows = true;
  facts.window = 16;
  facts.windowed = [](std::uint32_t layer) { return layer % 4 != 3; };
  expect_computes(facts, 40);
  // A file may name the layers, and another base.
  facts.windowed = [](std::uint32_t layer) { return layer == 1; };
  facts.window_base = 500;
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.numbers<std::uint8_t>(prefix + "attention.sliding_window_pattern", model::ValueType::kBool,
                               {0, 1, 0, 0});
    file.f32(prefix + "rope.freq_base_swa", 500);
  };
  expect_computes(facts, 40);
}

}  // namespace
}  // namespace bulkhead::forward
