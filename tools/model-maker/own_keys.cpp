// The keys that only some architectures have.
#include <cmath>

#include "tools/model-maker/metadata.hpp"

namespace bulkhead::model_maker {
namespace {

// Adds the numbers of xIELU with which a training begins, the same for all layers. The two alphas are written as their
// values before softplus.
void add_xielu_keys(const Shape&, Metadata& metadata) {
  metadata.add_float("xielu.alpha_p", std::log(std::expm1(0.8F)));
  metadata.add_float("xielu.alpha_n", std::log(std::expm1(0.3F)));
  metadata.add_float("xielu.beta", 0.5F);
  metadata.add_float("xielu.eps", -1e-6F);
}

void add_expert_period(const Shape& shape, Metadata& metadata) {
  metadata.add_uint(shape.architecture + ".moe_every_n_layers", 2);
}

void add_logit_scale(const Shape& shape, Metadata& metadata) {
  metadata.add_float(shape.architecture + ".logit_scale", 1);
}

void add_no_input_per_layer(const Shape& shape, Metadata& metadata) {
  metadata.add_uint(shape.architecture + ".embedding_length_per_layer_input", 0);
}

// Adds the pairs that turn by a picture's time, row and column. All three are the position of a text's token.
void add_picture_pairs(const Shape& shape, Metadata& metadata) {
  const std::uint32_t turning = shape.turning != 0 ? shape.turning : shape.head_size;
  const auto pairs = static_cast<std::int32_t>(turning / 2);
  metadata.add_ints(shape.architecture + ".rope.dimension_sections",
                    {(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0});
}

// The keys that only these architectures have. Those from granite on mean what their absence means; Bulkhead can do
// without them, but llama.cpp refuses a file that lacks them.
struct OwnKeys {
  std::string_view architecture;
  void (*add)(const Shape& shape, Metadata& metadata);
};
constexpr OwnKeys kOwnKeys[] = {
    {"apertus", add_xielu_keys},        {"nomic-bert-moe", add_expert_period},
    {"granite", add_logit_scale},       {"granitemoe", add_logit_scale},
    {"gemma4", add_no_input_per_layer}, {"qwen35", add_picture_pairs},
    {"qwen35moe", add_picture_pairs},
};

}  // namespace

void add_own_keys(const Shape& shape, Metadata& metadata) {
  for (const OwnKeys& keys : kOwnKeys) {
    if (keys.architecture == shape.architecture) keys.add(shape, metadata);
  }
}

}  // namespace bulkhead::model_maker
