#include "worker/model/graph_builder.hpp"

#include <algorithm>
#include <utility>

namespace bulkhead::model {
namespace {

// The name of the tensor that holds q, k and v.
constexpr const char* kFusedQkv = "attn_qkv";

std::string shape_text(std::span<const std::uint64_t> shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d)
    text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  return text + "]";
}

}  // namespace

GraphBuilder::GraphBuilder(const GgufFile& file, const Architecture& architecture, Has has,
                           Part part)
    : file_(file),
      architecture_(architecture),
      has_(std::move(has)),
      part_(part),
      prefix_(architecture.name) {
  graph_.architecture = architecture.name;
  read_names();
  // The blocks after the last layer draft tokens; streams do not need them.
  const std::uint32_t blocks = count("block_count", kMaxLayers);
  const std::uint32_t drafting = count("nextn_predict_layers", kMaxLayers, 0);
  if (drafting >= blocks)
    corrupt("metadata key " + key("nextn_predict_layers") + " leaves no layer of " +
            std::to_string(blocks));
  layers_ = status_.ok() ? blocks - drafting : 1;
  if (drafts()) choose_block(drafting);
  graph_.layers.resize(layers_ - first_layer_);
  graph_.embedding = count("embedding_length", kMaxWidth);
  graph_.context = count("context_length", kMaxContext);
  graph_.activations.push_back({"residual stream", graph_.embedding, Activation::Form::kStream});
}

Error GraphBuilder::damaged(const std::string& what) const {
  return Error(ErrorCode::kCorrupt,
               file_.name() + ": " + what + "; the file is damaged or was converted wrongly");
}
Error GraphBuilder::unsupported(const std::string& what) const {
  return Error(ErrorCode::kUnsupported, file_.name() + ": " + what);
}
void GraphBuilder::fail(Error error) {
  if (status_.ok()) status_ = std::move(error);
}
void GraphBuilder::refuse(const std::string& why) {
  fail(unsupported(why));
}
void GraphBuilder::corrupt(const std::string& what) {
  fail(damaged(what));
}

void GraphBuilder::read_names() {
  const auto title = file_.get_string("general.name");
  if (!title.ok()) return fail(title.error());
  graph_.name = *title && !(*title)->empty() ? std::string(**title)
                                             : file_.name().substr(file_.name().rfind('/') + 1);
}

float GraphBuilder::epsilon(std::string_view name) {
  const double epsilon = number(name, -1.0);
  if (!(epsilon > 0.0 && epsilon < 1.0))
    corrupt("metadata key " + key(name) + " is missing or not between 0 and 1");
  return static_cast<float>(epsilon);
}

RopeIndex GraphBuilder::add(Rope rope) {
  graph_.ropes.push_back(std::move(rope));
  return static_cast<RopeIndex>(graph_.ropes.size() - 1);
}
KvIndex GraphBuilder::add(KvStore store) {
  graph_.kv.push_back(store);
  return static_cast<KvIndex>(graph_.kv.size() - 1);
}
StateIndex GraphBuilder::add(StateStore store) {
  graph_.states.push_back(store);
  return static_cast<StateIndex>(graph_.states.size() - 1);
}
VectorIndex GraphBuilder::add(VectorRow row) {
  graph_.vectors.push_back(std::move(row));
  return static_cast<VectorIndex>(graph_.vectors.size() - 1);
}
ActivationIndex GraphBuilder::input(std::string name, std::uint64_t width,
                                    std::uint32_t per_column) {
  graph_.activations.push_back(
      {std::move(name), static_cast<std::uint32_t>(width), Activation::Form::kInput, per_column});
  return static_cast<ActivationIndex>(graph_.activations.size() - 1);
}
ActivationIndex GraphBuilder::floats(std::string name, std::uint64_t width,
                                     std::uint32_t per_column) {
  graph_.activations.push_back(
      {std::move(name), static_cast<std::uint32_t>(width), Activation::Form::kFloats, per_column});
  return static_cast<ActivationIndex>(graph_.activations.size() - 1);
}

