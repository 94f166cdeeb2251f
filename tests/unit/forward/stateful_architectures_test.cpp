// Compares architectures whose layers carry a state from position to position (Mamba-2, short convolutions, Kimi Delta
// Attention) to an evaluation in double of small random models.
#include <gmock/gmock.h>

#include "architecture_cases.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/inspect.hpp"

namespace bulkhead::forward {
namespace {

using ::testing::HasSubstr;

TEST_F(Architectures, GraniteHybrid) {
  Facts facts{.architecture = "granitehybrid", .layers = 4, .halves = false, .score_scale = 0.2};
  facts.mamba = {.heads = 4, .size = 24, .groups = 1, .state = 16};
  facts.mixers = "mmam";
  facts.turns = false;
  facts.embedding_scale = 3;
  facts.residual_scale = 0.4;
  facts.logit_divisor = 4;
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.f32(prefix + "embedding_scale", 3).f32(prefix + "residual_scale", 0.4F);
    file.f32(prefix + "logit_scale", 4).f32(prefix + "attention.scale", 0.2F);
    file.boolean(prefix + "rope.scaling.finetuned", false);
  };
  expect_computes(facts, 40);
  facts.hidden = 32;
  facts.experts = {.count = 8, .used = 3, .width = 32, .shared_width = 64, .renormalise = true};
  facts.add_keys = [scales = facts.add_keys](GgufBuilder& file, const std::string& prefix) {
    scales(file, prefix);
    file.u32(prefix + "expert_shared_feed_forward_length", 64);
  };
  expect_computes(facts, 20);
}

TEST_F(Architectures, NemotronH) {
  Facts facts{.architecture = "nemotron_h", .layers = 6};
  facts.mamba = {.heads = 6, .size = 16, .groups = 2, .state = 24};
  facts.mixers = "mfmafm";
  facts.one_branch = true;
  facts.turns = false;
  facts.function = Function::kSquaredRelu;
  facts.gated = false;
  expect_computes(facts, 40);
}

// Experts without gates. In the larger models of this architecture, experts read and write latent vectors.
TEST_F(Architectures, NemotronHMoe) {
  Facts facts{.architecture = "nemotron_h_moe", .layers = 4};
  facts.mamba = {.heads = 4, .size = 16, .groups = 2, .state = 16};
  facts.mixers = "mfaf";
  facts.one_branch = true;
  facts.turns = false;
  facts.function = Function::kSquaredRelu;
  facts.gated = false;
  facts.hidden = 32;
  facts.experts = {.count = 8,
                   .used = 3,
                   .width = 32,
                   .shared_width = 64,
                   .sigmoid = true,
                   .biased = true,
                   .renormalise = true,
                   .scale = 2.5};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32);
    file.u32(prefix + "expert_shared_feed_forward_length", 64);
    file.u32(prefix + "expert_shared_count", 1).u32(prefix + "expert_group_count", 1);
    file.boolean(prefix + "expert_weights_norm", true).f32(prefix + "expert_weights_scale", 2.5F);
  };
  expect_computes(facts, 20);
  facts.experts.latent = 32;
  facts.add_keys = [keys = facts.add_keys](GgufBuilder& file, const std::string& prefix) {
    keys(file, prefix);
    file.u32(prefix + "moe_latent_size", 32);
  };
  expect_computes(facts, 20);
  expect_computes(facts, 20, true);
}

Facts with_convolutions(const char* name) {
  Facts facts{.architecture = name, .layers = 4, .norms_heads = true};
  facts.mixers = "ccac";
  facts.tied = true;
  facts.last_norm = "token_embd_norm";
  return facts;
}

TEST_F(Architectures, Lfm2) {
  Facts facts = with_convolutions("lfm2");
  expect_computes(facts, 40);
  facts.last_norm = "output_norm";
  facts.taps = 5;
  expect_computes(facts, 20);
}

TEST_F(Architectures, Lfm2Moe) {
  Facts facts = with_convolutions("lfm2moe");
  facts.experts = {.count = 8,
                   .used = 3,
                   .width = 32,
                   .sigmoid = true,
                   .biased = true,
                   .renormalise = true,
                   .dense_layers = 1};
  facts.add_keys = [](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "expert_feed_forward_length", 32).u32(prefix + "expert_gating_func", 2);
    file.u32(prefix + "leading_dense_block_count", 1);
  };
  expect_computes(facts, 20);
}

