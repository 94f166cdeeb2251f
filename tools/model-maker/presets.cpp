// The shapes of published models, from their configurations, and small shapes for tests.
#include <string>
#include <utility>
#include <vector>

#include "tools/model-maker/shape.hpp"

namespace bulkhead::model_maker {
namespace {

// Gives the shape the sizes of heads for attention over latents.
Shape with_latents(Shape shape, std::uint32_t latent, std::uint32_t q_latent, std::uint32_t turning,
                   std::uint32_t value) {
  shape.latent = latent;
  shape.q_latent = q_latent;
  shape.turning = turning;
  shape.value_size = value;
  return shape;
}
// Gives the shape experts that sigmoids choose, after one dense layer.
Shape with_sigmoids(Shape shape, float expert_scale) {
  shape.dense_layers = shape.shared_experts = 1;
  shape.sigmoid = shape.renormalised = true;
  shape.expert_scale = expert_scale;
  return shape;
}
Shape deepseek_v2_lite() {
  Shape shape{"deepseek-v2-lite",
              "deepseek2",
              27,
              2048,
              10944,
              16,
              1,
              192,
              102400,
              163840,
              10000.0F,
              1e-6F,
              false,
              false,
              false,
              64,
              6,
              1408,
              0,
              "yarn",
              40,
              4096};
  shape.yarn_log_multiplier = 0.0707F;
  shape.dense_layers = 1;
  shape.shared_experts = 2;
  shape.expert_scale = 1;
  return with_latents(shape, 512, 0, 64, 128);
}
Shape glm_4_5_air() {
  Shape shape{"glm-4.5-air", "glm4moe",  46,    4096,  10944, 96,   8,   128, 151552,
              131072,        1000000.0F, 1e-5F, false, false, true, 128, 8,   1408};
  shape.turning = 64;
  return with_sigmoids(shape, 1);
}
Shape glm_4_7_flash() {
  const Shape shape{"glm-4.7-flash", "deepseek2", 47,    2048,  10240, 20,    1,  256, 154880,
                    202752,          1000000.0F,  1e-5F, false, false, false, 64, 4,   1536};
  return with_latents(with_sigmoids(shape, 1.8F), 512, 768, 64, 256);
}
// Gives the shape gated delta nets, and attention in which a quarter of each head turns.
Shape with_delta_nets(Shape shape, std::uint32_t keys, std::uint32_t values, std::uint32_t size) {
  shape.delta_keys = keys;
  shape.delta_values = values;
  shape.delta_size = size;
  shape.turning = shape.head_size / 4;
  shape.shared_width = shape.expert_width;
  return shape;
}
Shape qwen3_5_27b() {
  return with_delta_nets({"qwen3.5-27b", "qwen35", 64, 5120, 17408, 24, 4, 256, 248320, 262144,
                          10000000.0F, 1e-6F, false, false, false},
                         16, 48, 128);
}
Shape qwen3_5_35b_a3b() {
  return with_delta_nets({"qwen3.5-35b-a3b", "qwen35moe", 40, 2048, 512, 16, 2, 256, 248320, 262144,
                          10000000.0F, 1e-6F, false, false, false, 256, 8, 512},
                         16, 32, 128);
}
// Returns the shape with two kinds of layers: as in Gemma 4, every sixth layer sees everything.
Shape with_two_kinds(Shape shape, std::uint32_t full_kv_heads, std::uint32_t window_head_size) {
  shape.full_interval = 6;
  shape.full_kv_heads = full_kv_heads;
  shape.window_head_size = window_head_size;
  shape.window_rope_base = 10000.0F;
  shape.logit_cap = 30;
  return shape;
}
Shape gemma_4_26b_a4b() {
  return with_two_kinds({"gemma-4-26b-a4b", "gemma4", 30, 2816, 2112, 16, 8, 512, 262144, 262144,
                         1000000.0F, 1e-6F, true, true, false, 128, 8, 704, 1024},
                        2, 256);
}
Shape tiny_two_kinds() {
  return with_two_kinds({"tiny-two-kinds", "gemma4", 6, 256, 320, 4, 2, 64, 512, 1024, 1000000.0F,
                         1e-6F, true, false, false, 8, 2, 96, 64},
                        1, 32);
}
Shape tiny_delta() {
  return with_delta_nets({"tiny-delta", "qwen35moe", 4, 256, 96, 4, 2, 64, 512, 1024, 10000000.0F,
                          1e-6F, false, false, false, 8, 2, 96},
                         2, 4, 64);
}
// Gives the shape experts without gates that sigmoids choose, and layers of these kinds.
Shape with_mamba(Shape shape, std::string kinds, std::uint32_t groups, std::uint32_t heads,
                 std::uint32_t state, std::uint32_t size) {
  shape.kinds = std::move(kinds);
  shape.delta_keys = groups;
  shape.delta_values = heads;
  shape.delta_size = state;
  shape.mamba_size = size;
  shape.shared_experts = 1;
  shape.shared_width = 2 * shape.expert_width;
  shape.sigmoid = shape.renormalised = true;
  shape.expert_scale = 2.5F;
  return shape;
}
Shape nemotron_3_nano() {
  return with_mamba({"nemotron-3-nano-30b-a3b", "nemotron_h_moe", 52, 2688, 1856, 32, 2, 128,
                     131072, 262144, 10000.0F, 1e-5F, false, false, false, 128, 6, 1856},
                    "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 8, 64, 128, 64);
}
Shape tiny_mamba() {
  return with_mamba({"tiny-mamba", "nemotron_h_moe", 5, 256, 96, 4, 2, 64, 512, 1024, 10000.0F,
                     1e-5F, false, false, false, 8, 2, 96},
                    "ME*ME", 2, 4, 64, 32);
}
Shape tiny_falcon_h1() {
  Shape shape{"tiny-falcon-h1", "falcon-h1", 2,     256,   512,  4, 2, 64, 512, 1024,
              100000000000.0F,  1e-5F,       false, false, false};
  shape.kinds = "HH";
  shape.delta_keys = 1;
  shape.delta_values = 4;
  shape.delta_size = 64;
  shape.mamba_size = 32;
  return shape;
}
Shape tiny_k_exaone() {
  return with_sigmoids({"tiny-k-exaone", "exaone-moe", 4, 256, 512, 4, 2, 64, 512, 1024, 1000000.0F,
                        1e-5F, false, false, false, 8, 2, 96, 64},
                       2.5F);
}
// Gives the shape layers of these kinds, some of which have short convolutions.
Shape with_convolutions(Shape shape, std::string kinds) {
  shape.kinds = std::move(kinds);
  shape.taps = 3;
  return shape;
}
// Gives the shape such layers, and experts that sigmoids choose after some dense layers.
Shape with_convolutions_and_experts(Shape shape, std::string kinds, std::uint32_t dense_layers) {
  shape.dense_layers = dense_layers;
  shape.sigmoid = shape.renormalised = true;
  shape.expert_scale = 1;
  return with_convolutions(std::move(shape), std::move(kinds));
}
Shape lfm2_1_2b() {
  return with_convolutions({"lfm2-1.2b", "lfm2", 16, 2048, 8192, 32, 8, 64, 65536, 128000,
                            1000000.0F, 1e-5F, true, false, false},
                           "CC*CC*CC*C*C*C*C");
}
Shape lfm2_8b_a1b() {
  return with_convolutions_and_experts({"lfm2-8b-a1b", "lfm2moe", 24, 2048, 7168, 32, 8, 64, 65536,
                                        128000, 1000000.0F, 1e-5F, true, false, false, 32, 4, 1792},
                                       "CC*CCC*CCC*CCC*CCC*CC*CC", 2);
}
Shape tiny_convolutions() {
  return with_convolutions({"tiny-convolutions", "lfm2", 4, 256, 512, 4, 2, 64, 512, 1024,
                            1000000.0F, 1e-5F, true, false, false},
                           "CC*C");
}
Shape tiny_convolutions_moe() {
  return with_convolutions_and_experts({"tiny-convolutions-moe", "lfm2moe", 4, 256, 512, 4, 2, 64,
                                        512, 1024, 1000000.0F, 1e-5F, true, false, false, 8, 2, 96},
                                       "CC*C", 1);
}
Shape tiny_latent() {
  const Shape shape{"tiny-latent", "deepseek2", 2,     256,   512,   4,     1, 96, 512,
                    1024,          1000000.0F,  1e-5F, false, false, false, 8, 2,  96};
  return with_latents(with_sigmoids(shape, 1.8F), 128, 64, 32, 64);
}
// Half of each head turns.
Shape with_half_turning(Shape shape) {
  shape.turning = shape.head_size / 2;
  return shape;
}
Shape tiny_glm() {
  Shape shape{"tiny-glm", "glm4moe",  3,     256,   512,   4,    2, 64, 512,
              1024,       1000000.0F, 1e-5F, false, false, true, 8, 2,  96};
  shape.turning = 32;
  return with_sigmoids(shape, 1);
}

// Sets how the shape's model makes one embedding of a text (the key pooling_type).
Shape with_pooling(Shape shape, std::uint32_t type) {
  shape.pooling = type;
  return shape;
}

// Gives the shape two dense layers after the pooling.
Shape with_dense(Shape shape, std::uint32_t between) {
  shape.dense = between;
  return with_pooling(std::move(shape), 1);
}
Shape embeddinggemma() {
  return with_dense({"embeddinggemma-300m", "gemma-embedding", 24, 768, 1152, 3, 1, 256, 262144,
                     2048, 1000000.0F, 1e-6F, true, false, false, 0, 0, 0, 512},
                    3072);
}
Shape tiny_gemma_embedding() {
  return with_dense({"tiny-gemma-embedding", "gemma-embedding", 6, 256, 320, 4, 2, 64, 512, 1024,
                     1000000.0F, 1e-6F, true, false, false, 0, 0, 0, 64},
                    512);
}

// The rows of the three lists: name, architecture, layers, embedding, ffn, heads, kv, head, vocabulary, context, rope,
// epsilon, tied, llama3, q, k and v have biases; experts, used, their feed-forward; window, rope scaling, its factor,
// original context.
std::vector<Shape> published_decoders() {
  return {
      {"llama-3.2-1b", "llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 500000.0F, 1e-5F, true,
       true, false},
      {"llama-3.2-3b", "llama", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 500000.0F, 1e-5F, true,
       true, false},
      {"llama-3.1-8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 500000.0F, 1e-5F,
       false, true, false},
      {"mistral-7b", "llama", 32, 4096, 14336, 32, 8, 128, 32768, 32768, 1000000.0F, 1e-5F, false,
       false, false},
      {"qwen2.5-0.5b", "qwen2", 24, 896, 4864, 14, 2, 64, 151936, 32768, 1000000.0F, 1e-6F, true,
       false, true},
      {"qwen2.5-7b", "qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 32768, 1000000.0F, 1e-6F, false,
       false, true},
      {"qwen3-0.6b", "qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1000000.0F, 1e-6F, true,
       false, false},
      {"qwen3-8b", "qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 40960, 1000000.0F, 1e-6F, false,
       false, false},
      {"qwen2.5-14b", "qwen2", 48, 5120, 13824, 40, 8, 128, 152064, 32768, 1000000.0F, 1e-6F, false,
       false, true},
      {"qwen2.5-32b", "qwen2", 64, 5120, 27648, 40, 8, 128, 152064, 32768, 1000000.0F, 1e-6F, false,
       false, true},
      {"qwen2.5-72b", "qwen2", 80, 8192, 29568, 64, 8, 128, 152064, 32768, 1000000.0F, 1e-6F, false,
       false, true},
      {"qwen3-32b", "qwen3", 64, 5120, 25600, 64, 8, 128, 151936, 40960, 1000000.0F, 1e-6F, false,
       false, false},
      {"phi-4", "phi3", 40, 5120, 17920, 40, 10, 128, 100352, 16384, 250000.0F, 1e-5F, false, false,
       false},
      {"mistral-small-24b", "llama", 40, 5120, 32768, 32, 8, 128, 131072, 32768, 100000000.0F,
       1e-5F, false, false, false},
      {"qwen3-30b-a3b", "qwen3moe", 48, 2048, 6144, 32, 4, 128, 151936, 40960, 1000000.0F, 1e-6F,
       false, false, false, 128, 8, 768},
      {"mixtral-8x7b", "llama", 32, 4096, 14336, 32, 8, 128, 32000, 32768, 1000000.0F, 1e-5F, false,
       false, false, 8, 2, 14336},
      {"gemma-3-12b", "gemma3", 48,    3840,  15360, 16, 8, 256,  262208,   131072, 1000000.0F,
       1e-6F,         true,     false, false, 0,     0,  0, 1024, "linear", 8},
      {"gpt-oss-20b", "gpt-oss", 24,    2880, 2880, 64, 8,    64,  201088, 131072, 150000.0F,
       1e-5F,         false,     false, true, 32,   4,  2880, 128, "yarn", 32,     4096},
      gemma_4_26b_a4b(),
      deepseek_v2_lite(),
      glm_4_5_air(),
      glm_4_7_flash(),
      qwen3_5_27b(),
      qwen3_5_35b_a3b(),
      nemotron_3_nano(),
      lfm2_1_2b(),
      lfm2_8b_a1b(),
      {"starcoder2-3b", "starcoder2", 30, 3072, 12288, 24, 2, 128, 49152, 16384, 999999.44F, 1e-5F,
       true, false, true},
      {"apertus-8b", "apertus", 32, 4096, 21504, 32, 8, 128, 131072, 65536, 12000000.0F, 1e-5F,
       false, true, false},
      with_half_turning({"nemotron-mini-4b", "nemotron", 32, 3072, 9216, 24, 8, 128, 256000, 4096,
                         10000.0F, 1e-5F, false, false, false}),
  };
}
std::vector<Shape> tiny_decoders() {
  return {
      {"tiny-apertus", "apertus", 2, 256, 512, 4, 2, 64, 512, 1024, 12000000.0F, 1e-5F, false,
       false, false},
      with_half_turning({"tiny-nemotron", "nemotron", 2, 256, 512, 4, 2, 64, 512, 1024, 10000.0F,
                         1e-5F, false, false, false}),
      {"tiny-llama", "llama", 2, 256, 512, 4, 2, 64, 512, 1024, 10000.0F, 1e-5F, false, false,
       false},
      {"tiny-qwen2", "qwen2", 2, 256, 512, 4, 2, 64, 512, 1024, 1000000.0F, 1e-6F, true, false,
       true},
      {"tiny-qwen3", "qwen3", 2, 320, 896, 6, 2, 48, 512, 1024, 1000000.0F, 1e-6F, true, false,
       false},
      {"tiny-moe", "qwen3moe", 2, 256, 512, 4, 2, 64, 512, 1024, 1000000.0F, 1e-6F, false, false,
       false, 8, 2, 96},
      {"tiny-mixtral", "llama", 2, 256, 512, 4, 2, 64, 512, 1024, 1000000.0F, 1e-6F, false, false,
       false, 4, 2, 512},
      tiny_latent(),
      tiny_glm(),
      tiny_delta(),
      tiny_mamba(),
      tiny_falcon_h1(),
      tiny_k_exaone(),
      tiny_convolutions(),
      tiny_convolutions_moe(),
      tiny_two_kinds(),
      {"tiny-starcoder2", "starcoder2", 2, 256, 512, 4, 2, 64, 512, 1024, 1000000.0F, 1e-5F, true,
       false, true},
  };
}
std::vector<Shape> encoders() {
  return {
      with_pooling({"all-minilm-l6", "bert", 6, 384, 1536, 12, 12, 32, 30522, 512, 10000.0F, 1e-12F,
                    true, false, true},
                   1),
      with_pooling({"bge-base-en", "bert", 12, 768, 3072, 12, 12, 64, 30522, 512, 10000.0F, 1e-12F,
                    true, false, true},
                   2),
      with_pooling({"nomic-embed-text", "nomic-bert", 12, 768, 3072, 12, 12, 64, 30522, 2048,
                    1000.0F, 1e-12F, true, false, false},
                   1),
      with_pooling({"tiny-bert", "bert", 2, 256, 512, 4, 4, 64, 512, 512, 10000.0F, 1e-12F, true,
                    false, true},
                   1),
      with_pooling({"tiny-nomic-bert", "nomic-bert", 2, 256, 512, 4, 4, 64, 512, 1024, 1000.0F,
                    1e-12F, true, false, false},
                   2),
      embeddinggemma(),
      tiny_gemma_embedding(),
      with_pooling({"granite-embedding-english-r2", "modern-bert", 22, 768, 1152, 12, 12, 64, 50368,
                    8192, 80000.0F, 1e-5F, true, false, false, 0, 0, 0, 128},
                   2),
      with_pooling({"tiny-modern-bert", "modern-bert", 4, 256, 512, 4, 4, 64, 512, 1024, 80000.0F,
                    1e-5F, true, false, false, 0, 0, 0, 64},
                   2),
      with_pooling({"nomic-embed-text-v2-moe", "nomic-bert-moe", 12, 768, 3072, 12, 12, 64, 250048,
                    512, 10000.0F, 1e-5F, true, false, true, 8, 2, 3072},
                   1),
      with_pooling({"tiny-nomic-bert-moe", "nomic-bert-moe", 2, 256, 512, 4, 4, 64, 512, 1024,
                    10000.0F, 1e-5F, true, false, true, 8, 2, 512},
                   1),
      with_pooling({"tiny-eurobert", "eurobert", 2, 256, 512, 4, 2, 64, 512, 1024, 250000.0F, 1e-5F,
                    true, false, false},
                   1),
  };
}

}  // namespace

const std::vector<Shape>& presets() {
  static const std::vector<Shape> kPresets = [] {
    std::vector<Shape> all = published_decoders();
    for (const std::vector<Shape>& more : {tiny_decoders(), encoders()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return kPresets;
}

}  // namespace bulkhead::model_maker
