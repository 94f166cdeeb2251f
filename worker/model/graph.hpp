// What a model computes, as data: the tensors that it takes from its file, and for each layer a list of operations
// over named activations. An architecture's file (architectures/NAME.cpp) makes it. Validation, placement, packing,
// buffers, memory need, recorded commands, `inspect` and make-model go through it. It does not depend on the GPU.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "config/base/error.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph_places.hpp"
#include "worker/model/operation_list.hpp"

namespace bulkhead::model {

// A tensor of the file that the model needs, with the shape it must have. An optional tensor that
// the file lacks gets no row.
struct TensorRow {
  std::string name;          // "blk.3.attn_q.weight"
  std::uint64_t width = 0;   // entries per row
  std::uint64_t rows = 1;    // 1: a vector, which must be F32
  std::uint64_t slices = 1;  // matrices of that shape, one for each expert
  bool plain = false;        // must be floats, whatever the type of the other tensors
};

// Which entries of a head rotate together: (2i, 2i+1) or (i, i + pairs).
enum class RopePairing { kAdjacent, kHalves };

// Rows [first_row, first_row + rows) of a tensor, as a product takes them. If the tensor has slices: these rows of
// each slice.
struct MatrixPart {
  TensorIndex tensor = kAbsent;
  std::uint64_t first_row = 0;
  std::uint64_t rows = 0;
  bool rotates =
      false;  // rows of q or k: for some devices, rows that rotate together are packed as neighbours
};

// Floats from one or more tensors, one after another, each multiplied by `scale`.
struct VectorRow {
  struct Part {
    TensorIndex tensor = kAbsent;
    bool rotates = false;  // see MatrixPart::rotates
    // The entries of the tensor that are taken; 0: all.
    std::uint64_t first = 0, entries = 0;
  };
  std::vector<Part> parts;
  float scale = 1;
};

// A value that every column of a step has.
struct Activation {
  enum class Form {
    kStream,  // the residual stream: floats
    kFloats,  // floats
    kInput,   // what a product reads, in the form that the device's kernels take
  };
  std::string name;
  std::uint32_t width = 0;  // entries per column
  Form form = Form::kFloats;
  std::uint32_t per_column = 1;  // columns here per column of the step: one for each chosen expert
};
// The residual stream is every graph's first activation.
inline constexpr ActivationIndex kStream = 0;
// A plan has a bit for each of these, and for each that it adds (forward/model_plan.hpp).
inline constexpr std::size_t kMostGraphActivations = 48;

// How positions rotate pairs of a head's entries: pair i by position * frequencies[i]. Both entries are also
// multiplied by `magnitude`.
struct Rope {
  RopePairing pairing = RopePairing::kAdjacent;
  std::vector<double> frequencies;
  double magnitude = 1;
  // For models whose context was extended: used instead if the context is longer than `short_context`. Empty: none.
  std::vector<double> long_frequencies;
  std::uint32_t short_context = 0;

  std::uint32_t pairs() const { return static_cast<std::uint32_t>(frequencies.size()); }
};

// Keys and values of one kind that the model keeps for each position.
struct KvStore {
  std::uint32_t heads = 0;
  std::uint32_t head_size = 0;  // entries of a key, and of a value
  // If not 0, a value is the first `value_entries` entries of its key, and the cache has no room for values.
  std::uint32_t value_entries = 0;
};

// How a head's state learns. A gated delta net adds the difference between a value and the state's prediction of the
// value (kDelta). Mamba-2 adds each value whole (kSum). Kimi Delta Attention is a gated delta net in which each entry
// of a head's keys has its own decay (kChannels).
enum class StateRule { kDelta, kSum, kChannels };

// The heads of a gated delta net, or of Mamba-2: each value head has its own state, and shares q and k with others.
struct DeltaHeads {
  std::uint32_t keys = 0, values = 0;  // numbers of heads; values is a multiple of keys
  std::uint32_t size = 0;              // entries of a head of q or k
  std::uint32_t taps = 0;              // positions over which q, k and v are convolved
  // The value heads of a key head are neighbours; otherwise a value head uses the key head of its number modulo `keys`.
  bool neighbours = false;
  std::uint32_t value_size = 0;  // entries of a value head; a delta net's are `size`
  StateRule rule = StateRule::kDelta;
  bool norms = true;  // what is read is normed; only with kSum it may be left as it is

