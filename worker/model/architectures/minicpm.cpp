// MiniCPM and MiniCPM4 (Hu et al. 2024, arXiv 2404.06395; MiniCPM team 2025, arXiv 2506.07900): Llama's graph with the
// scales that granite.cpp explains, and rotary positions that LongRoPE stretches.
#include <cmath>

#include "worker/model/architectures/shared.hpp"

namespace bulkhead::model {
namespace {

void describe_minicpm(GraphBuilder& model) {
  const HeadShape heads = model.heads();
  const RopeIndex rope = model.long_rope(heads, RopePairing::kAdjacent);
  // Older files have no scales; these are those of the first MiniCPM, which was tuned at a width of 256.
  LlamaScales scales;
  scales.embedding = model.positive("embedding_scale", 12);
  scales.residual = model.positive("residual_scale", 1.4 / std::sqrt(1.0 * model.layer_count()));
  scales.logit_divisor = model.positive("logit_scale", model.embedding() / 256.0);
  describe_scaled_llama(model, heads, rope, scales);
}

}  // namespace

BULKHEAD_ARCHITECTURE(minicpm, "minicpm", describe_minicpm);

}  // namespace bulkhead::model
