// NeoBERT (Le Breton et al. 2025, arXiv 2502.19587): an RMS norm before each branch, rotary positions, gated
// feed-forwards, and attention that sees the whole text. The rows of one tensor are q, k and v of the first head, then
// of the second, and so on, as the model's own code has them.
#include <utility>
#include <vector>

#include "worker/model/graph_encoder.hpp"

namespace bulkhead::model {
namespace {

std::vector<MatrixPart> rows_of_qkv(LayerBuilder& layer, const HeadShape& heads,
                                    std::uint32_t width) {
  const TensorIndex all = layer.rows("attn_qkv", width, heads.qkv_width()).tensor;
  std::vector<MatrixPart> parts;
  for (const std::uint64_t kind : {0U, 1U, 2U}) {
    for (std::uint64_t head = 0; head < heads.heads; ++head)
      parts.push_back({all, (3 * head + kind) * heads.size, heads.size, kind < 2});
  }
  return parts;
}

void describe_neo_bert(GraphBuilder& model) {
  const std::uint32_t width = model.embedding();
  GroupedAttention attention = model.grouped_attention(RopePairing::kAdjacent);
  attention.rules.both_ways = true;
  if (attention.heads.kv_heads != attention.heads.heads)
    model.refuse("has fewer heads of keys than of queries, which is not supported");
  const ActivationIndex hidden = model.input("hidden", model.feed_forward());

  model.embed();
  for (std::uint32_t i = 0; i < model.layer_count(); ++i) {
    LayerBuilder layer = model.layer(i);
    layer.norm(kStream, "attn_norm", attention.normed, attention.epsilon);
    layer.product(rows_of_qkv(layer, attention.heads, width), attention.normed, attention.qkv);
    layer.attend(attention);
    layer.norm(kStream, "ffn_norm", attention.normed, attention.epsilon);
    layer.fused_gated_product("ffn_up", attention.normed, hidden, Gate::kSilu);
    layer.product_added(layer.rows("ffn_down", model.feed_forward(), width), hidden, kStream);
  }
  end_encoder(model, attention.epsilon, "enc.output_norm");
}

}  // namespace

BULKHEAD_ARCHITECTURE(neo_bert, "neo-bert", describe_neo_bert);

}  // namespace bulkhead::model
