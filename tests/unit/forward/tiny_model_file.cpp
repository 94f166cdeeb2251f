// Small transformers (tiny_model.hpp) as files.
#include <cstring>
#include <string>

#include "tiny_model_math.hpp"

namespace bulkhead::forward::tiny {
std::string Model::file() const {
  const Facts& f = facts_;
  model::testing::GgufBuilder made;
  const std::string prefix = f.architecture + ".";
  made.text("general.architecture", f.architecture);
  made.u32(prefix + "block_count", f.layers).u32(prefix + "context_length", f.context);
  made.u32(prefix + "embedding_length", f.width).u32(prefix + "feed_forward_length", f.hidden);
  made.u32(prefix + "attention.head_count", f.heads)
      .u32(prefix + "attention.head_count_kv", f.kv_heads);
  made.u32(prefix + "attention.key_length", f.size).u32(prefix + "attention.value_length", f.size);
  made.f32(prefix + (f.layer_norms ? "attention.layer_norm_epsilon"
                                   : "attention.layer_norm_rms_epsilon"),
           static_cast<float>(kEpsilon));
  made.f32(prefix + "rope.freq_base", static_cast<float>(f.base));
  if (f.turned != 0) made.u32(prefix + "rope.dimension_count", f.turned);
  if (f.window != 0) made.u32(prefix + "attention.sliding_window", f.window);
  if (f.yarn.factor != 0) {
    made.text(prefix + "rope.scaling.type", "yarn");
    made.f32(prefix + "rope.scaling.factor", static_cast<float>(f.yarn.factor));
    made.u32(prefix + "rope.scaling.original_context_length", f.yarn.original);
  }
  if (!f.mixers.empty() || !f.layer_heads.empty()) add_keys_of_mixers(made, prefix);
  if (f.latents.latent != 0) add_keys_of_latents(made, prefix);
  if (f.experts.count != 0)
    made.u32(prefix + "expert_count", f.experts.count)
        .u32(prefix + "expert_used_count", f.experts.used);
  if (f.encoder) {
    if (is_bert()) made.boolean(prefix + "attention.causal", false);
    made.u32(prefix + "pooling_type", f.pooling);
  }
  if (f.dense != 0)
    made.u32(prefix + "dense_2_feat_in", f.width).u32(prefix + "dense_2_feat_out", f.dense);
  if (f.add_keys) f.add_keys(made, prefix);
  const std::string bare = "." + std::string(f.feed_forward_norm);
  for (const auto& [name, tensor] : tensors_) {
    const bool cut = f.bare_norm && name.ends_with(bare + ".weight");
    made.tensor(cut ? name.substr(0, name.find(bare) + bare.size()) : name, tensor.ne);
  }
  std::string bytes = made.bytes();
  const std::size_t begin = bytes.size() - made.data_bytes;
  auto placed = made.tensors.begin();
  for (const auto& [name, tensor] : tensors_) {
    std::memcpy(bytes.data() + begin + placed->offset, tensor.values.data(),
                tensor.values.size() * 4);
    ++placed;
  }
  return bytes;
}

}  // namespace bulkhead::forward::tiny
