// How a device computes a model: the graph's operations as steps of kernels, with the operations that are fused, the
// tensors that are joined to one matrix, and the order of its rows. Made once, from the graph, the file's tensor
// types and the device's mapping. Pure host code.
//
// On GPUs, products do most of the work that stands between products (gpu/kernels/epilogue.glsl):
//   norm      The operation before the norm, which makes the residual stream, multiplies by the gain as it writes the
//             next product's input. What remains is a factor for each column; the next product multiplies its sums by
//             it ("scaled").
//   rotation  The q, k, v product rotates its results and writes keys and values to their pages.
// A norm or rotation for which this does not work is a step of its own, as all are in the rows mapping.
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

// The rows of one or more tensors of equal type, as one matrix in device memory.
struct PlannedMatrix {
  std::string name;                                             // the name of its first tensor
  std::vector<std::span<const std::byte>> sources;              // the parts of the file that are read for it
  std::shared_ptr<const std::vector<model::TensorInfo>> views;  // the rows taken from each tensor
  std::shared_ptr<const PackedMatrix> packed;                   // points into `views`
  bool read_by_every_step = true;
  std::uint32_t slices_read = 1;  // how many of the packed matrix's slices a step of one column reads
};

// The plan's form of k::FusedOperands: see there.
struct PlannedOperands {
  float epsilon = 0;  // of the input's norm, for a scaled product
  model::VectorIndex next_gain = kAbsent;
  model::ActivationIndex next_input = kAbsent;
  std::uint32_t first_row = 0;  // the matrix's place among those of q, k and v, or its first row in the bias
  std::optional<model::Rotate> rotate;                       // for a product that rotates
  model::VectorIndex bias = kAbsent, second_bias = kAbsent;  // for a biased product
};

// The steps that are planned. places_of says what each step reads and writes, and barriers follow from that.
// Operations that stand alone are steps, too, and say it themselves.

// A norm in a separate pass.
struct NormStep {
  model::Norm norm;
  OperandsIndex operands = kAbsent;  // of the next norm, if this one is added to the stream
};
// The factor of a norm for each column, for scaled products.
struct ScalesStep {
  float epsilon = 0;
  bool kept = false;  // some product reads them from memory in every step
};
struct ProductStep {
  MatrixIndex matrix = kAbsent;
  model::ActivationIndex in = kAbsent, out = kAbsent;
  std::uint32_t first_row = 0;  // the first row of the results in `out`
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
  model::ActivationIndex gate = kAbsent, up = kAbsent, out = kAbsent;  // no `up`: ones
  std::uint32_t first_up = 0;                                          // first entry in `up`
  gpu::kernels::Gate function = gpu::kernels::Gate::kSilu;
  std::uint32_t first_gate = 0;  // first entry in `gate`
};
// Each slice of a matrix, multiplied by its own inputs.
struct SliceProductStep {
  ProductStep product;
  std::uint32_t slices = 0;
};
// Experts (gpu/kernels/experts.hpp). The routes are an activation; products' results are stored by pairs.
struct RouteStep {
  model::Router router;
  model::ActivationIndex routes = kAbsent;
  bool makes_scales = false;  // of the norm, as in ScalesStep
};
struct ExpertProductsStep {
  model::Router router;
  model::ActivationIndex routes = kAbsent;
  std::vector<ProductStep> products;
  MatrixIndex summed_down = kAbsent;  // MixStep's
};
// The experts' downs, and the sum of a column's results.
struct MixStep {
  model::Router router;
  model::ActivationIndex routes = kAbsent;
  ProductStep down;
  model::ActivationIndex shared = kAbsent, out = kAbsent;
  // The downs' matrix if one kernel may compute them and the sum: it adds to the residual stream, without a shared
  // expert.
  MatrixIndex summed_down = kAbsent;
  OperandsIndex operands = kAbsent;  // of the next norm, if `out` is the residual stream
};
// The three kernels of a gated delta net (gpu/kernels/delta.hpp), with the activations between them.
struct DeltaStep {
  model::DeltaNet net;
  model::ActivationIndex convolved = kAbsent, read = kAbsent;
};
// A variant of `Steps` and of the operations that stand alone.
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

