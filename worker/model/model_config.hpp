// The shape of a transformer, read from a GGUF file and checked as a whole: what worker/forward
// needs to build its plan and worker/engine to size its cache.
#pragma once

#include <cstdint>
#include <string>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::model {

enum class Architecture { kLlama, kQwen2, kQwen3 };
const char* to_string(Architecture architecture);  // "llama", as in general.architecture

// Which entries of a head rotate together: (2i, 2i+1) or (i, i + rope_dimensions/2).
enum class RopePairing { kAdjacent, kHalves };

enum class RopeScaling { kNone, kLinear, kLlama3Factors /* from rope_freqs.weight */ };

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string name;  // general.name, else the file's name
  std::uint32_t layers = 0;
  std::uint32_t embedding = 0;  // width of the residual stream
  std::uint32_t feed_forward = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_size = 0;  // of q and k
  std::uint32_t value_head_size = 0;
  std::uint32_t vocabulary = 0;  // rows of token_embd.weight
  std::uint32_t context = 0;     // the model's own limit, in tokens
  float rms_epsilon = 1e-5F;
  std::uint32_t rope_dimensions = 0;  // entries of a head that rotate
  float rope_base = 10000.0F;
  RopePairing rope_pairing = RopePairing::kAdjacent;
  RopeScaling rope_scaling = RopeScaling::kNone;
  float rope_linear_factor = 1.0F;  // positions are divided by it
  bool qkv_bias = false;            // attn_{q,k,v}.bias are there
  bool qk_norm = false;             // attn_{q,k}_norm.weight are there, one head long
  bool tied_output = false;         // no output.weight: token_embd.weight serves

  std::uint32_t kv_width() const { return kv_heads * head_size; }
};

// Reads and checks: every hyperparameter sane, every needed tensor there with the right shape and a
// computable type. An unsupported architecture is named, with the list of supported ones.
Result<ModelConfig> read_model_config(const GgufFile& file);

}  // namespace bulkhead::model
