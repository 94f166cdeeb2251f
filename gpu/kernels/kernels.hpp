// The compute kernels from C++: for each kernel, a function that makes its KernelSpec, and its push constants, which
// its .comp declares (fields.hpp). Addresses are device addresses. Strides count floats unless a name says otherwise.
//
// A mapping says how a device's lanes share the work. A device always has the same mapping, which determines its
// results bit for bit:
//   rows   each lane computes whole rows: for a CPU's SIMD lanes (lavapipe)
//   lanes  a subgroup computes a row together: for GPUs
//   units  like lanes, but matrix units compute the products: for GPUs that have them (units.hpp)
// Within a mapping, only the type and shape of a kernel's weights determine the order of additions.
#pragma once

#include <cstdint>
#include <span>

#include "gpu/device.hpp"
#include "gpu/kernels/fields.hpp"
#include "gpu/kernels/kv_layout.hpp"
#include "gpu/kernels/push_constants.hpp"
#include "gpu/kernels/values.hpp"
#include "gpu/kernels/weight_layout.hpp"

namespace bulkhead::gpu::spirv {
struct Module;
}

namespace bulkhead::gpu::kernels {

inline constexpr std::uint32_t kNoPosition = 0xffffffffU;

enum class UnitsAttention { kNowhere, kWhereFaster, kEverywhere };

struct Mapping {
  bool rows = false;
  // Matrix units compute the products: weights are stored in the order of the units' fragments, and inputs are
  // halves.
  bool units = false;
  // Where matrix units also compute attention, if they support its shape (attention_ranges()).
  UnitsAttention units_attention = UnitsAttention::kNowhere;
  std::uint32_t lanes = 32;             // subgroup size
  std::uint32_t required_subgroup = 0;  // for KernelSpec
  std::uint32_t wide_invocations =
      256;  // invocations of a workgroup of element-wise kernels, norms and the greedy choice
  std::uint32_t sorting_invocations = 512;  // of a workgroup that sorts a row's best tokens
  std::uint32_t attention_split = 64;       // the least number of positions in a split
  std::uint32_t attention_splits = 64;      // the most splits of a column
  std::uint32_t attention_heads =
      8;  // the most query heads of a KV head that attention computes together
  std::uint32_t attention_ahead = 8;   // how many loads of one kind attention issues at once
  std::uint32_t shared_bytes = 32768;  // per workgroup
  std::uint32_t most_columns = 8;      // per workgroup of a matrix-vector product
  std::uint32_t norm_invocations = 8;  // per workgroup of a norm
  // A workgroup may have kTogetherSubgroups subgroups, for the splits of attention.
  bool attention_together = false;

