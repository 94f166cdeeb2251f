// Compares architectures that share most of their graph with others to an evaluation in double of small random models.
#include <gmock/gmock.h>

#include "architecture_cases.hpp"
#include "worker/model/architecture.hpp"

namespace bulkhead::forward {
namespace {

using ::testing::HasSubstr;

// The text part of vision models, whose heads' sections turn by equal positions.
void add_sections(GgufBuilder& file, const std::string& prefix) {
  file.numbers<std::int32_t>(prefix + "rope.dimension_sections", model::ValueType::kInt32,
                             {6, 5, 5, 0});
  file.u32(prefix + "n_deepstack_layers", 1);
}

TEST_F(Architectures, LanguageModelsOfVisionModels) {
  expect_computes({.architecture = "qwen2vl", .qkv_biases = true, .add_keys = add_sections}, 20);
  expect_computes({.architecture = "qwen3vl", .norms_heads = true, .add_keys = add_sections}, 20);
  Facts facts{.architecture = "qwen3vlmoe", .norms_heads = true};
  facts.experts = {.count = 8, .used = 3, .width = 32, .renormalise = true};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    add_sections(file, prefix);
    file.u32(prefix + "expert_feed_forward_length", 32);
  };
  expect_computes(facts, 10);
}

TEST_F(Architectures, SeedOss) {
  Facts facts{.architecture = "seed_oss", .qkv_biases = true};
  facts.feed_forward_norm = "post_attention_norm";
  expect_computes(facts, 20);
}

TEST_F(Architectures, Arcee) {
  Facts facts{.architecture = "arcee", .halves = false, .yarn = {.factor = 4, .original = 32}};
  facts.function = Function::kSquaredRelu;
  facts.gated = false;
  expect_computes(facts, 20);
}

TEST_F(Architectures, Ernie45) {
  expect_computes({.architecture = "ernie4_5", .halves = false, .tied = true}, 20);
}

// The bias of the router takes part in the choice, though scores are a softmax.
TEST_F(Architectures, Ernie45Moe) {
  Facts facts{.architecture = "ernie4_5-moe", .layers = 3, .halves = false};
  facts.experts = {.count = 8,
                   .used = 3,
                   .width = 32,
                   .shared_width = 64,
                   .biased = true,
                   .renormalise = true,
                   .dense_layers = 1};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32).u32(prefix + "expert_shared_count", 2);
    file.u32(prefix + "expert_shared_feed_forward_length", 64);
    file.u32(prefix + "leading_dense_block_count", 1).u32(prefix + "interleave_moe_layer_step", 1);
  };
  expect_computes(facts, 10);
  facts.qkv_biases = facts.output_bias = true;
  expect_computes(facts, 10);
}

Facts dots(const char* name) {
  Facts facts{.architecture = name, .layers = 3, .norms_heads = true};
  facts.experts = {.count = 8,
                   .used = 3,
                   .width = 32,
                   .shared_width = 64,
                   .sigmoid = true,
                   .biased = true,
                   .renormalise = true,
                   .scale = 2.5,
                   .dense_layers = 1};
  return facts;
}

TEST_F(Architectures, Dots1) {
  Facts facts = dots("dots1");
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32).u32(prefix + "expert_shared_count", 2);
    file.u32(prefix + "leading_dense_block_count", 1).boolean(prefix + "expert_weights_norm", true);
    file.f32(prefix + "expert_weights_scale", 2.5F);
  };
  expect_computes(facts, 10);
}