  std::uint32_t channels() const { return 2 * keys * size + value_width(); }
  std::uint32_t value_width() const { return values * value_size; }
  // Returns the entries of DeltaNet::in.
  std::uint32_t mixed_width() const {
    const std::uint32_t decays = rule == StateRule::kChannels ? size : 1;
    return channels() + value_width() + (decays + (rule != StateRule::kSum ? 1 : 0)) * values;
  }
  // Returns the entries of all heads' states, and of the convolution's last inputs.
  std::uint64_t state_floats() const {
    return std::uint64_t{value_width()} * size + std::uint64_t{taps - 1} * channels();
  }
};

// What one layer carries from a sequence's position to the next, whatever the number of positions: a sequence has one
// of each, in addition to its keys and values.
struct StateStore {
  std::uint64_t floats = 0;
};

struct HeadShape {
  std::uint32_t heads = 0, kv_heads = 0;
  std::uint32_t size = 0;  // entries

  std::uint32_t query_width() const { return heads * size; }
  std::uint32_t kv_width() const { return kv_heads * size; }
  std::uint32_t qkv_width() const { return query_width() + 2 * kv_width(); }
};

// The operations. A column's result depends on its own sequence alone.
//
// An operation that says what it reads and writes is a step as it stands, unless a device makes it part of another one
// (forward/model_plan.hpp). The others are planned: devices fuse them or make several steps of them.
//
// An operation that is one dispatch of a kernel of its own has a file in operations/ (operations/README.md). The build
// adds it to the list below.

// out = in / sqrt(mean(in^2) + epsilon) * gain, over `width` entries from `first` on; or this is added to `out`. A
// layer norm is centred: (in - mean) / sqrt(variance + epsilon) * gain, plus a bias if it has one. `shift` is
// the entry of `out` at which the results begin; if it is not 0, `out` holds floats.
struct Norm {
  ActivationIndex in = kStream, out = kAbsent;
  VectorIndex gain = kAbsent;
  float epsilon = 0;
  std::uint32_t first = 0, width = 0;
  bool adds = false;
  bool centred = false;
  VectorIndex bias = kAbsent;
  std::uint32_t shift = 0;
};

// out = in, in the layout of a product's input if `out` is one; or in multiplied by a vector's only entry. If `out`
// has several columns for each column of `in`, each gets the first entries of one of equal parts of it.
struct Copy {
  ActivationIndex in = kStream, out = kAbsent;
  VectorIndex factor = kAbsent;

  std::array<ActivationIndex, 1> reads() const { return {in}; }
  std::array<ActivationIndex, 1> writes() const { return {out}; }
};

// out = matrix * in, or this is added to `out`. The matrix consists of its parts' rows, one after another.
struct Product {
  std::vector<MatrixPart> parts;
  ActivationIndex in = kAbsent, out = kAbsent;
  bool adds = false;
  VectorIndex bias = kAbsent;   // for all rows
  std::uint32_t first_row = 0;  // the entry of `out` that the first row makes; not with a bias
};

// For each column of the step and each slice s of a tensor: result s = matrix of slice s * input s. `in` has one input
// per slice for each column. `out` has one result per slice for each column, or one row with all of them in order.
struct SliceProduct {
  MatrixPart rows;  // of each slice
  std::uint32_t slices = 0;
  ActivationIndex in = kAbsent, out = kAbsent;
  // The tensor's rows from the beginning of a slice to the next one's. The tensor may have slices, or hold them one
  // after another as one matrix.
  std::uint64_t stride = 0;
  bool transposed = false;  // the matrix of a slice is the transposition of these rows
};

// The work between the q, k, v products and attention: adds the biases, normalises each head and rotates by position.
// The new key and value go to the sequence's pages; q waits for Attend.
struct Rotate {
  ActivationIndex qkv = kAbsent;  // q heads, k heads, v heads
  HeadShape heads = {};
  VectorIndex bias = kAbsent;  // [q, k, v]
  VectorIndex q_gain = kAbsent, k_gain = kAbsent;
  bool norms_turned = false;  // q and k are normalised after their rotation, not before it
  float epsilon = 0;
  RopeIndex rope = kAbsent;  // kAbsent: no rotation
  KvIndex kv = kAbsent;
  double scale = 0;  // factor of the scores; 0: 1 / sqrt(entries of a head)
  // q at position p is also multiplied by 1 + temperature * ln(1 + p / temperature_span), where the quotient is
  // rounded down. 0: it is not.
  float temperature = 0;
  std::uint32_t temperature_span = 1;
  // only q heads: an earlier layer stores the keys and values
  bool stores_nothing = false;
  // Values are normalised like q and k, but without a gain.
  bool norms_values = false;