// A prompt's chunks, some of them shorter than a convolution; a split over two devices; the kernels of GPUs.
TEST_F(Architectures, ConvolutionsKeepTheirBits) {
  expect_keeps_bits(with_convolutions("lfm2"));
}

// Nothing turns. The first layer is dense. As in published files, the length of values is that of no
// head.
Facts kimi_linear(std::uint32_t delta_size) {
  Facts facts{.architecture = "kimi-linear", .layers = 4, .kv_heads = 1};
  facts.mixers = "ddad";
  facts.latents = {.latent = 64, .plain = 32, .value = 32};
  facts.delta_size = delta_size;
  facts.taps = 4;
  facts.turns = false;
  facts.experts = {.count = 8,
                   .used = 3,
                   .width = 32,
                   .shared_width = 32,
                   .sigmoid = true,
                   .biased = true,
                   .renormalise = true,
                   .scale = 2.446,
                   .dense_layers = 1};
  facts.add_keys = [delta_size](GgufBuilder& file, const std::string& prefix) {
    file.u32(prefix + "kda.head_dim", delta_size).u32(prefix + "ssm.conv_kernel", 4);
    file.u32(prefix + "expert_feed_forward_length", 32).u32(prefix + "expert_shared_count", 1);
    file.u32(prefix + "leading_dense_block_count", 1).u32(prefix + "expert_gating_func", 2);
    file.f32(prefix + "expert_weights_scale", 2.446F);
    file.drop(prefix + "attention.value_length");
    file.u32(prefix + "attention.value_length", 72);
  };
  return facts;
}

TEST_F(Architectures, KimiLinear) {
  expect_computes(kimi_linear(16), 20);
  expect_computes(kimi_linear(16), 12, true);
  expect_keeps_bits(kimi_linear(16));
}

// Its first files name the sizes of heads, and have as many heads of keys as of queries.
TEST_F(Architectures, KimiLinearWithJoinedKeysAndValues) {
  Facts facts = kimi_linear(16);
  facts.latents.joined = true;
  facts.kv_heads = facts.heads;
  expect_computes(facts, 12);
}

TEST(KimiLinear, HasNoEntriesThatTurn) {
  const std::string bytes = tiny::Model(kimi_linear(16), 1).file();
  const auto file = model::testing::open_bytes(bytes);
  const auto text = model::describe(**file, false);
  ASSERT_TRUE(text.ok()) << text.error().message();
  EXPECT_THAT(*text, HasSubstr("4 heads over latents of 64 and 32 other entries"));
}

TEST(KimiLinear, RefusesWhatItCantCompute) {
  const auto refusal_of = [](const Facts& facts) {
    const std::string bytes = tiny::Model(facts, 1).file();
    const auto file = model::testing::open_bytes(bytes);
    return model::read_model(**file).error().message();
  };
  EXPECT_THAT(refusal_of(kimi_linear(6)), HasSubstr("kimi-linear.kda.head_dim"));
  Facts facts = kimi_linear(16);
  facts.mixers = "dddd";
  EXPECT_THAT(refusal_of(facts), HasSubstr("no layer that attends"));
  facts = kimi_linear(16);
  const auto add_keys = facts.add_keys;
  facts.add_keys = [&add_keys](GgufBuilder& file, const std::string& prefix) {
    add_keys(file, prefix);
    file.f32(prefix + "kda.gate_lower_bound", -5);
  };
  EXPECT_THAT(refusal_of(facts), HasSubstr("kda.gate_lower_bound"));
}

// Attention and Mamba-2 side by side. Most models have no norm of what Mamba-2 reads.
TEST_F(Architectures, FalconH1) {
  Facts facts{.architecture = "falcon-h1", .base = 1e11};
  facts.bare_norm = true;
  facts.mamba = {.heads = 4, .size = 24, .groups = 1, .state = 16, .norms = false};
  facts.mixers = "bb";
  expect_computes(facts, 40);
  expect_computes(facts, 20, true);
  expect_keeps_bits(facts);
  facts.mamba = {.heads = 6, .size = 16, .groups = 2, .state = 24};
  facts.product_biases = facts.qkv_biases = true;
  expect_computes(facts, 20);
}

}  // namespace
}  // namespace bulkhead::forward