// q, k and v are one tensor, half of each head turns, the shared expert has a width of its own, and a token's experts
// come from two of four groups.
TEST_F(Architectures, BailingMoe2) {
  Facts facts = dots("bailingmoe2");
  facts.turned = 16;
  facts.fused_qkv = true;
  facts.experts.groups = 4;
  facts.experts.groups_used = 2;
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32).u32(prefix + "expert_shared_count", 1);
    file.u32(prefix + "expert_shared_feed_forward_length", 64);
    file.u32(prefix + "leading_dense_block_count", 1).boolean(prefix + "expert_weights_norm", true);
    file.f32(prefix + "expert_weights_scale", 2.5F).u32(prefix + "expert_gating_func", 2);
    file.u32(prefix + "expert_group_count", 4).u32(prefix + "expert_group_used_count", 2);
  };
  expect_computes(facts, 10);
  // The key of several shared experts may say how wide each is.
  facts.add_keys = [all = facts.add_keys](GgufBuilder& file, const std::string& prefix) {
    all(file, prefix);
    for (const char* const key : {"expert_shared_count", "expert_shared_feed_forward_length"})
      file.drop(prefix + key);
    file.u32(prefix + "expert_shared_count", 2);
    file.u32(prefix + "expert_shared_feed_forward_length", 32);
  };
  expect_computes(facts, 10);
}

TEST_F(Architectures, MiniMaxM2) {
  Facts facts{.architecture = "minimax-m2", .turned = 16, .norms_rows = true};
  facts.experts = {
      .count = 8, .used = 3, .width = 32, .sigmoid = true, .biased = true, .renormalise = true};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32).u32(prefix + "expert_gating_func", 2);
  };
  expect_computes(facts, 10);
}

// An expert is as wide as feed_forward_length says.
TEST_F(Architectures, OlmoE) {
  Facts facts{.architecture = "olmoe", .hidden = 32, .norms_rows = true};
  facts.experts = {.count = 8, .used = 3, .width = 32};
  expect_computes(facts, 10);
}

// Files of dense models say that they have one expert.
TEST_F(Architectures, Hunyuan) {
  for (const std::uint32_t turned : {0U, 16U}) {
    Facts facts{.architecture = "hunyuan-dense", .turned = turned, .tied = true};
    facts.norms_heads = facts.norms_turned = true;
    if (turned != 0)
      facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
        file.u32(prefix + "expert_count", 1);
      };
    expect_computes(facts, 20);
  }
  Facts facts{.architecture = "hunyuan-moe", .norms_heads = true, .norms_turned = true};
  facts.experts = {.count = 8, .used = 3, .width = 32, .shared_width = 96, .renormalise = true};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32).u32(prefix + "expert_shared_count", 1);
    file.u32(prefix + "expert_shared_feed_forward_length", 96);
  };
  expect_computes(facts, 10);
}

// Both branches read one layer norm, which has no bias, and the file has the factor of the logits.
TEST_F(Architectures, Cohere) {
  Facts facts{.architecture = "command-r", .halves = false};
  facts.layer_norms = facts.plain_layer_norms = facts.parallel = facts.tied = true;
  facts.logit_divisor = 4;
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.f32(prefix + "logit_scale", 0.25F);
  };
  expect_computes(facts, 20);
  facts.architecture = "cohere2";
  facts.layers = 4;
  facts.window = 16;
  facts.windowed = [](std::uint32_t layer) { return layer % 4 != 3; };
  facts.turns_windowed_only = true;
  expect_computes(facts, 40);
  // A window beyond every context hides no position, and its layers still are the ones that turn.
  facts.window = 0xFFFFFFFF;
  expect_computes(facts, 40);
  // Command R+.
  facts = {.architecture = "command-r", .halves = false, .norms_heads = true};
  facts.layer_norms = facts.plain_layer_norms = facts.parallel = facts.tied = true;
  facts.norms_own_heads = true;
  expect_computes(facts, 20);
  expect_computes(facts, 20, true);
  // Norms follow biases.
  facts.qkv_biases = true;
  expect_computes(facts, 20);
}

// The numbers of xIELU are keys without a prefix: one for all layers, or one for each.
TEST_F(Architectures, Apertus) {
  Facts facts{.architecture = "apertus", .layers = 3, .norms_heads = true};
  facts.function = Function::kXielu;
  facts.gated = false;
  facts.add_keys = [](GgufBuilder& file, const std::string&) {
    std::vector<float> alpha_p, alpha_n, eps;
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      alpha_p.push_back(static_cast<float>(tiny::xielu_facts(layer).alpha_p));
      alpha_n.push_back(static_cast<float>(tiny::xielu_facts(layer).alpha_n));
      eps.push_back(static_cast<float>(tiny::xielu_facts(layer).eps));
    }
    file.numbers("xielu.alpha_p", model::ValueType::kFloat32, alpha_p);
    file.numbers("xielu.alpha_n", model::ValueType::kFloat32, alpha_n);
    file.numbers("xielu.eps", model::ValueType::kFloat32, eps);
    file.f32("xielu.beta", 0.5F);
  };
  expect_computes(facts, 20);
  facts.qkv_biases = facts.product_biases = true;
  expect_computes(facts, 20);
}

