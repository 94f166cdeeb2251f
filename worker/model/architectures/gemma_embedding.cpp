// EmbeddingGemma (Google DeepMind 2025, arXiv 2509.20354): Gemma 3's layers, whose attention sees a text in both
// directions. Two dense layers without an activation between them change the pooled embedding. Converters leave them
// out of some files, which then have the embedding before them.
#include "worker/model/architectures/shared.hpp"
#include "worker/model/graph_encoder.hpp"

namespace bulkhead::model {
namespace {

// The first layer's inputs, and the width between the layers.
struct DenseLayers {
  ActivationIndex pooled = kAbsent, between = kAbsent;
  std::uint32_t width = 0;
};

DenseLayers dense_layers(GraphBuilder& model) {
  DenseLayers made;
  made.width = model.count("dense_2_feat_out", kMaxWidth);
  made.pooled = model.input("pooled embedding", model.embedding());
  made.between = model.input("between dense layers", made.width);
  return made;
}

void append_dense(GraphBuilder& model, LayerBuilder& last, const DenseLayers& shape) {
  const std::uint32_t width = model.embedding();
  const auto rows = [&](const char* name, std::uint64_t in, std::uint64_t out) {
    return MatrixPart{model.tensor(name, in, out), 0, out};
  };
  last.copy(kStream, shape.pooled);
  last.product({rows("dense_2.weight", width, shape.width)}, shape.pooled, shape.between);
  last.product({rows("dense_3.weight", shape.width, width)}, shape.between, kStream);
}

void describe_gemma_embedding(GraphBuilder& model) {
  const TextPooling pooling = read_pooling(model);
  const float epsilon = describe_gemma3_layers(model, true);
  LayerBuilder last = model.layer(model.layer_count() - 1);
  last.append(norm_of_stream(model, "output_norm", epsilon));
  pool_text(model, pooling);
  if (model.has_tensor("dense_2.weight")) append_dense(model, last, dense_layers(model));
  model.plain_output();
}

}  // namespace

BULKHEAD_ARCHITECTURE(gemma_embedding, "gemma-embedding", describe_gemma_embedding);

}  // namespace bulkhead::model
