#include "worker/forward/model_plan.hpp"

#include <algorithm>
#include <utility>

#include "config/base/overloaded.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;
using model::ActivationIndex;
using model::MatrixPart;

namespace {

class Planner {
 public:
  Planner(const model::ModelGraph& graph, const model::GgufFile& file, const k::Mapping& mapping,
          k::KvFormat kv)
      : graph_(graph), file_(file), mapping_(mapping), kv_(kv) {
    plan_.fuses = !mapping.rows;
    plan_.activations = graph.activations;
    plan_.vector_orders.resize(graph.vectors.size());
  }

  Result<ModelPlan> plan() {
    BULKHEAD_RETURN_IF_ERROR(add_ends());
    for (const model::Lookup& lookup : graph_.lookups) {
      BULKHEAD_TRY(plan_.lookups.emplace_back(), matrix({lookup.rows}, {}, Packing::kPlanes));
      plan_.matrices.back().read_by_every_step = false;
    }
    writer_.start = model::begins_prepared(graph_);
    for (const model::Layer& layer : graph_.layers) {
      plan_.prepared.push_back(writer_.waits());
      for (std::size_t i = 0; i < layer.operations.size(); ++i) {
        const model::Operation* const next =
            i + 1 < layer.operations.size() ? &layer.operations[i + 1] : nullptr;
        BULKHEAD_RETURN_IF_ERROR(add(layer.operations[i], next));
      }
    }
    if (plan_.activations.size() > kMostActivations)
      return Error(ErrorCode::kInternal, "a model of too many activations");
    return std::move(plan_);
  }

 private:
  // Adds the matrices before and after the layers: one if both are the same tensor, else an embedding in planes.
  Status add_ends() {
    if (graph_.start == model::StreamStart::kEmbedding) {
      const Packing packing = graph_.tied_output() ? Packing::kUnits : Packing::kPlanes;
      BULKHEAD_TRY(plan_.embedding, matrix({graph_.embedding_rows}, {}, packing));
      if (graph_.makes_logits && graph_.tied_output()) plan_.output = plan_.embedding;
      plan_.matrices[plan_.embedding].read_by_every_step = plan_.output != kAbsent;
    }
    if (!graph_.makes_logits || plan_.output != kAbsent) return {};
    BULKHEAD_TRY(plan_.output, matrix({graph_.output_rows}, {}));
    return {};
  }

  Status add(const model::Operation& operation, const model::Operation* next) {
    return std::visit(Overloaded{
                          [this](const model::Norm& norm) { return add_norm(norm); },
                          [&](const model::Product& product) {
                            const auto* const rotate =
                                next != nullptr ? std::get_if<model::Rotate>(next) : nullptr;
                            return add_product(product, rotate);
                          },
                          [this](const model::SliceProduct& each) { return add_slices(each); },
                          [this](const model::Rotate& rotate) { return add_rotate(rotate); },
                          [this](const model::RotateLatent& rotate) { return add_latent(rotate); },
                          [this](const model::Attend& attend) { return add_attend(attend); },
                          [this](const model::GatedProduct& gated) { return add_gated(gated); },
                          [this](const model::Experts& experts) { return add_experts(experts); },
                          [this](const model::Gated& gated) { return add_gate(gated); },
                          [this](const model::DeltaNet& net) { return add_delta(net); },
                          [this](const model::StandsAlone auto& each) { return add_alone(each); },
                      },
                      operation);
  }

  // Adds a matrix of these rows, which have equal types. If a tensor has slices, the rows are of its first slice.
  Result<MatrixIndex> matrix(const std::vector<MatrixPart>& parts, std::vector<RowOrder> orders,
                             Packing packing = Packing::kUnits) {
    std::vector<SlicePart> all;
    for (const MatrixPart& part : parts)
      all.push_back({part, 0});
    return matrix_of(all, std::move(orders), packing, 1);
  }