  std::array<ActivationIndex, 1> reads() const { return {qkv}; }
  std::array<ActivationIndex, 2> writes() const { return {kWaitingQ, kKept}; }
};

// Rotate for attention over latents (DeepSeek-V2, arXiv 2405.04434). The cache has one row for each position:
// [latent, entries that rotate]. The row is the key, and its latent is the value. The query of a head is [the head's
// part of `absorbed`, the head's last entries of `q`, rotated].
struct RotateLatent {
  ActivationIndex q = kAbsent;         // [head][plain entries, entries that rotate]
  ActivationIndex absorbed = kAbsent;  // a column of latent entries for each head
  // The latent, to be normalised, and the key entries that rotate, from entry `first` on.
  ActivationIndex row = kAbsent;
  std::uint32_t first = 0;
  HeadShape heads;             // one KV head, of latent + rope entries
  VectorIndex gain = kAbsent;  // gain of the latent's norm
  float epsilon = 0;
  RopeIndex rope = kAbsent;
  KvIndex kv = kAbsent;
  double scale = 0;  // factor of the scores
  // As in Rotate.
  float temperature = 0;
  std::uint32_t temperature_span = 1;

  std::array<ActivationIndex, 3> reads() const { return {q, absorbed, row}; }
  std::array<ActivationIndex, 2> writes() const { return {kWaitingQ, kKept}; }
};

// Which scores a column uses, and how it weighs them.
struct ScoreRules {
  // Positions that it sees up to its own, which is one of them; 0: all.
  std::uint32_t window = 0;
  float soft_cap = 0;  // a score s becomes soft_cap * tanh(s / soft_cap); 0: unchanged
  VectorIndex sinks =
      kAbsent;  // for each head: a score that is part of the softmax and has no value
  // It also sees the positions after its own; with a window, as many as before its own. One step must compute all
  // positions of a sequence.
  bool both_ways = false;
};

// softmax(q * keys) * values for each head, over the positions up to the column's own, or over all. If values are
// entries of their keys (KvStore), `out` has one input for each head of a column.
struct Attend {
  HeadShape heads;
  KvIndex kv = kAbsent;
  ActivationIndex out = kAbsent;
  ScoreRules rules;

