// Attention over latent vectors of small transformers (tiny_model.hpp). The keys and values of all heads are made of
// one latent vector of the position, and of entries that turn, which all heads share.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tiny_model_math.hpp"

namespace bulkhead::forward::tiny {

void Model::add_latents(const std::string& block) {
  const Facts& f = facts_;
  const LatentFacts& l = f.latents;
  const std::uint64_t q = std::uint64_t{f.heads} * (l.plain + f.size);
  if (l.q_rank != 0) {
    add_matrix(block + "attn_q_a", f.width, l.q_rank);
    add_norm(block + "attn_q_a_norm", l.q_rank);
  }
  add_matrix(block + (l.q_rank != 0 ? "attn_q_b" : "attn_q"), l.q_rank != 0 ? l.q_rank : f.width,
             q);
  add_matrix(block + "attn_kv_a_mqa", f.width, l.latent + f.size);
  add_norm(block + "attn_kv_a_norm", l.latent);
  add_matrix(block + "attn_k_b", l.plain, l.latent, f.heads);
  add_matrix(block + "attn_v_b", l.latent, l.value, f.heads);
  add_matrix(block + "attn_output", std::uint64_t{f.heads} * l.value, f.width);
}

void Model::add_keys_of_latents(model::testing::GgufBuilder& made,
                                const std::string& prefix) const {
  const Facts& f = facts_;
  const LatentFacts& l = f.latents;
  made.drop(prefix + "attention.key_length");
  made.drop(prefix + "attention.value_length");
  made.u32(prefix + "attention.key_length", l.latent + f.size);
  made.u32(prefix + "attention.value_length", l.latent);
  made.u32(prefix + "attention.key_length_mla", l.plain + f.size);
  made.u32(prefix + "attention.value_length_mla", l.value);
  made.u32(prefix + "attention.kv_lora_rank", l.latent);
  made.u32(prefix + "rope.dimension_count", f.size);
  if (l.q_rank != 0) made.u32(prefix + "attention.q_lora_rank", l.q_rank);
}

std::vector<Vector> Model::latent_attention(std::uint32_t layer,
                                            const std::vector<Vector>& in) const {
  const Facts& f = facts_;
  const LatentFacts& l = f.latents;
  const std::string block = block_of(layer);
  const auto slice_of = [](const Vector& of, std::size_t first, std::size_t count) {
    const auto begin = of.begin() + static_cast<std::ptrdiff_t>(first);
    return Vector(begin, begin + static_cast<std::ptrdiff_t>(count));
  };
  const double scale = f.score_scale != 0 ? f.score_scale : 1 / std::sqrt(1.0 * l.plain + f.size);
  std::vector<Vector> latents, keys, out;
  for (std::size_t position = 0; position < in.size(); ++position) {
    const auto at = static_cast<std::uint32_t>(position);
    const Vector row = product(block + "attn_kv_a_mqa", in[position]);
    latents.push_back(norm(block + "attn_kv_a_norm", slice_of(row, 0, l.latent)));
    keys.push_back(slice_of(row, l.latent, f.size));
    if (f.turns) turn(keys.back(), 1, at, false);
    const Vector q =
        l.q_rank != 0 ? product(block + "attn_q_b", norm(block + "attn_q_a_norm",
                                                         product(block + "attn_q_a", in[position])))
                      : product(block + "attn_q", in[position]);
    Vector gathered;
    for (std::size_t head = 0; head < f.heads; ++head) {
      const std::size_t first = head * (l.plain + f.size);
      const Vector of_latents = product(block + "attn_k_b", slice_of(q, first, l.plain), head);
      Vector turned = slice_of(q, first + l.plain, f.size);
      if (f.turns) turn(turned, 1, at, false);
      Vector weights(position + 1), mean(l.latent);
      for (std::size_t p = 0; p <= position; ++p) {
        for (std::size_t i = 0; i < l.latent; ++i)
          weights[p] += of_latents[i] * latents[p][i];
        for (std::size_t i = 0; i < f.size; ++i)
          weights[p] += turned[i] * keys[p][i];
      }
      const double most = *std::ranges::max_element(weights);
      double sum = 0;
      for (double& weight : weights)
        sum += weight = std::exp((weight - most) * scale);
      for (std::size_t p = 0; p <= position; ++p)
        add_to(mean, latents[p], weights[p] / sum);
      const Vector value = product(block + "attn_v_b", mean, head);
      gathered.insert(gathered.end(), value.begin(), value.end());
    }
    out.push_back(product(block + "attn_output", gathered));
  }
  return out;
}

}  // namespace bulkhead::forward::tiny