// A set of activations and of the other places through which steps pass data.
using Places = std::uint64_t;
constexpr std::size_t kMostActivations = 61;  // in a plan; other places are numbered after them
// A plan adds at most nine activations to the graph's.
static_assert(model::kMostGraphActivations + 9 <= kMostActivations);
struct Access {
  Places reads = 0, writes = 0;
};

struct ModelPlan {
  bool fuses = false;  // products also do the work of norms, the residual stream and inputs
  std::vector<PlannedMatrix> matrices;
  MatrixIndex embedding = kAbsent, output = kAbsent;  // kAbsent: another stage has it
  // For each layer: whether what makes the stream before it also prepares the layer's first norm, if norms are fused.
  std::vector<bool> prepared;
  std::vector<MatrixIndex> lookups;     // as in the graph
  std::vector<RowOrder> vector_orders;  // for each of the graph's vectors: the row order of parts that rotate
  std::vector<model::Activation> activations;  // the graph's, then further ones that steps need
  std::vector<PlannedOperands> operands;
  std::vector<PlanStep> steps;
  // The norm that the embedding prepares, if norms are fused.
  model::VectorIndex first_gain = kAbsent;
  model::ActivationIndex first_input = kAbsent;

  std::vector<gpu::kernels::AttentionShape> attention_shapes;  // all that occur
  std::uint32_t most_heads = 0;                                // the most heads of any attention
  std::uint64_t q_width = 0;  // floats of a column's rotated q, for the widest

  Access places_of(const PlanStep& step) const;
};

// Returns the shape for which attention kernels are specialised.
gpu::kernels::AttentionShape attention_shape(const model::ModelGraph& graph,
                                             const model::HeadShape& heads, model::RopeIndex rope,
                                             gpu::kernels::KvFormat kv);

gpu::kernels::AttentionShape attention_shape(const model::ModelGraph& graph,
                                             const model::Attend& attend,
                                             gpu::kernels::KvFormat kv);

gpu::kernels::AttentionShape attention_shape(const model::ModelGraph& graph,
                                             const model::RotateLatent& rotate,
                                             gpu::kernels::KvFormat kv);

// Returns the shape for which the kernels of a gated delta net are specialised.
gpu::kernels::DeltaShape delta_shape(const model::DeltaHeads& heads);

// Returns the kernels' name of a gate.
gpu::kernels::Gate gate_of(model::Gate function);

// Returns the shape for which the kernels of a router are specialised.
gpu::kernels::RouterShape router_shape(const model::Router& router);

// Returns the plain product of such a matrix, or of one of its slices, with nothing fused into it.
gpu::kernels::MatvecShape product_shape(const PackedMatrix& matrix,
                                        gpu::kernels::Epilogue epilogue);

// Vectors lie one after another in one buffer, each at a multiple of 256 bytes. Returns where a vector starts that
// follows this many floats.
constexpr std::uint64_t vector_start(std::uint64_t floats) {
  return (floats + 63) / 64 * 64;
}

// Returns the floats from one slot of a state store to the next.
constexpr std::uint64_t slot_floats(const model::StateStore& store) {
  return vector_start(store.floats);
}

// Returns the sizes of everything that the weights take, in the order of the layout: the plan's matrices, and last
// all vectors and tables together. Loading allocates these, and the memory check before it counts them.
std::vector<std::uint64_t> weight_sizes(const model::ModelGraph& graph, const ModelPlan& plan,
                                        std::uint32_t context);

Result<ModelPlan> plan_model(const model::ModelGraph& graph, const model::GgufFile& file,
                             const gpu::kernels::Mapping& mapping, gpu::kernels::KvFormat kv);

}  // namespace bulkhead::forward