  std::array<ActivationIndex, 2> reads() const { return {kWaitingQ, kKept}; }
  std::array<ActivationIndex, 1> writes() const { return {out}; }
};

// kGelu: the tanh form (Hendrycks and Gimpel 2016, arXiv 1606.08415). kClamped: gpt-oss's SwiGLU
// (gpu/kernels/gates.glsl). kSigmoid: only the gate's sigmoid. kSquaredRelu: max(gate, 0)^2. kSiluTo7 and kSiluTo16:
// SiLU of at most that number, and an up within it.
enum class Gate { kSilu, kGelu, kClamped, kSigmoid, kSquaredRelu, kSiluTo7, kSiluTo16 };

// out = gate(gate_matrix * in) * (up_matrix * in). Without an up: gate(gate_matrix * in + bias), which `factors`, if
// given, multiplies: as many entries of that activation from `first_factor` on.
struct GatedProduct {
  MatrixPart gate, up;
  ActivationIndex in = kAbsent, out = kAbsent;
  Gate function = Gate::kSilu;
  ActivationIndex factors = kAbsent;
  std::uint32_t first_factor = 0;
  VectorIndex bias = kAbsent;
};

// out = function(gate) * values. All are entries of activations; the gate's start at `first_gate`.
struct Gated {
  ActivationIndex gate = kAbsent, values = kAbsent, out = kAbsent;
  std::uint32_t first_gate = 0;
  Gate function = Gate::kSigmoid;
};

// A gated delta net (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464) as in Qwen3-Next. `in` is [q heads, k heads,
// v heads, gates, betas, alphas], with one beta and one alpha for each value head. q, k and v are convolved over the
// last positions. A head's state decays, learns k -> v, and is read with q. The result is normalised for each head
// and multiplied by SiLU of its gate.
//
// With StateRule::kChannels it is Kimi Delta Attention (Kimi team 2025, arXiv 2510.26692): `in` is [q heads, k heads, v
// heads, gates, decays, betas], with a decay for each entry of a key of each value head (ChannelDecays makes them), and
// the gates' sigmoids multiply the result.
//
// With StateRule::kSum it is Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): `in` is [v heads (x), k heads (B), q heads
// (C), gates (z), alphas (dt)]. v times a head's skip is added to what is read. The sum is multiplied by SiLU of the
// gates, then normalised for each key head's group of value heads.
struct DeltaNet {
  ActivationIndex in = kAbsent, out = kAbsent;
  DeltaHeads heads;
  VectorIndex taps = kAbsent;       // [channel][heads.taps]
  VectorIndex taps_bias = kAbsent;  // [channel]; kAbsent: there is none
  VectorIndex skip = kAbsent;       // for each value head; only with kSum
  VectorIndex rates =
      kAbsent;  // of the decay, for each value head; they are negative; not with kChannels
  VectorIndex bias = kAbsent;  // of the alphas; not with kChannels
  VectorIndex gain = kAbsent;  // of a head's norm, if it has one; with kSum an entry for each of v
  float epsilon = 0;
  StateIndex state = kAbsent;
};

// A mixture of experts (Shazeer et al. 2017, arXiv 1701.06538): each column uses the `used` experts with the largest
// logits, of equal ones those with the lower index. A logit is an expert's row of the router times the column's norm.
// Softmax over all logits gives the weights.
struct Router {
  VectorIndex rows = kAbsent;  // [expert][width of the stream]
  // The gain of the residual stream's norm, which the router computes itself in float32, whatever the form of inputs.
  // kAbsent: the router reads the stream as it is.
  VectorIndex gain = kAbsent;
  float epsilon = 0;
  VectorIndex bias = kAbsent;  // of the logits
  std::uint32_t experts = 0, used = 0;
  bool shared_gate = false;  // one more row: the sigmoid of its logit is the shared expert's weight
  bool renormalise = false;  // weights are divided by their sum
  // Scores are the logits' sigmoids instead of their softmax. With sigmoids, a bias or groups, experts are chosen by
  // score plus bias instead of by logit. Groups are neighbouring experts, equally many in each. A column uses experts
  // only from the `groups_used` groups whose two largest scores plus biases have the largest sums.
  bool sigmoid = false;
  VectorIndex choice_bias = kAbsent;
  std::uint32_t groups = 1, groups_used = 1;
  float scale = 1;                      // factor of the weights
  VectorIndex expert_scales = kAbsent;  // factor of each expert's weight, applied last
};

// out = out + sum of weight * (down * (function(gate * in) * (up * in))) over the column's experts, in the order of
// their logits, then the shared expert's result times its weight. If `out` is not the residual stream, it is
// overwritten. Without gates: down * function(up * in).
struct Experts {
  Router router;
  ActivationIndex in = kAbsent, out = kStream;
  std::uint32_t width = 0;  // of an expert's gated product
  // One part with a slice for each expert, or one part for each expert. `gate` may be empty.
  std::vector<MatrixPart> gate, up, down;
  VectorIndex gate_bias = kAbsent, up_bias = kAbsent, down_bias = kAbsent;  // [expert][row]
  Gate function = Gate::kSilu;
  ActivationIndex shared = kAbsent;  // the result of an expert that all columns use
};

using Operation = std::variant<Norm, Copy, Product, SliceProduct, Rotate, RotateLatent, Attend,
                               GatedProduct, Experts, Gated, DeltaNet BULKHEAD_OPERATION_NAMES>;

// Whether an operation is a step by itself.
template <typename Kind>
concept StandsAlone = requires(const Kind& operation) {
  operation.reads();
  operation.writes();
};

// Says whether an operation has a file in operations/.
template <typename Kind>
concept HasOwnKernel = StandsAlone<Kind> && requires(const Kind& operation) {
  operation.vectors();
  operation.fits(std::vector<Activation>());
};

struct Layer {
  std::vector<Operation> operations;
};

// Before the layers: out = the token's row of a matrix, multiplied by `scale`.
struct Lookup {
  MatrixPart rows;
  ActivationIndex out = kAbsent;
  float scale = 1;
};

// How the residual stream begins.
enum class StreamStart {
  kEmbedding,
  // For a stage of a split model (forward/layer_split.hpp): the stage before it has computed the stream.
  kBrought,
  // The same, and what brings the stream also prepares the first norm, as the layer before it does in the whole
  // model.
  kBroughtAndPrepared,
  // For a block that drafts tokens (graph_draft.cpp): the stream begins with a hidden state of the block's model, which
  // comes with each column of a step.
  kHidden,
};

// What the architecture decides about a head for ranking (ranking.hpp). The defaults are BERT's.
struct RankForm {
  bool gelu = false;           // the dense layer's function is GELU instead of tanh
  float norm_epsilon = 0;      // of the layer norm behind that function; 0: such a norm is refused
  bool one_separator = false;  // one token stands between two texts even if the file asks for two
};

// A model, a stage of a split model, or a block that drafts tokens. A stage has some of the model's layers and what
// these need.
struct ModelGraph {
  std::string architecture;      // "llama", as in general.architecture
  std::string name;              // general.name, or the file's name
  std::uint32_t embedding = 0;   // width of the residual stream
  std::uint32_t vocabulary = 0;  // rows of token_embd.weight
  std::uint32_t context = 0;     // the model's own limit, in tokens