ActivationIndex GraphBuilder::shared(const std::string& name, std::uint32_t width,
                                     Activation::Form form) {
  for (std::size_t i = 0; i < graph_.activations.size(); ++i) {
    const Activation& made = graph_.activations[i];
    if (made.name == name && made.width == width && made.form == form)
      return static_cast<ActivationIndex>(i);
  }
  graph_.activations.push_back({name, width, form});
  return static_cast<ActivationIndex>(graph_.activations.size() - 1);
}

void GraphBuilder::check(const std::string& name, const TensorInfo& found, const TensorRow& row) {
  if (found.ne[0] != row.width || found.ne[1] != row.rows || found.ne[2] != row.slices ||
      found.ne[3] != 1) {
    std::vector<std::uint64_t> wanted{row.width};
    if (row.rows != 1 || row.slices != 1) wanted.push_back(row.rows);
    if (row.slices != 1) wanted.push_back(row.slices);
    return corrupt("tensor " + name + " has the shape " +
                   shape_text(std::span(found.ne).first(found.dimensions)) + ", not " +
                   shape_text(wanted));
  }
  if (row.plain && !traits(found.type)->is_float())
    refuse("tensor " + name + " is of type " + traits(found.type)->name + "; it must be of floats");
  // Norm weights, biases and factors are vectors. To store them in a smaller type would save almost nothing.
  if (row.rows == 1 && row.slices == 1 && found.type != TensorType::kF32)
    refuse("tensor " + name + " is of type " + traits(found.type)->name + "; vectors must be F32");
}

TensorIndex GraphBuilder::optional_tensor(const std::string& name, std::uint64_t width,
                                          std::uint64_t rows, std::uint64_t slices) {
  return has_tensor(name) ? tensor(name, width, rows, slices) : kAbsent;
}

bool GraphBuilder::has_tensor(const std::string& name) const {
  return has_ ? has_(name) : file_.find_tensor(name) != nullptr;
}

bool GraphBuilder::some_layer_has(const std::string& name) const {
  for (std::uint32_t i = 0; i < layers_; ++i) {
    if (has_tensor("blk." + std::to_string(i) + "." + name)) return true;
  }
  return false;
}

TensorIndex GraphBuilder::tensor(const std::string& name, std::uint64_t width, std::uint64_t rows,
                                 std::uint64_t slices) {
  return require({name, width, rows, slices});
}

TensorIndex GraphBuilder::require(TensorRow row) {
  used_tensors_.insert(row.name);
  if (!has_) {
    const TensorInfo* const found = file_.find_tensor(row.name);
    if (found == nullptr) {
      corrupt("tensor " + row.name + " is missing");
    } else {
      check(row.name, *found, row);
    }
  }
  graph_.tensors.push_back(std::move(row));
  return static_cast<TensorIndex>(graph_.tensors.size() - 1);
}

TensorIndex GraphBuilder::float_rows(const std::string& name, std::uint64_t width,
                                     std::uint64_t rows, std::uint64_t slices) {
  return require({name, width, rows, slices, true});
}

GroupedAttention GraphBuilder::grouped_attention(RopePairing pairing) {
  return grouped_attention(heads(), pairing);
}

GroupedAttention GraphBuilder::grouped_attention(const HeadShape& heads, RopePairing pairing) {
  GroupedAttention made;
  made.heads = heads;
  made.epsilon = rms_epsilon();
  made.rope = rope(made.heads, pairing);
  made.normed = input("normed stream", embedding());
  made.qkv = floats("q, k, v", made.heads.qkv_width());
  made.attended = input("attention result", made.heads.query_width());
  return made;
}

