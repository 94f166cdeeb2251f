// How a device computes a model: the graph's operations as steps of kernels, with what is fused, which
// tensors are joined to one matrix and how its rows lie. Made once, from the graph, the file's tensor
// types and the device's mapping; pure host code.
//
// On GPUs most of what stands between products is the products' business (gpu/kernels/epilogue.glsl):
//   norm      The operation before it, which makes the residual stream, multiplies by the gain as it
//             writes the next product's input; what is left is a factor of each column, which that
//             product multiplies its sums by ("scaled").
//   rotation  The q, k, v product turns its results and writes keys and values to their pages.
// A norm or rotation that does not fit is a step of its own, as all are in the rows mapping.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "config/base/error.hpp"
#include "gpu/kernels/delta.hpp"
#include "gpu/kernels/experts.hpp"
#include "gpu/kernels/kernels.hpp"
#include "worker/forward/weight_packing.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::forward {

using MatrixIndex = std::uint32_t;
using OperandsIndex = std::uint32_t;
using model::kAbsent;

// Rows of one or more tensors of equal type as one matrix in device memory.
struct PlannedMatrix {
  std::string name;                                             // of its first tensor
  std::vector<std::span<const std::byte>> sources;              // what is read of the file for it
  std::shared_ptr<const std::vector<model::TensorInfo>> views;  // the rows taken of each tensor
  std::shared_ptr<const PackedMatrix> packed;                   // points into `views`
  bool read_by_every_step = true;
  std::uint32_t slices_read = 1;  // of the packed matrix's, by a step of one column
};

// What becomes a k::FusedOperands: see there.
struct PlannedOperands {
  float epsilon = 0;  // of the input's norm, for a product that is scaled
  model::VectorIndex next_gain = kAbsent;
  model::ActivationIndex next_input = kAbsent;
  std::uint32_t first_row = 0;  // of the matrix among those of q, k and v, or among the bias's
  std::optional<model::Rotate> rotate;                       // a product that rotates
  model::VectorIndex bias = kAbsent, second_bias = kAbsent;  // of a product that is biased
};

// The steps that are planned. What each reads and writes stands in places_of, from which barriers follow. Operations
// that stand alone are steps, too, and say it themselves.

// A norm in a pass of its own.
struct NormStep {
  model::Norm norm;
  OperandsIndex operands = kAbsent;  // of the next norm, where this one is added to the stream
};
// The factor of each column that a norm comes to, for products that are scaled.
struct ScalesStep {
  float epsilon = 0;
  bool kept = false;  // some product takes them from memory in every step
};
struct ProductStep {
  MatrixIndex matrix = kAbsent;
  model::ActivationIndex in = kAbsent, out = kAbsent;
  std::uint32_t first_row = 0;  // where in `out` the results go
  gpu::kernels::Epilogue epilogue = gpu::kernels::Epilogue::kStore;
  gpu::kernels::Gate gate = gpu::kernels::Gate::kSilu;
  bool scaled = false;
  bool biased = false;
  OperandsIndex operands = kAbsent;
};
// Products that don't depend on each other.
struct ProductsStep {
  std::vector<ProductStep> products;
};
struct GateStep {
  model::ActivationIndex gate = kAbsent, up = kAbsent, out = kAbsent;  // no up: ones
  std::uint32_t first_up = 0;                                          // entry of `up`
  gpu::kernels::Gate function = gpu::kernels::Gate::kSilu;
  std::uint32_t first_gate = 0;  // entry of `gate`
};
// Each slice of a matrix times inputs of its own.
struct SliceProductStep {
  ProductStep product;
  std::uint32_t slices = 0;
};
// Experts (gpu/kernels/experts.hpp). The routes are an activation; products' results lie by pairs.
struct RouteStep {
  model::Router router;
  model::ActivationIndex routes = kAbsent;
  bool makes_scales = false;  // of the norm, as ScalesStep
};
struct ExpertProductsStep {
  model::Router router;
  model::ActivationIndex routes = kAbsent;
  std::vector<ProductStep> products;
};
struct MixStep {
  model::Router router;
  model::ActivationIndex routes = kAbsent, results = kAbsent, shared = kAbsent, out = kAbsent;
  OperandsIndex operands = kAbsent;  // of the next norm, where `out` is the residual stream
};
// The three kernels of a gated delta net (gpu/kernels/delta.hpp), with what they hand on.
struct DeltaStep {
  model::DeltaNet net;
  model::ActivationIndex convolved = kAbsent, read = kAbsent;
};
// A variant of `Steps` and of those operations that stand alone.
template <typename Operations, typename... Steps>
struct StepsOf;
template <typename... Steps>
struct StepsOf<std::variant<>, Steps...> {
  using Type = std::variant<Steps...>;
};
template <typename First, typename... Others, typename... Steps>
struct StepsOf<std::variant<First, Others...>, Steps...> {
  using Type = typename std::conditional_t<model::StandsAlone<First>,
                                           StepsOf<std::variant<Others...>, Steps..., First>,
                                           StepsOf<std::variant<Others...>, Steps...>>::Type;
};
using PlanStep = StepsOf<model::Operation, NormStep, ScalesStep, ProductsStep, SliceProductStep,
                         GateStep, RouteStep, ExpertProductsStep, MixStep, DeltaStep>::Type;