  InputForm input_form() const {
    return units ? InputForm::kUnits : rows ? InputForm::kRows : InputForm::kLanes;
  }
};
Mapping mapping_for(const DeviceInfo& info);
// Returns the same mapping, with `units` set if the device has matrix units whose fragments have the layout that the
// kernels expect. The function tests that on the device and logs it if the layout differs.
Mapping mapping_for(Device& device);
// Returns the mapping of GPUs for any device, for tests. On a CPU the tiles are narrower, because its JIT compiler
// takes a minute for sixteen columns.
Mapping lanes_mapping(const DeviceInfo& info);

// Returns how many entries of memory a column of a product's input of `width` entries takes: floats from one column
// to the next, or halves (kUnits, where columns are stored in eights).
std::uint32_t input_stride(const Mapping& mapping, std::uint32_t width);
// Returns the width up to which producers fill an input with zeros.
std::uint32_t input_padded(const Mapping& mapping, std::uint32_t width);

// The counts at the start of the step's parameters, 16 words; then the columns, 4 words each.
constexpr std::uint32_t kColumnCountWord = 0;
constexpr std::uint32_t kOutputCountWord = 1;
constexpr std::uint32_t kHeaderBytes = 64;
struct ColumnEntry {
  std::uint32_t token, position;
  std::uint32_t page_table;  // the index of the first word of its sequence's page table
  // 0: the host chose the token, which is in `token`. Otherwise an earlier step chose it, and this field is 1 + the
  // token's row in the results.
  std::uint32_t chosen;
};

// What a product in a step on a GPU needs in device memory besides its matrix and columns.
struct FusedOperands {
#include "gpu/kernels/fields/fused_operands.glsl"
};
static_assert(sizeof(FusedOperands) == 152);

struct MatvecPush {
#include "gpu/kernels/fields/matvec_push.glsl"
};
static_assert(sizeof(MatvecPush) == 88);

struct MatvecShape {
  WeightType type = WeightType::kF32;
  std::uint32_t rows = 0;  // of one result
  std::uint32_t groups = 0;
  Epilogue epilogue = Epilogue::kStore;
  bool permuted_out = false;  // the result is the input of another product
  Scaling scaling = Scaling::kNone;
  Gate gate = Gate::kSilu;  // Epilogue::kGated
  bool biased = false;  // results have biases; not with Epilogue::kQkv, which has its own biases
  std::uint32_t together =
      1;  // matrices of the shape that a column uses at once: those of its experts
};
// A variant of a product for steps of up to `columns` columns, with the types and shapes that it supports.
struct MatvecVariant {
  KernelSpec spec;
  std::uint32_t columns_per_workgroup = 1;
  std::uint32_t rows_per_workgroup = 1;
};
// Returns the best variant for steps of `columns` columns. `in_chain`: the product is a link of a chain.
MatvecVariant matvec(const Mapping& mapping, const MatvecShape& shape, std::uint32_t columns,
                     bool in_chain = false);
// For the lanes mapping: returns how many subgroups share a row of such a matrix, which affects the order of
// additions.
std::uint32_t lanes_split(const Mapping& mapping, const MatvecShape& shape);

struct EmbedPush {
#include "gpu/kernels/fields/embed_push.glsl"
};
static_assert(sizeof(EmbedPush) == 112);
// The number of workgroups that make a column, with matrix units.
constexpr std::uint32_t kEmbedParts = 4;
// With matrix units, an embedding matrix is packed for them if it also makes the logits, and otherwise in planes.
KernelSpec embed(const Mapping& mapping, WeightType type, const WeightLayout& layout);

struct NormPush {
#include "gpu/kernels/fields/norm_push.glsl"
};
static_assert(sizeof(NormPush) == 64);
struct RmsNormPush : NormPush {
#include "gpu/kernels/fields/rms_norm_push.glsl"
};
static_assert(sizeof(RmsNormPush) == 88);
// `form` is the layout of the result.
KernelSpec rms_norm(const Mapping& mapping, NormMakes makes, InputForm form);
// Layer norm (layer_norm.comp), with a norm's push constants and a bias.
struct LayerNormPush {
  NormPush norm;
#include "gpu/kernels/fields/layer_norm_push.glsl"
};
static_assert(sizeof(LayerNormPush) == 72);
KernelSpec layer_norm(const Mapping& mapping, InputForm form);
inline KernelSpec rms_norm(const Mapping& mapping) {
  return rms_norm(mapping, NormMakes::kNormed, mapping.input_form());
}
// Makes the scales that Scaling::kByMemory reads.
KernelSpec norm_scales(const Mapping& mapping);

static_assert(sizeof(GatedProductPush) == 56);
// `per_column` is the number of the operands' columns for each column of the step.
KernelSpec gated_product(const Mapping& mapping, Gate gate, std::uint32_t per_column = 1);

// The parameters for which attention kernels are specialised.
struct AttentionShape {
  std::uint32_t head = 0;  // entries
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  KvFormat kv = KvFormat::kF16;
  bool rope_halves = false;  // rotates pairs (i, i + pairs); otherwise pairs (2i, 2i + 1)
  // positions that a column sees up to its own, which is one of them; 0: all up to its own
  std::uint32_t window = 0;
  float soft_cap = 0;  // bounds the scores; 0: no bound
  bool sinks = false;  // each head has a score that is part of the sum of weights but has no value
  // If not 0, the first `value_entries` entries of each key are its value, and values take no room of their own. The
  // results are then [column][head], and each is an input of a product (attention_results.glsl). If 0, values are as
  // long as keys.
  std::uint32_t value_entries = 0;
  bool plain_out =
      false;  // results are floats in plain order, whatever the form of a product's input
  // A column also sees the positions of its sequence after its own; with a window, as many of them as before its own.
  // The kernel then reads a changed list of columns (ParameterLayout::sights): an entry's position is the last one of
  // the sequence, and its token is the column's own position.
  bool both_ways = false;
  // The bytes by which a page's number counts: a page begins at number * page_stride. 0: those of a page.
  std::uint32_t page_stride = 0;

  bool operator==(const AttentionShape&) const = default;