void GraphBuilder::embed(float scale) {
  std::uint64_t rows = 0;
  if (has_) {
    rows = count("vocab_size", kMaxVocabulary);
  } else {
    const TensorInfo* const found = file_.find_tensor("token_embd.weight");
    if (file_.tensors().empty())
      return refuse("holds no tensors (a vocabulary-only file), so no model can run from it");
    if (found == nullptr) return corrupt("tensor token_embd.weight is missing");
    rows = found->rows();
  }
  if (rows < 2 || rows > kMaxVocabulary)
    return corrupt("tensor token_embd.weight has " + std::to_string(rows) +
                   " rows, not from 2 to " + std::to_string(kMaxVocabulary));
  graph_.vocabulary = static_cast<std::uint32_t>(rows);
  const std::string name = drafting_name("embed_tokens", "token_embd.weight");
  graph_.embedding_rows = {tensor(name, graph_.embedding, rows), 0, rows};
  graph_.embedding_scale = scale;
  if (drafts()) join_hidden_states(name, scale);
  const auto tokens = file_.array_length("tokenizer.ggml.tokens");
  if (tokens && *tokens != rows)
    corrupt("the tokenizer has " + std::to_string(*tokens) + " tokens, token_embd.weight " +
            std::to_string(rows) + " rows");
}

void GraphBuilder::lookup(const std::string& name, ActivationIndex out, float scale) {
  const std::uint32_t width = graph_.activations[out].width;
  graph_.lookups.push_back(
      {{tensor(name, width, graph_.vocabulary), 0, graph_.vocabulary}, out, scale});
}

void GraphBuilder::output(float epsilon, float divisor, const std::string& gain) {
  const std::string norm = drafting_name("shared_head_norm", gain + ".weight");
  graph_.output_gain = add(VectorRow{{{tensor(norm, graph_.embedding)}}, 1.0F / divisor});
  graph_.output_epsilon = epsilon;
  graph_.output_rows = graph_.embedding_rows;
  const TensorIndex own = optional_tensor(drafting_name("shared_head_head", "output.weight"),
                                          graph_.embedding, graph_.vocabulary);
  if (own != kAbsent) {
    graph_.output_rows.tensor = own;
  } else if (drafts()) {
    graph_.output_rows.tensor = tensor("token_embd.weight", graph_.embedding, graph_.vocabulary);
  }
}

void GraphBuilder::bias_logits() {
  const TensorIndex bias = optional_tensor("output.bias", graph_.vocabulary);
  if (bias != kAbsent) graph_.logit_bias = add(VectorRow{{{bias}}});
}

void GraphBuilder::plain_output() {
  graph_.output_rows = graph_.embedding_rows;
}

void GraphBuilder::plain_centred_output(float epsilon, float divisor) {
  output(epsilon, divisor);
  graph_.output_centred = true;
}

void GraphBuilder::centred_output(float epsilon) {
  plain_centred_output(epsilon);
  graph_.output_bias = add(VectorRow{{{tensor("output_norm.bias", graph_.embedding)}}});
}

float GraphBuilder::cap(std::string_view name, double fallback) {
  const double found = number(name, fallback);
  if (!(found >= 0 && found < 1e6))
    corrupt("metadata key " + key(name) + " is not a cap from 0 to 1000000");
  return static_cast<float>(found);
}

void GraphBuilder::cap_logits(std::string_view name, double fallback) {
  graph_.logit_cap = cap(name, fallback);
}

LayerBuilder GraphBuilder::layer(std::uint32_t index) {
  return LayerBuilder(*this, index);
}

LayerBuilder::LayerBuilder(GraphBuilder& model, std::uint32_t index)
    : model_(model), index_(index), block_("blk." + std::to_string(index) + ".") {}

VectorIndex LayerBuilder::vector(const std::string& name, std::uint64_t width) {
  return model_.add(VectorRow{{{model_.tensor(block_ + name + ".weight", width)}}});
}

VectorIndex LayerBuilder::optional_vector(const std::string& name, std::uint64_t width) {
  const TensorIndex tensor = model_.optional_tensor(block_ + name + ".weight", width);
  return tensor == kAbsent ? kAbsent : model_.add(VectorRow{{{tensor}}});
}

VectorIndex LayerBuilder::bias(const std::string& name, std::uint64_t width) {
  return model_.add(VectorRow{{{model_.tensor(block_ + name + ".bias", width)}}});
}

VectorIndex LayerBuilder::optional_bias(const std::string& name, std::uint64_t width) {
  const TensorIndex tensor = model_.optional_tensor(block_ + name + ".bias", width);
  return tensor == kAbsent ? kAbsent : model_.add(VectorRow{{{tensor}}});
}