// Attention over latents whose scores grow with YaRN's factor, and experts whose gates and ups are one tensor.
TEST_F(Architectures, Mistral4) {
  for (const char* const name : {"deepseek2", "mistral4"}) {
    Facts facts{.architecture = name, .kv_heads = 1, .halves = false};
    facts.latents = {.latent = 64, .plain = 32, .value = 32, .q_rank = 32};
    const double grown = 1 + 0.1 * std::log(4);
    facts.yarn = {.factor = 4, .original = 32, .attention = 1 / grown};
    facts.score_scale = grown * grown / std::sqrt(64);
    facts.experts = {
        .count = 8, .used = 3, .width = 32, .shared_width = 32, .renormalise = true, .fused = true};
    facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
      file.f32(prefix + "rope.scaling.yarn_log_multiplier", 0.1F);
      file.u32(prefix + "expert_feed_forward_length", 32).u32(prefix + "expert_shared_count", 1);
      file.boolean(prefix + "expert_weights_norm", true);
    };
    expect_computes(facts, 20);
  }
}

// The file says nothing of how scores are made, but has a bias of the choice, by either name.
TEST_F(Architectures, DeepSeekV3WithoutAScoring) {
  for (const char* const name : {"exp_probs_b.bias", "exp_probs_b"}) {
    Facts facts{.architecture = "deepseek2", .kv_heads = 1, .halves = false};
    facts.latents = {.latent = 64, .plain = 32, .value = 32};
    facts.experts = {.count = 8,
                     .used = 3,
                     .width = 32,
                     .sigmoid = true,
                     .biased = true,
                     .bias_name = name,
                     .renormalise = true};
    facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
      file.u32(prefix + "expert_feed_forward_length", 32);
      file.boolean(prefix + "expert_weights_norm", true);
    };
    expect_computes(facts, 10);
  }
}

Facts deepseek(const tiny::LatentFacts& latents) {
  Facts facts{.architecture = "deepseek2", .kv_heads = 1, .halves = false};
  facts.latents = latents;
  return facts;
}

// One tensor has the matrices of keys and values, and the file has as many heads of keys as of queries or, as
// converters of other models wrote, one.
TEST_F(Architectures, DeepSeekWithJoinedKeysAndValues) {
  Facts facts = deepseek(
      {.latent = 64, .plain = 48, .value = 40, .q_rank = 32, .joined = true, .named = false});
  facts.kv_heads = facts.heads;
  expect_computes(facts, 20);
  expect_computes(facts, 12, true);
  expect_keeps_bits(facts);
  facts.latents.named = true;
  facts.kv_heads = 1;
  expect_computes(facts, 10);
}

TEST(JoinedKeysAndValues, AreRefusedWhereTheSizesDontFit) {
  const auto refusal_of = [](const Facts& facts) {
    const std::string bytes = tiny::Model(facts, 1).file();
    const auto file = model::testing::open_bytes(bytes);
    return model::read_model(**file).error().message();
  };
  Facts facts = deepseek({.latent = 64, .plain = 48, .value = 40, .joined = true, .named = false});
  facts.kv_heads = 2;
  EXPECT_THAT(refusal_of(facts), HasSubstr("the sizes of heads"));
  facts.kv_heads = 4;
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.drop(prefix + "attention.value_length");
    file.u32(prefix + "attention.value_length", 39);
  };
  EXPECT_THAT(refusal_of(facts), HasSubstr("tensor blk.0.attn_kv_b.weight has the shape [64, 352], "
                                           "not [64, 348]"));
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.drop(prefix + "attention.key_length");
  };
  EXPECT_THAT(refusal_of(facts), HasSubstr("deepseek2.attention.key_length is missing"));
  facts.add_keys = nullptr;
  facts.latents.joined = false;
  EXPECT_THAT(refusal_of(facts), HasSubstr("tensor blk.0.attn_kv_b.weight is missing"));
  facts.latents.named = true;
  EXPECT_THAT(refusal_of(facts), HasSubstr("the sizes of heads"));
}