  // Rows of one slice of a tensor.
  struct SlicePart {
    MatrixPart part;
    std::uint64_t slice = 0;
  };
  // Does the same for `slices` matrices; the parts of each follow those of the one before.
  Result<MatrixIndex> matrix_of(const std::vector<SlicePart>& parts, std::vector<RowOrder> orders,
                                Packing packing, std::uint32_t slices,
                                RowsAre rows_are = RowsAre::kRows) {
    auto views = std::make_shared<std::vector<model::TensorInfo>>();
    PlannedMatrix made;
    for (const auto& [part, slice] : parts) {
      const model::TensorRow& row = graph_.tensors[part.tensor];
      const model::TensorInfo* const tensor = file_.find_tensor(row.name);
      if (tensor == nullptr)
        return Error(ErrorCode::kCorrupt, file_.name() + ": tensor " + row.name + " is missing");
      model::TensorInfo& view = views->emplace_back(*tensor);
      const std::uint64_t row_bytes = tensor->row_bytes();
      view.ne[1] = part.rows;
      view.ne[2] = 1;
      view.data = tensor->data.subspan((slice * row.rows + part.first_row) * row_bytes,
                                       part.rows * row_bytes);
      made.sources.push_back(view.data);
    }
    made.name = graph_.tensors[parts.front().part.tensor].name;
    std::vector<const model::TensorInfo*> tensors;
    for (const model::TensorInfo& view : *views)
      tensors.push_back(&view);
    if (!mapping_.units) packing = Packing::kPlanes;
    made.packed =
        std::make_shared<const PackedMatrix>(tensors, std::move(orders), packing, slices, rows_are);
    made.views = std::move(views);
    plan_.matrices.push_back(std::move(made));
    return static_cast<MatrixIndex>(plan_.matrices.size() - 1);
  }

  model::TensorType type_of(const MatrixPart& part) const {
    const model::TensorInfo* const tensor = file_.find_tensor(graph_.tensors[part.tensor].name);
    return tensor != nullptr ? tensor->type : model::TensorType::kF32;
  }

  OperandsIndex add(PlannedOperands operands) {
    plan_.operands.push_back(std::move(operands));
    return static_cast<OperandsIndex>(plan_.operands.size() - 1);
  }

  // The step that made the stream prepares the next product's input. It prepares one input, for one norm.
  Status add_norm(const model::Norm& norm) {
    if (plan_.fuses && !norm.adds && !norm.centred && norm.in == model::kStream &&
        norm.out != model::kStream && writer_.waits() && norm.width == graph_.embedding) {
      if (writer_.start) {
        plan_.first_gain = norm.gain;
        plan_.first_input = norm.out;
      } else {
        PlannedOperands& operands = plan_.operands[writer_.operands];
        operands.next_gain = norm.gain;
        operands.next_input = norm.out;
      }
      writer_ = {};
      scaled_ = Scaled{norm.out, norm.epsilon};
      plan_.steps.emplace_back(ScalesStep{norm.epsilon});
      return {};
    }
    NormStep step{norm};
    if (norm.out == model::kStream) {
      writer_ = {};
      if (plan_.fuses && norm.adds && norm.first == 0 && norm.width == graph_.embedding)
        writer_.operands = step.operands = add(PlannedOperands{});
    }
    if (scaled_ && scaled_->input == norm.out) scaled_.reset();
    plan_.steps.emplace_back(step);
    return {};
  }

  // The operation becomes a step. What it writes is not a norm's result any more.
  template <model::StandsAlone Kind>
  Status add_alone(const Kind& operation) {
    for (const ActivationIndex written : operation.writes()) {
      if (written == model::kStream) writer_ = {};
      if (scaled_ && scaled_->input == written) scaled_.reset();
    }
    plan_.steps.emplace_back(operation);
    return {};
  }

  // Returns the input's norm if the product takes part in it.
  const float* scale_of(ActivationIndex in) const {
    return scaled_ && scaled_->input == in ? &scaled_->epsilon : nullptr;
  }
  bool fuses_rotation(const model::Rotate& rotate) const {
    // A product can't rotate heads that are normed first, padded or rounded by blocks, nor a q that grows by position.
    return plan_.fuses && rotate.q_gain == kAbsent && !rotate.norms_values &&
           rotate.temperature == 0 && rotate.heads.size % 8 == 0 && kv_ != k::KvFormat::kQ8;
  }
  // Returns the order in which rows that rotate must lie for a product that rotates its results.
  RowOrder row_order(const model::Rotate& rotate) const {
    if (rotate.rope == kAbsent) return {};
    const model::Rope& rope = graph_.ropes[rotate.rope];
    // Neighbours that rotate together have this order already, or lie half a rotation apart.
    if (rope.pairing == model::RopePairing::kAdjacent) return {};
    return {rotate.heads.size, rope.pairs()};
  }

