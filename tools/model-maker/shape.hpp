// What a made model looks like: its hyperparameters, and from them the list of its tensors with
// their types.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::model_maker {

struct Shape {
  std::string name;          // of the preset; general.name
  std::string architecture;  // of model::architectures()
  std::uint32_t layers = 0;
  std::uint32_t embedding = 0;
  std::uint32_t feed_forward = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_size = 0;
  std::uint32_t vocabulary = 0;
  std::uint32_t context = 0;
  float rope_base = 10000.0F;
  float rms_epsilon = 1e-5F;
  bool tied_output = false;
  bool llama3_rope = false;  // has the tensor of rope scaling factors
  bool qkv_bias = false;     // q, k and v have biases
  // Mixtures of experts: the number of experts, how many a token takes, and the width of each.
  std::uint32_t experts = 0, experts_used = 0, expert_width = 0;
  std::uint32_t window = 0;         // positions that windowed layers see
  std::string rope_scaling{};       // "linear", "yarn" or none
  float rope_factor = 0;            // of the scaling
  std::uint32_t rope_original = 0;  // positions before it was scaled
  // How many of a head's entries turn by position; 0: all.
  std::uint32_t turning = 0;
  // Attention over latents: entries of a latent, of the queries' own latent (0: they have none), and of a
  // head's value. head_size is that of a key.
  std::uint32_t latent = 0, q_latent = 0, value_size = 0;
  // The keys' and values' matrices are one tensor, as in files made before April 2025.
  bool joined_latents = false;
  float yarn_log_multiplier = 0;
  // Experts chosen by score: leading layers without experts, experts that all tokens take, whether scores are
  // sigmoids and have biases, whether weights add up to one, and what they are multiplied by.
  std::uint32_t dense_layers = 0, shared_experts = 0;
  bool sigmoid = false, renormalised = false;
  float expert_scale = 0;
  // Gated delta nets, in all but every fourth layer: heads of keys and of values (0: there are none), and their
  // size.
  std::uint32_t delta_keys = 0, delta_values = 0, delta_size = 0;
  std::uint32_t shared_width = 0;  // of a gated expert that all tokens take; 0: there is none
  // Each layer's kind: M is Mamba-2, * attention, E experts, C a short convolution over `taps` positions, H attention
  // and Mamba-2 side by side. Empty: all attend. delta_keys, delta_values and delta_size give the heads of Mamba-2,
  // too, except that a value has mamba_size entries. Only models with M have feed-forwards as layers of their own.
  std::string kinds{};
  std::uint32_t mamba_size = 0, taps = 0;
  // Layers of two kinds, as Gemma 4 has them: the last of each full_interval layers sees everything (0: all layers
  // are of one kind), and the others see the window. head_size and rope_base belong to the former, which have
  // full_kv_heads and use their keys' products as values. kv_heads belongs to the latter.
  std::uint32_t full_interval = 0, full_kv_heads = 0;
  std::uint32_t window_head_size = 0;
  float window_rope_base = 0;
  float logit_cap = 0;
  // What stands for a text in an encoder, as pooling_type in GGUF files has it (1 the mean, 2 the first token). 0: the
  // model is a decoder.
  std::uint32_t pooling = 0;
  // Entries between two dense layers after the pooling; 0: there are none.
  std::uint32_t dense = 0;
  // How many of a decoder's made tokens are unused ones after all others. Two models of the same seed that differ only
  // in this have the same weights, as far as a matrix has no more than 4 MiB.
  std::uint32_t padding = 0;
  // Whether a block that drafts tokens (multi-token prediction) follows the layers.
  bool drafting_block = false;
};

const std::vector<Shape>& presets();
Result<Shape> preset(const std::string& name);
// Returns an error unless every number is sane and fits the others.
Status check(const Shape& shape);

// How the values of a tensor are drawn.
enum class Fill {
  kWeights,      // mean 0, standard deviation `deviation`
  kNorm,         // around 1
  kRopeFactors,  // Llama 3's scaling of the rotation frequencies
  kRates,        // of gated delta nets' decay: below 0
};

struct PlannedTensor {
  std::string name;
  model::TensorType type = model::TensorType::kF32;
  std::vector<std::uint64_t> ne;  // ne[0] is the row length
  Fill fill = Fill::kWeights;
  double deviation = 0;

  std::uint64_t elements() const;
  std::uint64_t bytes() const;
};

// Returns the names that plan_tensors() takes: every tensor type's, and those of llama.cpp's mixtures Q4_K_S, Q4_K_M,
// Q5_K_S and Q5_K_M. With a tensor type's name all matrices have that type, except that the output gets Q6_K if the
// type is quantised to fewer than eight bits.
const std::vector<std::string>& file_types();

struct Plan {
  std::vector<PlannedTensor> tensors;
  std::uint32_t file_type = 0;  // general.file_type
  std::uint64_t bytes = 0;
};
// If a tensor's row is no multiple of the type's block, the tensor gets another type, as with llama.cpp's quantiser.
Result<Plan> plan_tensors(const Shape& shape, const std::string& file_type);

}  // namespace bulkhead::model_maker