// A set of activations and of what steps hand on beside them.
using Places = std::uint64_t;
constexpr std::size_t kMostActivations = 61;  // of a plan; other places lie behind them
struct Access {
  Places reads = 0, writes = 0;
};

struct ModelPlan {
  bool fuses = false;  // norms, residual stream and inputs are the products' business
  std::vector<PlannedMatrix> matrices;
  MatrixIndex embedding = kAbsent, output = kAbsent;  // kAbsent: another stage's
  // For each layer: whether what makes the stream before it also prepares the layer's first norm, where that is fused.
  std::vector<bool> prepared;
  std::vector<MatrixIndex> lookups;     // as in the graph
  std::vector<RowOrder> vector_orders;  // of each of the graph's vectors: of parts that rotate
  std::vector<model::Activation> activations;  // the graph's, then those that steps need besides
  std::vector<PlannedOperands> operands;
  std::vector<PlanStep> steps;
  // The norm that the embedding prepares, where that is fused.
  model::VectorIndex first_gain = kAbsent;
  model::ActivationIndex first_input = kAbsent;

  std::vector<gpu::kernels::AttentionShape> attention_shapes;  // those that there are
  std::uint32_t most_heads = 0;                                // of any attention
  std::uint64_t q_width = 0;  // floats of a column's rotated q, of the widest

  Access places_of(const PlanStep& step) const;
};

// What attention kernels are specialised for.
gpu::kernels::AttentionShape attention_shape(const model::ModelGraph& graph,
                                             const model::HeadShape& heads, model::RopeIndex rope,
                                             gpu::kernels::KvFormat kv);

gpu::kernels::AttentionShape attention_shape(const model::ModelGraph& graph,
                                             const model::Attend& attend,
                                             gpu::kernels::KvFormat kv);

gpu::kernels::AttentionShape attention_shape(const model::ModelGraph& graph,
                                             const model::RotateLatent& rotate,
                                             gpu::kernels::KvFormat kv);

// What the kernels of a gated delta net are specialised for.
gpu::kernels::DeltaShape delta_shape(const model::DeltaHeads& heads);

// The kernels' name of a gate.
gpu::kernels::Gate gate_of(model::Gate function);

// What the kernels of a router are specialised for.
gpu::kernels::RouterShape router_shape(const model::Router& router);

// The product of such a matrix, or of one of its slices, with nothing of its surroundings.
gpu::kernels::MatvecShape product_shape(const PackedMatrix& matrix,
                                        gpu::kernels::Epilogue epilogue);

// Vectors lie one after another in one buffer, each from a multiple of 256 bytes on: where one starts
// behind so many floats.
constexpr std::uint64_t vector_start(std::uint64_t floats) {
  return (floats + 63) / 64 * 64;
}

// Sizes of everything that the weights take, in the order in which it lies: the plan's matrices, and
// last all vectors and tables together. What loading allocates and what is counted before it.
std::vector<std::uint64_t> weight_sizes(const model::ModelGraph& graph, const ModelPlan& plan,
                                        std::uint32_t context);

Result<ModelPlan> plan_model(const model::ModelGraph& graph, const model::GgufFile& file,
                             const gpu::kernels::Mapping& mapping, gpu::kernels::KvFormat kv);

}  // namespace bulkhead::forward