  Status add_product(const model::Product& product, const model::Rotate* rotate) {
    const bool rotates = rotate != nullptr && rotate->qkv == product.out && fuses_rotation(*rotate);
    ProductsStep step;
    std::uint32_t first_row = product.first_row;
    for (std::size_t begin = 0; begin < product.parts.size();) {
      std::size_t end = begin;
      std::uint32_t rows = 0;
      std::vector<RowOrder> orders;
      std::vector<MatrixPart> parts;
      while (end < product.parts.size() &&
             type_of(product.parts[end]) == type_of(product.parts[begin])) {
        const MatrixPart& part = product.parts[end++];
        rows += static_cast<std::uint32_t>(part.rows);
        orders.push_back(rotates && part.rotates ? row_order(*rotate) : RowOrder{});
        parts.push_back(part);
      }
      ProductStep one;
      BULKHEAD_TRY(one.matrix, matrix(parts, std::move(orders)));
      one.in = product.in;
      one.out = product.out;
      one.first_row = first_row;
      if (product.adds) one.epilogue = k::Epilogue::kAdd;
      PlannedOperands operands;
      operands.first_row = first_row;
      operands.bias = product.bias;
      one.biased = product.bias != kAbsent;
      if (plan_.fuses) {
        if (const float* const epsilon = scale_of(product.in)) {
          one.scaled = true;
          operands.epsilon = *epsilon;
        }
        if (rotates) {
          one.epilogue = k::Epilogue::kQkv;
          operands.rotate = *rotate;
        }
      }
      if (one.scaled || rotates || one.biased || (plan_.fuses && product.adds))
        one.operands = add(std::move(operands));
      step.products.push_back(one);
      first_row += rows;
      begin = end;
    }
    if (product.out == model::kStream) {
      writer_ = {};
      if (product.adds && step.products.size() == 1)
        writer_.operands = step.products.front().operands;
    }
    if (rotates) rotated_ = true;
    plan_.steps.emplace_back(std::move(step));
    return {};
  }

  Status add_rotate(const model::Rotate& rotate) {
    plan_.q_width = std::max<std::uint64_t>(
        plan_.q_width, std::uint64_t{rotate.heads.heads} * k::kv_padded(rotate.heads.size, kv_));
    if (!std::exchange(rotated_, false)) return add_alone(rotate);
    if (rotate.bias != kAbsent) plan_.vector_orders[rotate.bias] = row_order(rotate);
    return {};
  }

  Status add_latent(const model::RotateLatent& rotate) {
    plan_.q_width = std::max<std::uint64_t>(
        plan_.q_width, std::uint64_t{rotate.heads.heads} * k::kv_padded(rotate.heads.size, kv_));
    return add_alone(rotate);
  }

  Status add_slices(const model::SliceProduct& each) {
    std::vector<SlicePart> parts(each.slices, {each.rows});
    for (std::uint64_t slice = 0; slice < each.slices; ++slice)
      parts[slice].part.first_row += slice * each.stride;
    const RowsAre rows_are = each.transposed ? RowsAre::kColumns : RowsAre::kRows;
    BULKHEAD_TRY(const MatrixIndex made,
                 matrix_of(parts, {}, Packing::kUnits, each.slices, rows_are));
    plan_.matrices[made].slices_read = each.slices;
    plan_.steps.emplace_back(SliceProductStep{{made, each.in, each.out}, each.slices});
    return {};
  }

  Status add_attend(const model::Attend& attend) {
    const k::AttentionShape shape = attention_shape(graph_, attend, kv_);
    plan_.most_heads = std::max(plan_.most_heads, attend.heads.heads);
    auto& shapes = plan_.attention_shapes;
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
    return add_alone(attend);
  }

  Status add_gate(const model::Gated& gated) {
    if (scaled_ && scaled_->input == gated.out) scaled_.reset();
    plan_.steps.emplace_back(GateStep{gated.gate, gated.values, gated.out, 0,
                                      gate_of(gated.function), gated.first_gate});
    return {};
  }

  Status add_delta(const model::DeltaNet& net) {
    using Form = model::Activation::Form;
    if (scaled_ && scaled_->input == net.out) scaled_.reset();
    const auto convolved =
        own_activation({"delta net's inputs", net.heads.channels(), Form::kFloats});
    const auto read =
        own_activation({"what a delta net read", net.heads.value_width(), Form::kFloats});
    plan_.steps.emplace_back(DeltaStep{net, convolved, read});
    return {};
  }