  std::vector<TensorRow> tensors;
  std::vector<VectorRow> vectors;
  std::vector<Activation> activations;
  std::vector<Rope> ropes;
  std::vector<KvStore> kv;
  std::vector<StateStore> states;

  // The stream's first value is the token's row of `embedding_rows`, multiplied by `embedding_scale`.
  MatrixPart embedding_rows;
  float embedding_scale = 1;
  StreamStart start = StreamStart::kEmbedding;
  bool makes_logits = true;  // false: a later stage computes them
  std::vector<Lookup> lookups;
  std::vector<Layer> layers;
  // The logits: output_rows * norm(stream).
  VectorIndex output_gain = kAbsent;  // kAbsent: there is no norm
  bool output_centred = false;        // a layer norm
  VectorIndex output_bias = kAbsent;  // of a layer norm; kAbsent: it has none
  float output_epsilon = 0;
  MatrixPart output_rows;
  VectorIndex logit_bias = kAbsent;  // added to the logits; kAbsent: there is none
  float logit_cap = 0;  // a logit l becomes logit_cap * tanh(l / logit_cap); 0: unchanged
  RankForm ranking;

  bool tied_output() const { return output_rows.tensor == embedding_rows.tensor; }
};

// Returns whether what begins the stream may also prepare the input of the first norm.
inline bool begins_prepared(const ModelGraph& graph) {
  return graph.start == StreamStart::kEmbedding || graph.start == StreamStart::kBroughtAndPrepared;
}

inline std::uint64_t entries_of(const ModelGraph& graph, const VectorRow::Part& part) {
  const TensorRow& row = graph.tensors[part.tensor];
  return part.entries != 0 ? part.entries : row.width * row.rows * row.slices;
}

// Returns whether the graph is a whole model, and not a stage of a split one.
inline bool is_whole(const ModelGraph& graph) {
  return graph.start == StreamStart::kEmbedding && graph.makes_logits;
}

// Returns the first operation of a kind; null: the model has none.
template <typename Kind>
const Kind* first_operation(const ModelGraph& graph) {
  for (const Layer& layer : graph.layers) {
    for (const Operation& operation : layer.operations) {
      if (const Kind* const found = std::get_if<Kind>(&operation)) return found;
    }
  }
  return nullptr;
}

// The longest text that an encoder reads, in tokens: all columns of a text are in one step.
inline constexpr std::uint32_t kLongestText = 8192;

// Returns whether the model is an encoder: its columns see their whole sequence, so it makes embeddings and no text.
inline bool is_encoder(const ModelGraph& graph) {
  const Attend* const attend = first_operation<Attend>(graph);
  return attend != nullptr && attend->rules.both_ways;
}

}  // namespace bulkhead::model
