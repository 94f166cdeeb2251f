// Attention over latent vectors of small transformers (tiny_model.hpp). The keys and values of all heads are made of
// one latent vector of the position, and of entries that turn, which all heads share.
#include <algorithm>
#include <cmath>
#include <numeric>
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
  if (l.joined) {
    add_matrix(block + "attn_kv_b", l.latent, f.heads * (l.plain + l.value));
  } else {
    add_matrix(block + "attn_k_b", l.plain, l.latent, f.heads);
    add_matrix(block + "attn_v_b", l.latent, l.value, f.heads);
  }
  add_matrix(block + "attn_output", std::uint64_t{f.heads} * l.value, f.width);
}

void Model::add_keys_of_latents(model::testing::GgufBuilder& made,
                                const std::string& prefix) const {
  const Facts& f = facts_;
  const LatentFacts& l = f.latents;
  made.drop(prefix + "attention.key_length");
  made.drop(prefix + "attention.value_length");
  made.u32(prefix + "attention.key_length", l.named ? l.latent + f.size : l.plain + f.size);
  made.u32(prefix + "attention.value_length", l.named ? l.latent : l.value);
  if (l.named) {
    made.u32(prefix + "attention.key_length_mla", l.plain + f.size);
    made.u32(prefix + "attention.value_length_mla", l.value);
  }
  made.u32(prefix + "attention.kv_lora_rank", l.latent);
  made.u32(prefix + "rope.dimension_count", f.size);
  if (l.q_rank != 0) made.u32(prefix + "attention.q_lora_rank", l.q_rank);
}

// Returns, for each row of the head's value, the weighted sum over the positions' rows.
Vector Model::value_of_latents(const std::string& block, std::size_t head,
                               const std::vector<Vector>& latents, const Vector& weights) const {
  const LatentFacts& l = facts_.latents;
  Vector mean(l.latent);
  for (std::size_t p = 0; p < weights.size(); ++p)
    add_to(mean, latents[p], weights[p]);
  if (!l.joined) return product(block + "attn_v_b", mean, head);
  return rows(block + "attn_kv_b", mean, 0, head * (l.plain + l.value) + l.plain, l.value);
}

// Returns the products of the head's plain query with each position's plain key.
Vector Model::scores_of_latents(const std::string& block, std::size_t head, const Vector& plain_q,
                                const std::vector<Vector>& latents) const {
  const LatentFacts& l = facts_.latents;
  Vector scores(latents.size());
  Vector of_latents;
  if (!l.joined) of_latents = product(block + "attn_k_b", plain_q, head);
  for (std::size_t p = 0; p < latents.size(); ++p) {
    if (!l.joined) {
      scores[p] = std::inner_product(of_latents.begin(), of_latents.end(), latents[p].begin(), 0.0);
      continue;
    }
    const Vector key =
        rows(block + "attn_kv_b", latents[p], 0, head * (l.plain + l.value), l.plain);
    scores[p] = std::inner_product(key.begin(), key.end(), plain_q.begin(), 0.0);
  }
  return scores;
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
      Vector weights = scores_of_latents(block, head, slice_of(q, first, l.plain), latents);
      Vector turned = slice_of(q, first + l.plain, f.size);
      if (f.turns) turn(turned, 1, at, false);
      for (std::size_t p = 0; p <= position; ++p) {
        for (std::size_t i = 0; i < f.size; ++i)
          weights[p] += turned[i] * keys[p][i];
      }
      const double most = *std::ranges::max_element(weights);
      double sum = 0;
      for (double& weight : weights)
        sum += weight = std::exp((weight - most) * scale);
      for (double& weight : weights)
        weight /= sum;
      const Vector value = value_of_latents(block, head, latents, weights);
      gathered.insert(gathered.end(), value.begin(), value.end());
    }
    out.push_back(product(block + "attn_output", gathered));
  }
  return out;
}

}  // namespace bulkhead::forward::tiny