  Status add_gated(const model::GatedProduct& gated) {
    ProductsStep step;
    const auto product = [&](std::vector<MatrixPart> parts, ActivationIndex out,
                             k::Epilogue epilogue) -> Status {
      const bool both = epilogue == k::Epilogue::kGated;
      ProductStep one;
      BULKHEAD_TRY(one.matrix,
                   matrix(parts, {}, both ? Packing::kUnitsAlternating : Packing::kUnits));
      one.in = gated.in;
      one.out = out;
      one.epilogue = epilogue;
      one.gate = gate_of(gated.function);
      if (const float* const epsilon = plan_.fuses ? scale_of(gated.in) : nullptr) {
        one.scaled = true;
        PlannedOperands operands;
        operands.epsilon = *epsilon;
        one.operands = add(std::move(operands));
      }
      step.products.push_back(one);
      return {};
    };
    if (gated.factors != kAbsent || gated.up.tensor == kAbsent) {
      const ActivationIndex gate = between("gate", gated.out);
      BULKHEAD_RETURN_IF_ERROR(product({gated.gate}, gate, k::Epilogue::kStore));
      bias(step.products.front(), gated.bias);
      plan_.steps.emplace_back(std::move(step));
      plan_.steps.emplace_back(
          GateStep{gate, gated.factors, gated.out, gated.first_factor, gate_of(gated.function)});
      return {};
    }
    if (type_of(gated.gate) == type_of(gated.up)) {
      BULKHEAD_RETURN_IF_ERROR(product({gated.gate, gated.up}, gated.out, k::Epilogue::kGated));
      plan_.steps.emplace_back(std::move(step));
      return {};
    }
    const ActivationIndex gate = between("gate", gated.out), up = between("up", gated.out);
    BULKHEAD_RETURN_IF_ERROR(product({gated.gate}, gate, k::Epilogue::kStore));
    BULKHEAD_RETURN_IF_ERROR(product({gated.up}, up, k::Epilogue::kStore));
    plan_.steps.emplace_back(std::move(step));
    plan_.steps.emplace_back(GateStep{gate, up, gated.out, 0, gate_of(gated.function)});
    return {};
  }

  void bias(ProductStep& product, model::VectorIndex bias) {
    if (bias == kAbsent) return;
    product.biased = true;
    if (product.operands == kAbsent) product.operands = add(PlannedOperands{});
    plan_.operands[product.operands].bias = bias;
  }

  // Returns the activation of that name, one for all layers, as wide as `like` and with as many columns.
  ActivationIndex between(const char* name, ActivationIndex like) {
    const model::Activation& other = plan_.activations[like];
    return own_activation({name, other.width, model::Activation::Form::kFloats, other.per_column});
  }
  // Returns the plan's own activation of that name, one for all layers, as wide as the widest of them.
  ActivationIndex own_activation(const model::Activation& wanted) {
    for (std::size_t i = graph_.activations.size(); i < plan_.activations.size(); ++i) {
      model::Activation& made = plan_.activations[i];
      if (made.name != wanted.name) continue;
      made.width = std::max(made.width, wanted.width);
      made.per_column = std::max(made.per_column, wanted.per_column);
      return static_cast<ActivationIndex>(i);
    }
    plan_.activations.push_back(wanted);
    return static_cast<ActivationIndex>(plan_.activations.size() - 1);
  }

  Status add_experts(const model::Experts& experts) {
    using Form = model::Activation::Form;
    const model::Router& router = experts.router;
    const ActivationIndex routes =
        own_activation({"routes", k::route_words(router_shape(router)), Form::kFloats});
    const ActivationIndex hidden =
        own_activation({"experts' hidden", experts.width, Form::kInput, router.used});
    const ActivationIndex results = own_activation(
        {"experts' results", graph_.activations[experts.out].width, Form::kFloats, router.used});
    BULKHEAD_TRY(ProductStep down,
                 expert_product(experts, {&experts.down}, hidden, results, experts.down_bias));
    const bool sums = experts.out == model::kStream && experts.shared == kAbsent;
    const MatrixIndex summed = sums ? down.matrix : kAbsent;
    plan_.steps.emplace_back(RouteStep{router, routes, hand_scales_on(experts)});
    BULKHEAD_RETURN_IF_ERROR(add_experts_gated(experts, routes, hidden, summed));
    if (plan_.fuses && down.operands == kAbsent) down.operands = add(PlannedOperands{});
    MixStep mix{router, routes, down, experts.shared, experts.out, summed};
    if (experts.out == model::kStream) {
      writer_ = {};
      if (plan_.fuses) writer_.operands = mix.operands = down.operands;
    } else if (scaled_ && scaled_->input == experts.out) {
      scaled_.reset();
    }
    plan_.steps.emplace_back(mix);
    return {};
  }

  // Experts' products take the scales of their input's norm from memory. Returns true if the router makes these
  // scales, since it has the same norm, instead of the step before it.
  bool hand_scales_on(const model::Experts& experts) {
    if (!plan_.fuses || scale_of(experts.in) == nullptr) return false;
    for (auto step = plan_.steps.rbegin(); step != plan_.steps.rend(); ++step) {
      auto* const scales = std::get_if<ScalesStep>(&*step);
      if (scales == nullptr) continue;
      if (step == plan_.steps.rbegin() && scales->epsilon == experts.router.epsilon) {
        plan_.steps.pop_back();
        return true;
      }
      scales->kept = true;
      break;
    }
    return false;
  }