void LayerBuilder::add_head_gains(Rotate& rotate, std::uint32_t size) {
  rotate.q_gain = optional_vector("attn_q_norm", size);
  rotate.k_gain = optional_vector("attn_k_norm", size);
  if ((rotate.q_gain == kAbsent) != (rotate.k_gain == kAbsent))
    model_.refuse(block_ +
                  "attn_{q,k}_norm.weight: one is there and one is not; a layer must have both or "
                  "none");
}

VectorIndex LayerBuilder::sinks(const HeadShape& heads) {
  // Scores are computed as exponents of two.
  constexpr float kLog2E = 1.44269504F;
  return model_.add(
      VectorRow{{{model_.tensor(block_ + "attn_sinks.weight", heads.heads)}}, kLog2E});
}

void LayerBuilder::norm(ActivationIndex in, const std::string& gain, ActivationIndex out,
                        float epsilon) {
  Norm norm;
  norm.in = in;
  norm.out = out;
  norm.width = width(in);
  norm.gain = vector(gain, norm.width);
  norm.epsilon = epsilon;
  operations().push_back(norm);
}

void LayerBuilder::layer_norm(ActivationIndex in, const std::string& name, ActivationIndex out,
                              float epsilon) {
  plain_layer_norm(in, name, out, epsilon);
  std::get<Norm>(operations().back()).bias = bias(name, width(in));
}

void LayerBuilder::plain_layer_norm(ActivationIndex in, const std::string& gain,
                                    ActivationIndex out, float epsilon) {
  norm(in, gain, out, epsilon);
  std::get<Norm>(operations().back()).centred = true;
}

void LayerBuilder::project(const GroupedAttention& shape) {
  norm(kStream, "attn_norm", shape.normed, shape.epsilon);
  product(qkv(shape.heads, model_.embedding()), shape.normed, shape.qkv);
}

void LayerBuilder::attend(const GroupedAttention& shape, Rotate rotate) {
  rotate.qkv = shape.qkv;
  rotate.heads = shape.heads;
  rotate.epsilon = shape.epsilon;
  rotate.rope = shape.rope;
  attention(rotate, shape.attended, shape.rules);
  product_added(rows("attn_output", shape.heads.query_width(), model_.embedding()), shape.attended,
                kStream, optional_bias("attn_output", model_.embedding()));
}

void LayerBuilder::norm_added(ActivationIndex in, const std::string& gain, ActivationIndex out,
                              float epsilon) {
  norm(in, gain, out, epsilon);
  std::get<Norm>(operations().back()).adds = true;
}

void LayerBuilder::norm_within(ActivationIndex in, std::uint32_t first, std::uint32_t width,
                               const std::string& gain, float epsilon) {
  Norm norm;
  norm.in = norm.out = in;
  norm.first = first;
  norm.width = width;
  norm.gain = vector(gain, width);
  norm.epsilon = epsilon;
  operations().push_back(norm);
}

void LayerBuilder::copy(ActivationIndex in, ActivationIndex out) {
  operations().push_back(Copy{in, out});
}

std::vector<MatrixPart> LayerBuilder::qkv(const HeadShape& heads, std::uint64_t width) {
  if (model_.has_tensor(name(std::string(kFusedQkv) + ".weight")))
    return fused_qkv(kFusedQkv, heads, width);
  return {rotating_rows("attn_q", width, heads.query_width()),
          rotating_rows("attn_k", width, heads.kv_width()),
          rows("attn_v", width, heads.kv_width())};
}

std::vector<MatrixPart> LayerBuilder::fused_qkv(const std::string& name, const HeadShape& heads,
                                                std::uint64_t width) {
  const TensorIndex all = rows(name, width, heads.qkv_width()).tensor;
  const std::uint64_t q = heads.query_width(), kv = heads.kv_width();
  return {{all, 0, q, true}, {all, q, kv, true}, {all, q + kv, kv, false}};
}

