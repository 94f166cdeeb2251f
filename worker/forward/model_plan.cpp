#include "worker/forward/model_plan.hpp"

#include <algorithm>
#include <utility>

#include "worker/forward/rope_table.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;
using model::ActivationIndex;
using model::kStream;
using model::MatrixPart;

namespace {

// Places behind the activations'.
constexpr std::uint32_t kScalesPlace = 61, kQPlace = 62, kKvPlace = 63;
constexpr std::size_t kMostActivations = 61;

constexpr Places place(std::uint32_t index) {
  return Places{1} << index;
}

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};

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
    BULKHEAD_TRY(plan_.embedding, matrix({graph_.embedding_rows}, {}));
    plan_.output = plan_.embedding;
    if (!graph_.tied_output()) {
      BULKHEAD_TRY(plan_.output, matrix({graph_.output_rows}, {}));
      plan_.matrices[plan_.embedding].read_by_every_step = false;
    }
    for (const model::Lookup& lookup : graph_.lookups) {
      BULKHEAD_TRY(const MatrixIndex rows, matrix({lookup.rows}, {}));
      plan_.matrices[rows].read_by_every_step = false;
      plan_.lookups.push_back(rows);
    }
    writer_.embedding = true;
    for (const model::Layer& layer : graph_.layers) {
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
  Status add(const model::Operation& operation, const model::Operation* next) {
    return std::visit(Overloaded{
                          [this](const model::Norm& norm) { return add_norm(norm); },
                          [this](const model::Copy& copy) { return add_copy(copy); },
                          [&](const model::Product& product) {
                            const auto* const rotate =
                                next != nullptr ? std::get_if<model::Rotate>(next) : nullptr;
                            return add_product(product, rotate);
                          },
                          [this](const model::Rotate& rotate) { return add_rotate(rotate); },
                          [this](const model::Attend& attend) { return add_attend(attend); },
                          [this](const model::GatedProduct& gated) { return add_gated(gated); },
                      },
                      operation);
  }

  // A matrix of these rows, which are of equal type.
  Result<MatrixIndex> matrix(const std::vector<MatrixPart>& parts, std::vector<RowOrder> orders,
                             bool alternating = false) {
    auto views = std::make_shared<std::vector<model::TensorInfo>>();
    PlannedMatrix made;
    for (const MatrixPart& part : parts) {
      const model::TensorRow& row = graph_.tensors[part.tensor];
      const model::TensorInfo* const tensor = file_.find_tensor(row.name);
      if (tensor == nullptr)
        return Error(ErrorCode::kCorrupt, file_.name() + ": tensor " + row.name + " is missing");
      model::TensorInfo& view = views->emplace_back(*tensor);
      const std::uint64_t row_bytes = tensor->row_bytes();
      view.ne[1] = part.rows;
      view.data = tensor->data.subspan(part.first_row * row_bytes, part.rows * row_bytes);
      made.sources.push_back(view.data);
    }
    made.name = graph_.tensors[parts.front().tensor].name;
    std::vector<const model::TensorInfo*> tensors;
    for (const model::TensorInfo& view : *views)
      tensors.push_back(&view);
    const Packing packing = !mapping_.units ? Packing::kPlanes
                            : alternating   ? Packing::kUnitsAlternating
                                            : Packing::kUnits;
    made.packed = std::make_shared<const PackedMatrix>(tensors, std::move(orders), packing);
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

  // Whoever made the stream prepares the next product's input: one of them, for one norm.
  Status add_norm(const model::Norm& norm) {
    if (plan_.fuses && !norm.adds && norm.in == kStream && writer_.waits() &&
        norm.width == graph_.embedding) {
      if (writer_.embedding) {
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
    if (norm.out == kStream) writer_ = {};
    if (scaled_ && scaled_->input == norm.out) scaled_.reset();
    plan_.steps.emplace_back(NormStep{norm});
    return {};
  }

  Status add_copy(const model::Copy& copy) {
    if (copy.out == kStream) writer_ = {};
    if (scaled_ && scaled_->input == copy.out) scaled_.reset();
    plan_.steps.emplace_back(CopyStep{copy});
    return {};
  }

  // The input's norm, where the product has a part in it.
  const float* scale_of(ActivationIndex in) const {
    return scaled_ && scaled_->input == in ? &scaled_->epsilon : nullptr;
  }

  bool fuses_rotation(const model::Rotate& rotate) const {
    // Not where whole heads are normed first, are padded, or are rounded by blocks.
    return plan_.fuses && rotate.q_gain == kAbsent && !rotate.norms_values &&
           rotate.heads.size % 8 == 0 && kv_ != k::KvFormat::kQ8;
  }
  // How rows that rotate must lie for a product that rotates its results.
  RowOrder row_order(const model::Rotate& rotate) const {
    if (rotate.rope == kAbsent) return {};
    const model::Rope& rope = graph_.ropes[rotate.rope];
    // Neighbours that rotate together are so already, or lie half a rotation apart.
    if (rope.pairing == model::RopePairing::kAdjacent) return {};
    return {rotate.heads.size, rope.pairs()};
  }

  Status add_product(const model::Product& product, const model::Rotate* rotate) {
    const bool rotates = rotate != nullptr && rotate->qkv == product.out && fuses_rotation(*rotate);
    ProductsStep step;
    std::uint32_t first_row = 0;
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
      if (plan_.fuses) {
        PlannedOperands operands;
        if (const float* const epsilon = scale_of(product.in)) {
          one.scaled = true;
          operands.epsilon = *epsilon;
        }
        if (rotates) {
          one.epilogue = k::Epilogue::kQkv;
          operands.first_row = first_row;
          operands.rotate = *rotate;
        }
        if (one.scaled || rotates || product.adds) one.operands = add(std::move(operands));
      }
      step.products.push_back(one);
      first_row += rows;
      begin = end;
    }
    if (product.out == kStream) {
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
    if (!std::exchange(rotated_, false)) {
      plan_.steps.emplace_back(RotateStep{rotate});
    } else if (rotate.bias != kAbsent) {
      plan_.vector_orders[rotate.bias] = row_order(rotate);
    }
    return {};
  }

  Status add_attend(const model::Attend& attend) {
    const k::AttentionShape shape = attention_shape(graph_, attend, kv_);
    plan_.most_heads = std::max(plan_.most_heads, attend.heads.heads);
    auto& shapes = plan_.attention_shapes;
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
    plan_.steps.emplace_back(AttendStep{attend});
    return {};
  }

  Status add_gated(const model::GatedProduct& gated) {
    ProductsStep step;
    const auto product = [&](std::vector<MatrixPart> parts, ActivationIndex out,
                             k::Epilogue epilogue, bool alternating) -> Status {
      ProductStep one;
      BULKHEAD_TRY(one.matrix, matrix(parts, {}, alternating));
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
    if (gated.factors != kAbsent) {
      const ActivationIndex gate = between("gate", gated.out);
      BULKHEAD_RETURN_IF_ERROR(product({gated.gate}, gate, k::Epilogue::kStore, false));
      plan_.steps.emplace_back(std::move(step));
      plan_.steps.emplace_back(
          GateStep{gate, gated.factors, gated.out, gated.first_factor, gate_of(gated.function)});
      return {};
    }
    if (type_of(gated.gate) == type_of(gated.up)) {
      BULKHEAD_RETURN_IF_ERROR(
          product({gated.gate, gated.up}, gated.out, k::Epilogue::kGated, true));
      plan_.steps.emplace_back(std::move(step));
      return {};
    }
    const ActivationIndex gate = between("gate", gated.out), up = between("up", gated.out);
    BULKHEAD_RETURN_IF_ERROR(product({gated.gate}, gate, k::Epilogue::kStore, false));
    BULKHEAD_RETURN_IF_ERROR(product({gated.up}, up, k::Epilogue::kStore, false));
    plan_.steps.emplace_back(std::move(step));
    plan_.steps.emplace_back(GateStep{gate, up, gated.out, 0, gate_of(gated.function)});
    return {};
  }

  static k::Gate gate_of(model::Gate function) {
    switch (function) {
      case model::Gate::kSilu:
        return k::Gate::kSilu;
      case model::Gate::kGelu:
        return k::Gate::kGelu;
    }
    return k::Gate::kSilu;
  }

  // An activation as wide as `like`, one of that name for all.
  ActivationIndex between(const char* name, ActivationIndex like) {
    const std::uint32_t width = plan_.activations[like].width;
    for (std::size_t i = graph_.activations.size(); i < plan_.activations.size(); ++i) {
      if (plan_.activations[i].name != name) continue;
      plan_.activations[i].width = std::max(plan_.activations[i].width, width);
      return static_cast<ActivationIndex>(i);
    }
    plan_.activations.push_back({name, width, model::Activation::Form::kFloats});
    return static_cast<ActivationIndex>(plan_.activations.size() - 1);
  }

  // Who made the stream as it is, and can still prepare an input from it.
  struct Writer {
    bool embedding = false;
    OperandsIndex operands = kAbsent;
    bool waits() const { return embedding || operands != kAbsent; }
  };
  // An input that lacks its columns' factors.
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
  bool rotated_ = false;  // by the product before
};

}  // namespace

Access ModelPlan::places_of(const PlanStep& step) const {
  return std::visit(Overloaded{
                        [](const NormStep& s) {
                          const Places out = place(s.norm.out);
                          return Access{place(s.norm.in) | (s.norm.adds ? out : 0), out};
                        },
                        [](const CopyStep& s) {
                          return Access{place(s.copy.in), place(s.copy.out)};
                        },
                        [](const ScalesStep&) {
                          return Access{place(kStream), place(kScalesPlace)};
                        },
                        [this](const ProductsStep& s) {
                          Access access;
                          for (const ProductStep& product : s.products) {
                            access.reads |= place(product.in);
                            if (product.scaled)
                              access.reads |= place(kScalesPlace) | place(kStream);
                            if (product.epilogue == k::Epilogue::kAdd)
                              access.reads |= place(product.out);
                            if (product.epilogue == k::Epilogue::kQkv) {
                              access.writes |= place(kQPlace) | place(kKvPlace);
                              continue;
                            }
                            access.writes |= place(product.out);
                            if (product.operands == kAbsent) continue;
                            const PlannedOperands& own = operands[product.operands];
                            if (own.next_input != kAbsent) access.writes |= place(own.next_input);
                          }
                          return access;
                        },
                        [](const GateStep& s) {
                          return Access{place(s.gate) | place(s.up), place(s.out)};
                        },
                        [](const RotateStep& s) {
                          return Access{place(s.rotate.qkv), place(kQPlace) | place(kKvPlace)};
                        },
                        [](const AttendStep& s) {
                          return Access{place(kQPlace) | place(kKvPlace), place(s.attend.out)};
                        },
                    },
                    step);
}

k::AttentionShape attention_shape(const model::ModelGraph& graph, const model::HeadShape& heads,
                                  model::RopeIndex rope, k::KvFormat kv) {
  const bool halves = rope != kAbsent && graph.ropes[rope].pairing == model::RopePairing::kHalves;
  return {heads.size, heads.heads, heads.kv_heads, kv, halves};
}

k::AttentionShape attention_shape(const model::ModelGraph& graph, const model::Attend& attend,
                                  k::KvFormat kv) {
  k::AttentionShape shape = attention_shape(graph, attend.heads, kAbsent, kv);
  shape.window = attend.rules.window;
  shape.soft_cap = attend.rules.soft_cap;
  shape.sinks = attend.rules.sinks != kAbsent;
  return shape;
}

k::MatvecShape product_shape(const PackedMatrix& matrix, k::Epilogue epilogue) {
  k::MatvecShape shape;
  shape.type = matrix.type();
  shape.rows = static_cast<std::uint32_t>(matrix.layout().rows);
  shape.groups = matrix.layout().groups;
  shape.epilogue = epilogue;
  if (epilogue == k::Epilogue::kGated) shape.rows /= 2;
  return shape;
}

std::vector<std::uint64_t> weight_sizes(const model::ModelGraph& graph, const ModelPlan& plan,
                                        std::uint32_t context) {
  std::vector<std::uint64_t> sizes;
  for (const PlannedMatrix& matrix : plan.matrices)
    sizes.push_back(matrix.packed->layout().bytes);
  std::uint64_t floats = 0;
  const auto add = [&floats](std::uint64_t count) { floats = vector_start(floats) + count; };
  for (const model::VectorRow& row : graph.vectors) {
    std::uint64_t count = 0;
    for (const model::VectorRow::Part& part : row.parts)
      count += graph.tensors[part.tensor].width;
    add(count);
  }
  for (const model::Rope& rope : graph.ropes) {
    add(rope_fine_floats(rope));
    add(rope_coarse_floats(rope, context));
  }
  sizes.push_back(floats * sizeof(float));
  return sizes;
}

Result<ModelPlan> plan_model(const model::ModelGraph& graph, const model::GgufFile& file,
                             const k::Mapping& mapping, k::KvFormat kv) {
  return Planner(graph, file, mapping, kv).plan();
}

}  // namespace bulkhead::forward