  Status add_experts_gated(const model::Experts& experts, ActivationIndex routes,
                           ActivationIndex hidden, MatrixIndex summed) {
    if (experts.gate.empty()) {
      const ActivationIndex up = between("experts' up", hidden);
      BULKHEAD_TRY(auto ups,
                   expert_product(experts, {&experts.up}, experts.in, up, experts.up_bias));
      plan_.steps.emplace_back(ExpertProductsStep{experts.router, routes, {ups}, summed});
      plan_.steps.emplace_back(GateStep{up, kAbsent, hidden, 0, gate_of(experts.function)});
      return {};
    }
    if (type_of(experts.gate.front()) == type_of(experts.up.front())) {
      BULKHEAD_TRY(ProductStep both,
                   expert_product(experts, {&experts.gate, &experts.up}, experts.in, hidden,
                                  experts.gate_bias, experts.up_bias));
      plan_.steps.emplace_back(ExpertProductsStep{experts.router, routes, {both}, summed});
      return {};
    }
    const ActivationIndex gate = between("experts' gate", hidden),
                          up = between("experts' up", hidden);
    BULKHEAD_TRY(ProductStep gates,
                 expert_product(experts, {&experts.gate}, experts.in, gate, experts.gate_bias));
    BULKHEAD_TRY(ProductStep ups,
                 expert_product(experts, {&experts.up}, experts.in, up, experts.up_bias));
    plan_.steps.emplace_back(ExpertProductsStep{experts.router, routes, {gates, ups}, summed});
    plan_.steps.emplace_back(GateStep{gate, up, hidden, 0, gate_of(experts.function)});
    return {};
  }

  // Makes one product of all experts' matrices; if there are two (the gate and the up), it is the gated product.
  Result<ProductStep> expert_product(const model::Experts& experts,
                                     std::initializer_list<const std::vector<MatrixPart>*> matrices,
                                     ActivationIndex in, ActivationIndex out,
                                     model::VectorIndex bias,
                                     model::VectorIndex second_bias = kAbsent) {
    std::vector<SlicePart> parts;
    for (std::uint64_t expert = 0; expert < experts.router.experts; ++expert) {
      for (const std::vector<MatrixPart>* matrix : matrices) {
        const bool stacked = matrix->size() == 1;
        parts.push_back({(*matrix)[stacked ? 0 : expert], stacked ? expert : 0});
      }
    }
    const bool gated = matrices.size() == 2;
    ProductStep made;
    const Packing packing = gated ? Packing::kUnitsAlternating : Packing::kUnits;
    BULKHEAD_TRY(made.matrix, matrix_of(parts, {}, packing, experts.router.experts));
    plan_.matrices[made.matrix].slices_read = experts.router.used;
    made.in = in;
    made.out = out;
    if (gated) made.epilogue = k::Epilogue::kGated;
    made.gate = gate_of(experts.function);
    made.biased = bias != kAbsent;
    PlannedOperands operands;
    operands.bias = bias;
    operands.second_bias = second_bias;
    if (const float* const epsilon = plan_.fuses ? scale_of(in) : nullptr) {
      made.scaled = true;
      operands.epsilon = *epsilon;
    }
    if (made.scaled || made.biased) made.operands = add(std::move(operands));
    return made;
  }

  // The step that made the stream's present value, and that can still prepare an input from it.
  struct Writer {
    bool start = false;  // the embedding, or the step that copies an earlier stage's stream
    OperandsIndex operands = kAbsent;
    bool waits() const { return start || operands != kAbsent; }
  };
  // An input whose columns have not been multiplied by their factors yet.
  struct Scaled {
    ActivationIndex input;
    float epsilon;
  };

  const model::ModelGraph& graph_;
  const model::GgufFile& file_;
  const k::Mapping& mapping_;
  const k::KvFormat kv_;
  ModelPlan plan_;
  Writer writer_;
  std::optional<Scaled> scaled_;
  bool rotated_ = false;  // the product before has rotated it
};

}  // namespace

Result<ModelPlan> plan_model(const model::ModelGraph& graph, const model::GgufFile& file,
                             const k::Mapping& mapping, k::KvFormat kv) {
  return Planner(graph, file, mapping, kv).plan();
}

}  // namespace bulkhead::forward