MatrixPart LayerBuilder::rows(const std::string& name, std::uint64_t width, std::uint64_t rows) {
  return {model_.tensor(block_ + name + ".weight", width, rows), 0, rows};
}
MatrixPart LayerBuilder::slices(const std::string& name, std::uint64_t width, std::uint64_t rows,
                                std::uint64_t slices) {
  return {model_.tensor(block_ + name + ".weight", width, rows, slices), 0, rows};
}
MatrixPart LayerBuilder::rotating_rows(const std::string& name, std::uint64_t width,
                                       std::uint64_t rows) {
  MatrixPart part = this->rows(name, width, rows);
  part.rotates = true;
  return part;
}

void LayerBuilder::product(std::vector<MatrixPart> parts, ActivationIndex in, ActivationIndex out,
                           VectorIndex bias) {
  operations().push_back(Product{std::move(parts), in, out, false, bias});
}
void LayerBuilder::product_added(MatrixPart part, ActivationIndex in, ActivationIndex out,
                                 VectorIndex bias) {
  operations().push_back(Product{{part}, in, out, true, bias});
}

VectorIndex LayerBuilder::qkv_bias(const HeadShape& heads) {
  if (model_.has_tensor(name(std::string(kFusedQkv) + ".weight")))
    return fused_qkv_bias(kFusedQkv, heads);
  const TensorIndex q = model_.optional_tensor(block_ + "attn_q.bias", heads.query_width());
  const TensorIndex k = model_.optional_tensor(block_ + "attn_k.bias", heads.kv_width());
  const TensorIndex v = model_.optional_tensor(block_ + "attn_v.bias", heads.kv_width());
  if ((q == kAbsent) != (k == kAbsent) || (q == kAbsent) != (v == kAbsent))
    model_.refuse(block_ +
                  "attn_{q,k,v}.bias: some are there and some are not; a layer must have all "
                  "three or none");
  if (q == kAbsent || !model_.status().ok()) return kAbsent;
  return model_.add(VectorRow{{{q, true}, {k, true}, {v}}});
}

VectorIndex LayerBuilder::fused_qkv_bias(const std::string& name, const HeadShape& heads) {
  const TensorIndex all = model_.optional_tensor(block_ + name + ".bias", heads.qkv_width());
  const std::uint64_t q = heads.query_width(), kv = heads.kv_width();
  if (all == kAbsent) return kAbsent;
  return model_.add(VectorRow{{{all, true, 0, q}, {all, true, q, kv}, {all, false, q + kv, kv}}});
}

KvIndex LayerBuilder::attention(Rotate rotate, ActivationIndex out, ScoreRules rules) {
  // The kernel takes the norm's factor from the head before its rotation, which must not change the head's length.
  if (rotate.norms_turned && rotate.rope != kAbsent &&
      model_.graph_.ropes[rotate.rope].magnitude != 1)
    model_.refuse("has heads that are normed after a rotation that stretches them (" +
                  model_.key("rope.scaling.*") + "), which is not supported");
  if (rules.window >= model_.context()) rules.window = 0;
  if (rotate.kv == kAbsent)
    rotate.kv = model_.add(KvStore{rotate.heads.kv_heads, rotate.heads.size});
  operations().push_back(rotate);
  operations().push_back(Attend{rotate.heads, rotate.kv, out, rules});
  return rotate.kv;
}

void LayerBuilder::fused_gated_product(const std::string& gate_and_up, ActivationIndex in,
                                       ActivationIndex out, Gate function) {
  const std::uint64_t half = width(out);
  const TensorIndex both = rows(gate_and_up, width(in), 2 * half).tensor;
  operations().push_back(GatedProduct{{both, 0, half}, {both, half, half}, in, out, function});
}

void LayerBuilder::activated_product(const std::string& name, ActivationIndex in,
                                     ActivationIndex out, Gate function) {
  GatedProduct made{rows(name, width(in), width(out)), {}, in, out, function};
  made.bias = bias(name, width(out));
  operations().push_back(made);
}

void LayerBuilder::gated_product(const std::string& gate, const std::string& up, ActivationIndex in,
                                 ActivationIndex out, Gate function) {
  operations().push_back(GatedProduct{rows(gate, width(in), width(out)),
                                      rows(up, width(in), width(out)), in, out, function});
}

}  // namespace bulkhead::model