// Gates multiply attention's result, and only layers with a window turn.
TEST_F(Architectures, Afmoe) {
  Facts facts = dots("afmoe");
  facts.layers = 4;
  facts.norms_after = facts.gates_attention = facts.turns_windowed_only = true;
  facts.embedding_scale = 8;
  facts.window = 16;
  facts.windowed = [](std::uint32_t layer) { return layer % 4 != 3; };
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32).u32(prefix + "expert_shared_count", 2);
    file.u32(prefix + "leading_dense_block_count", 1).boolean(prefix + "expert_weights_norm", true);
    file.f32(prefix + "expert_weights_scale", 2.5F).u32(prefix + "expert_gating_func", 2);
  };
  expect_computes(facts, 40);
  expect_computes(facts, 20, true);
}

// A file without scales has those of the first model.
TEST_F(Architectures, MiniCpm) {
  Facts facts{.architecture = "minicpm", .halves = false, .tied = true};
  facts.embedding_scale = 12;
  facts.residual_scale = 1.4 / std::sqrt(2);
  facts.logit_divisor = 64 / 256.0;
  expect_computes(facts, 20);
  facts.embedding_scale = 3;
  facts.residual_scale = 0.4;
  facts.logit_divisor = 2;
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.f32(prefix + "embedding_scale", 3).f32(prefix + "residual_scale", 0.4F);
    file.f32(prefix + "logit_scale", 2);
  };
  expect_computes(facts, 20);
  facts.qkv_biases = facts.product_biases = true;
  expect_computes(facts, 20);
}

// Only layers with a window turn, unless there is no window at all.
TEST_F(Architectures, Exaone4) {
  Facts facts{.architecture = "exaone4", .norms_before = false};
  facts.norms_after = facts.norms_heads = true;
  expect_computes(facts, 20);
  facts.layers = 4;
  facts.window = 16;
  facts.windowed = [](std::uint32_t layer) { return layer % 4 != 3; };
  facts.turns_windowed_only = true;
  expect_computes(facts, 40);
}

TEST_F(Architectures, Exaone) {
  expect_computes({.architecture = "exaone", .turned = 16, .tied = true}, 20);
}

TEST_F(Architectures, InternLm2) {
  expect_computes({.architecture = "internlm2", .halves = false}, 20);
}

// Only layers with a window turn.
TEST_F(Architectures, ExaoneMoe) {
  Facts facts = dots("exaone-moe");
  facts.layers = 4;
  facts.window = 8;
  facts.windowed = [](std::uint32_t layer) { return layer % 4 != 3; };
  facts.turns_windowed_only = true;
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32).u32(prefix + "expert_shared_count", 2);
    file.u32(prefix + "expert_shared_feed_forward_length", 64);
    file.u32(prefix + "leading_dense_block_count", 1).boolean(prefix + "expert_weights_norm", true);
    file.f32(prefix + "expert_weights_scale", 2.5F).u32(prefix + "expert_gating_func", 2);
    file.u32(prefix + "expert_group_count", 1).u32(prefix + "expert_group_used_count", 1);
    file.text(prefix + "rope.scaling.type", "none");
  };
  expect_computes(facts, 20);
  expect_computes(facts, 12, true);
}

// The file does not say which layers are dense, and the bias of the router's choice has a name without an ending.
TEST_F(Architectures, HyV3) {
  Facts facts = dots("hy_v3");
  facts.experts.bias_name = "exp_probs_b";
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32);
    file.u32(prefix + "expert_shared_feed_forward_length", 64);
    file.boolean(prefix + "expert_weights_norm", true).f32(prefix + "expert_weights_scale", 2.5F);
    file.u32(prefix + "expert_gating_func", 2);
  };
  expect_computes(facts, 20);
}