  // Returns how many positions after its own a column sees in a window.
  std::uint32_t seen_behind() const { return both_ways && window != 0 ? window - 1 : 0; }
  std::uint32_t head_padded() const { return kv_padded(head, kv); }
  // Returns the bytes of one layer's keys in one page. If values have room of their own, they take as many bytes
  // again.
  std::uint64_t page_bytes() const {
    return std::uint64_t{kv_heads} * kPageTokens * kv_position_bytes(head, kv);
  }
};

static_assert(sizeof(RopeKvPush) == 104);
// A column has one workgroup for each head of q, then of k, then of v; or for the heads of q only.
struct RopeKvRules {
  ValueNorm values = ValueNorm::kNone;
  bool norm_last = false;  // q and k are normalised after their rotation
  // Multiplies q at position p by 1 + temperature * ln(1 + p / temperature_span), where the quotient is rounded down.
  float temperature = 0;
  std::uint32_t temperature_span = 1;
};
KernelSpec rope_kv(const Mapping& mapping, const AttentionShape& shape,
                   const RopeKvRules& rules = {});

// For attention over latents (rope_latent.comp), where shape.value_entries is not 0. Each column has a workgroup for
// each query head, and one more for its row of the cache.
static_assert(sizeof(RopeLatentPush) == 104);
// The position scales queries as in RopeKvRules.
KernelSpec rope_latent(const Mapping& mapping, const AttentionShape& shape, float temperature = 0,
                       std::uint32_t temperature_span = 1);

// Attention divides a column's positions into splits and combines their results in order.
constexpr std::uint32_t kTogetherSubgroups = 16;
constexpr std::uint32_t kAttentionCountBytes = 128;
inline std::uint32_t partial_floats(const AttentionShape& shape) {
  return shape.head_padded() + 8;
}

struct AttentionPush {
#include "gpu/kernels/fields/attention_push.glsl"
};
static_assert(sizeof(AttentionPush) == 88);
struct AttentionVariant {
  KernelSpec spec;
  std::uint32_t x = 1, y = 1, z = 1;  // workgroups
};
// Columns at positions [from, until). One kernel computes their attention, by matrix units or without them.
struct AttentionRange {
  bool units = false;
  std::uint32_t from = 0, until = kNoPosition;
};
// In steps of up to this many columns, many processors share the keys and values of a column.
constexpr std::uint32_t kFewAttentionColumns = 4;
// Returns the ranges of a step of `columns` columns. A column's position alone determines whether matrix units compute
// it. They compute attention over paged halves or bytes for heads of at most 256 entries whose columns see no position
// after their own.
std::vector<AttentionRange> attention_ranges(const Mapping& mapping, const AttentionShape& shape,
                                             std::uint32_t columns);
// Makes the kernel for a step of `columns` columns of at most `context` positions each; the kernel computes the
// columns in the range. `near_first`: as a link of a chain, the kernel prefetches keys and values while it waits;
// with many columns that costs more than it gains.
AttentionVariant attention(const Mapping& mapping, const AttentionShape& shape,
                           const AttentionRange& range, AttentionMode mode, std::uint32_t columns,
                           std::uint32_t context, bool near_first = false);
// Returns how many positions a column's attention goes through if sequences have `context` positions. With a window,
// it counts the window's pages. Modes and splits are chosen by this number.
std::uint32_t positions_seen(const AttentionShape& shape, std::uint32_t context);
// Makes the kernel for the columns that kTiles and kSpreadTiles leave out. It takes the same push constants.
AttentionVariant attention_alone(const Mapping& mapping, const AttentionShape& shape,
                                 const AttentionRange& range, std::uint32_t columns);
// Returns the mode for a step of `columns` columns.
AttentionMode attention_mode(const Mapping& mapping, const AttentionShape& shape,
                             const AttentionRange& range, std::uint32_t columns,
                             std::uint32_t context);
// Returns the number of splits of a column that goes through up to `context` positions (positions_seen()).
std::uint32_t attention_splits(const Mapping& mapping, std::uint32_t context);
// Returns for how many partial results of a column's head `partials` must have room in any range.
std::uint32_t partial_splits(const Mapping& mapping, const AttentionShape& shape,
                             std::uint32_t columns, std::uint32_t context);

static_assert(sizeof(AttentionCombinePush) == 40);
KernelSpec attention_combine(const Mapping& mapping, const AttentionShape& shape);

// Limits logits in place: cap * tanh(logit / cap).
constexpr std::uint32_t kSoftCapEntries = 2048;  // per workgroup
static_assert(sizeof(SoftCapPush) == 32);
KernelSpec soft_cap(const Mapping& mapping);

// Adds a bias to each logit in place.
constexpr std::uint32_t kBiasLogitsEntries = 2048;  // per workgroup
KernelSpec bias_logits(const Mapping& mapping);

// Copies in the rows of the residual stream that an earlier stage of a split model computed.
static_assert(sizeof(StreamInPush) == 80);
KernelSpec stream_in(const Mapping& mapping);

constexpr std::uint32_t kGreedyChunk = 2048;
static_assert(sizeof(GreedyPush) == 72);
enum class GreedyPass {
  kChunks,
  kAll,
  kAdjustedChunks,  // kChunks without the tokens that masks exclude, by fewer workgroups
};
KernelSpec greedy(const Mapping& mapping, GreedyPass pass);

// What the kernels get for each output whose logits change before the draw; see adjusted_rows.glsl.
struct AdjustedRow {
#include "gpu/kernels/fields/adjusted_row.glsl"
};
static_assert(sizeof(AdjustedRow) == kAdjustedRowBytes);
static_assert(sizeof(EditLogitsPush) == 56);
enum class EditPass {
  kChanges,  // changes the logits
  kTells,    // passes the chosen token to the log-probabilities
};
KernelSpec edit_logits(const Mapping& mapping, EditPass pass);

// What one output asks of the sampling kernel (sample.comp). All zeros ask for nothing.
struct SampleChoice {
  std::uint32_t mode;   // 1: samples from all tokens, 2: with top-p or min-p; above: kAdjustedShift
  std::uint32_t top_k;  // 0: all tokens; at most kSampleTopK
  float scale;          // 1 / temperature
  float least;          // (logit - best) * scale of the least likely token that min-p keeps
  std::uint32_t top_p;  // in units of 2^-32; all bits set: 1
  std::uint32_t draw;   // the upper 32 bits of the draw,
  std::uint32_t draw_low;  // and the 21 bits below them
  std::uint32_t
      logprobs;  // 1 + the number of best tokens that logprobs.comp reports; 0: it does nothing
};
static_assert(sizeof(SampleChoice) == 32);
constexpr std::uint32_t kSampleTopK = 256;
// Returns the largest vocabulary that sample.comp and logprobs.comp support.
std::uint32_t sample_vocabulary(const Mapping& mapping);
// Says whether sample.comp's first passes have to find where top-p ends.
constexpr bool cuts(const SampleChoice& choice) {
  return choice.mode == 2 && choice.top_k == 0 && choice.top_p != 0xFFFFFFFFU;
}
struct SamplePush {
#include "gpu/kernels/fields/sample_push.glsl"
};
static_assert(sizeof(SamplePush) == 80);
KernelSpec sample(const Mapping& mapping, SamplePass pass);

// The numbers from which an output's log-probabilities are computed; see logprobs.comp. Token i's log-probability is
// logit - best - ln(sum / 2^40).
struct LogprobRow {
  std::uint64_t sum;
  float best;    // the largest logit
  float chosen;  // the chosen token's logit
  std::uint32_t count;
  std::uint32_t unused[3];
  struct Token {
    std::uint32_t id;
    float logit;
  };
  Token tokens[kMostLogprobs];  // best first
};
static_assert(sizeof(LogprobRow) == kLogprobBytes);
enum class LogprobPass { kSums, kTokens };
KernelSpec logprobs(const Mapping& mapping, LogprobPass pass);

static_assert(sizeof(ReadBandwidthPush) == 24);
constexpr std::uint32_t kReadBandwidthInvocations = 256;
KernelSpec read_bandwidth();

// The push constants that make a kernel a link of a chain (chain.glsl). They follow the kernel's own push constants,
// whose size is then a multiple of 8 bytes.
struct ChainPush {
#include "gpu/kernels/fields/chain_push.glsl"
};
static_assert(sizeof(ChainPush) == 24);
constexpr std::uint32_t kChainCountBytes = 128;
// Returns the kernel as a link; without push constants if the kernel can't be a link.
KernelSpec chained(KernelSpec spec);

// Returns a hash of the code of all kernels in this build. It is part of the numerics id.
std::uint64_t code_hash();
// Returns the hash of these kernels.
std::uint64_t hash_of(std::span<const spirv::Module> modules);

}  // namespace bulkhead::gpu::kernels