// YaRN stretches only layers without a window.
TEST_F(Architectures, Mellum) {
  Facts facts{.architecture = "mellum", .layers = 4, .yarn = {.factor = 4, .original = 64}};
  facts.norms_heads = true;
  facts.experts = {.count = 8, .used = 3, .width = 32, .renormalise = true};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32);
  };
  expect_computes(facts, 20);
  facts.window = 8;
  facts.windowed = [](std::uint32_t layer) { return layer % 4 != 3; };
  expect_computes(facts, 20);
  facts.windowed = [](std::uint32_t layer) { return layer == 1; };
  facts.window_base = 500;
  facts.add_keys = [keys = facts.add_keys](GgufBuilder& file, const std::string& prefix) {
    keys(file, prefix);
    file.numbers<std::uint8_t>(prefix + "attention.sliding_window_pattern", model::ValueType::kBool,
                               {0, 1, 0, 0});
    file.f32(prefix + "rope.freq_base_swa", 500);
  };
  expect_computes(facts, 20);
}

// Layers with other numbers of key-value heads, a product in place of attention, and layers without attention, without
// a feed-forward, and without both.
TEST_F(Architectures, Deci) {
  Facts facts{.architecture = "deci", .layers = 6, .halves = false, .tied = true};
  facts.mixers = "alnaan";
  facts.layer_kv_heads = {2, 0, 0, 4, 1, 0};
  facts.layer_hidden = {96, 64, 96, 0, 32, 0};
  expect_computes(facts, 40);
  expect_computes(facts, 20, true);
  expect_keeps_bits(facts);
  facts.product_biases = facts.qkv_biases = true;
  expect_computes(facts, 20);
  // No norm and no product lies between two products in place of attention.
  facts = {.architecture = "deci", .layers = 5, .halves = false, .tied = true};
  facts.mixers = "alnla";
  facts.layer_kv_heads = {2, 0, 0, 0, 2};
  facts.layer_hidden = {96, 0, 0, 0, 96};
  expect_computes(facts, 20);
  expect_computes(facts, 20, true);
}

// Layers with a window have more heads, which turn as a whole. Gates of heads, and limits of the functions of experts.
TEST_F(Architectures, Step35) {
  Facts facts = dots("step35");
  facts.layers = 4;
  facts.layer_heads = {4, 6, 6, 4};
  facts.layer_kv_heads = {2, 2, 2, 2};
  facts.window = 8;
  facts.windowed = [](std::uint32_t layer) { return layer == 1 || layer == 2; };
  facts.turned = 16;
  facts.window_turned = 32;
  facts.window_base = 500;
  facts.divisors = 16;
  facts.gates_heads = true;
  facts.experts.limits = {0, 0, 7, 7};
  facts.experts.shared_limits = {0, 0, 0, 16};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.drop(prefix + "rope.dimension_count");
    file.f32(prefix + "rope.freq_base_swa", 500);
    file.numbers<std::uint8_t>(prefix + "attention.sliding_window_pattern", model::ValueType::kBool,
                               {0, 1, 1, 0});
    file.u32(prefix + "expert_feed_forward_length", 32);
    file.u32(prefix + "expert_shared_feed_forward_length", 64);
    file.boolean(prefix + "expert_weights_norm", true).f32(prefix + "expert_weights_scale", 2.5F);
    file.u32(prefix + "leading_dense_block_count", 1).u32(prefix + "moe_every_n_layers", 1);
    file.numbers<float>(prefix + "swiglu_clamp_exp", model::ValueType::kFloat32, {0, 0, 7, 7});
    file.numbers<float>(prefix + "swiglu_clamp_shexp", model::ValueType::kFloat32, {0, 0, 0, 16});
  };
  expect_computes(facts, 20);
  expect_computes(facts, 12, true);
  expect_keeps_bits(facts);
}

}  // namespace
}  // namespace bulkhead::forward
