// The compute kernels from C++: for each a function that makes its KernelSpec, and its push constants,
// which its .comp declares (fields.hpp). Addresses are device addresses; strides count floats unless a
// name says otherwise.
//
// A mapping says how a device's lanes share the work. A device keeps its mapping, which is part of its numerics:
//   rows   a lane computes whole rows: a CPU's SIMD lanes (lavapipe)
//   lanes  a subgroup computes a row together: GPUs
//   units  lanes, with products by the matrix units: GPUs that have them (units.hpp)
// Within a mapping, only the type and shape of a kernel's weights decide the order of additions.
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

struct Mapping {
  bool rows = false;
  // Matrix units compute the products: weights lie in the order of the units' fragments, and inputs
  // are halves.
  bool units = false;
  // Matrix units also compute attention of columns from this position on, where they can
  // (attention_ranges()).
  std::uint32_t units_attention_from = kNoPosition;
  std::uint32_t lanes = 32;             // subgroup size
  std::uint32_t required_subgroup = 0;  // for KernelSpec
  std::uint32_t wide_invocations =
      256;  // invocations of a workgroup of norms, element-wise kernels and the greedy choice
  std::uint32_t attention_split = 64;   // least positions in a split
  std::uint32_t attention_splits = 64;  // at most, of a column
  std::uint32_t attention_heads = 8;    // of a KV head that attention takes together, at most
  std::uint32_t attention_ahead = 8;    // how much of anything it asks for at once
  std::uint32_t shared_bytes = 32768;   // of a workgroup
  std::uint32_t most_columns = 8;       // of a matrix-vector workgroup
  std::uint32_t norm_invocations = 8;   // of a norm's workgroup
  // A workgroup may have kTogetherSubgroups of them for the splits of attention.
  bool attention_together = false;

  InputForm input_form() const {
    return units ? InputForm::kUnits : rows ? InputForm::kRows : InputForm::kLanes;
  }
};
Mapping mapping_for(const DeviceInfo& info);
// Returns the same mapping with `units` if the device has matrix units whose fragments lie as the
// kernels fill them. The function tries that on the device, and the log says if they do not.
Mapping mapping_for(Device& device);
// Returns GPUs' mapping on any device, for tests. On a CPU the tiles are narrower, because its JIT
// takes a minute for sixteen columns.
Mapping lanes_mapping(const DeviceInfo& info);

// Returns the entries that a column of a product's input of `width` entries takes in memory: floats
// from one column to the next, or halves (kUnits, with columns in eights).
std::uint32_t input_stride(const Mapping& mapping, std::uint32_t width);
// Producers write zeros from an input's width up to here.
std::uint32_t input_padded(const Mapping& mapping, std::uint32_t width);

// The counts at the start of the step's parameters, 16 words; then the columns, 4 words each.
constexpr std::uint32_t kColumnCountWord = 0;
constexpr std::uint32_t kOutputCountWord = 1;
constexpr std::uint32_t kHeaderBytes = 64;
struct ColumnEntry {
  std::uint32_t token, position;
  std::uint32_t page_table;  // the first word of its sequence's page table
  // 0: the host chose the token, which is in `token`. Otherwise an earlier step chose it, and this field is 1 + the
  // token's row in the results.
  std::uint32_t chosen;
};

// What a product of a step on a GPU needs besides its matrix and columns, in device memory.
struct FusedOperands {
#include "gpu/kernels/fields/fused_operands.glsl"
};
static_assert(sizeof(FusedOperands) == 144);

struct MatvecPush {
#include "gpu/kernels/fields/matvec_push.glsl"
};
static_assert(sizeof(MatvecPush) == 88);

struct MatvecShape {
  WeightType type = WeightType::kF32;
  std::uint32_t rows = 0;  // of a result
  std::uint32_t groups = 0;
  Epilogue epilogue = Epilogue::kStore;
  bool permuted_out = false;  // the result is another product's input
  Scaling scaling = Scaling::kNone;
  Gate gate = Gate::kSilu;     // Epilogue::kGated
  bool biased = false;         // results have biases; not with Epilogue::kQkv, which has its own
  std::uint32_t together = 1;  // matrices of the shape that a column takes at once: its experts'
};
// A variant of a product for steps of up to `columns` columns, with the types and shapes that it
// covers.
struct MatvecVariant {
  KernelSpec spec;
  std::uint32_t columns_per_workgroup = 1;
  std::uint32_t rows_per_workgroup = 1;
};
// `in_chain`: the variant that is best as a link of a chain.
MatvecVariant matvec(const Mapping& mapping, const MatvecShape& shape, std::uint32_t columns,
                     bool in_chain = false);
// For the lanes mapping: returns how many subgroups share a row of such a matrix, which is part of
// the order of additions.
std::uint32_t lanes_split(const Mapping& mapping, const MatvecShape& shape);

struct EmbedPush {
#include "gpu/kernels/fields/embed_push.glsl"
};
static_assert(sizeof(EmbedPush) == 112);
// The number of workgroups that make a column, with matrix units.
constexpr std::uint32_t kEmbedParts = 4;
KernelSpec embed(const Mapping& mapping, WeightType type);

struct NormPush {
#include "gpu/kernels/fields/norm_push.glsl"
};
static_assert(sizeof(NormPush) == 64);
struct RmsNormPush : NormPush {
#include "gpu/kernels/fields/rms_norm_push.glsl"
};
static_assert(sizeof(RmsNormPush) == 88);
// `form`: how the result is laid out.
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
// `per_column`: columns of the operands for each of the step's.
KernelSpec gated_product(const Mapping& mapping, Gate gate, std::uint32_t per_column = 1);

// What attention kernels are specialised for.
struct AttentionShape {
  std::uint32_t head = 0;  // entries
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  KvFormat kv = KvFormat::kF16;
  bool rope_halves = false;  // pairs (i, i + pairs), else (2i, 2i + 1)
  std::uint32_t window = 0;  // positions that a column sees, its own included; 0: all up to its own
  float soft_cap = 0;        // scores stay within it; 0: they are as they come
  bool sinks = false;        // each head has a score that joins the sum of weights and has no value
  // Not 0: values are that many first entries of their keys and take no room of their own. Results are
  // then [column][head], each an input of a product (attention_results.glsl). 0: values are as long as
  // keys.
  std::uint32_t value_entries = 0;
  bool plain_out = false;  // results are floats in order, whatever form a product's input has

  bool operator==(const AttentionShape&) const = default;

  std::uint32_t head_padded() const { return kv_padded(head, kv); }
  // Bytes of one layer's keys in one page. Values take as many bytes again if they have places of
  // their own.
  std::uint64_t page_bytes() const {
    return std::uint64_t{kv_heads} * kPageTokens * kv_position_bytes(head, kv);
  }
};

static_assert(sizeof(RopeKvPush) == 104);
// The workgroups of a column: one for each head of q, then of k, then of v; or of q alone.
struct RopeKvRules {
  ValueNorm values = ValueNorm::kNone;
  // q at position p times 1 + temperature * ln(1 + p / temperature_span), the quotient rounded down.
  float temperature = 0;
  std::uint32_t temperature_span = 1;
};
KernelSpec rope_kv(const Mapping& mapping, const AttentionShape& shape,
                   const RopeKvRules& rules = {});

// For attention over latents (rope_latent.comp), where shape.value_entries is not 0. Each column has a workgroup
// for each query head and one more for its row of the cache.
static_assert(sizeof(RopeLatentPush) == 104);
// Queries grow with the position as RopeKvRules says.
KernelSpec rope_latent(const Mapping& mapping, const AttentionShape& shape, float temperature = 0,
                       std::uint32_t temperature_span = 1);

// Attention takes a column's positions in splits and folds their results in order.
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
// Columns that stand at positions [from, until), whose attention one kernel makes: by matrix units or
// without them.
struct AttentionRange {
  bool units = false;
  std::uint32_t from = 0, until = kNoPosition;
};
// Each column belongs to one range, by its position alone. Matrix units compute attention over
// halves in pages, of heads of at most 256 entries, without window, cap and sinks.
std::vector<AttentionRange> attention_ranges(const Mapping& mapping, const AttentionShape& shape);
// Makes the kernel for a step of so many columns of at most `context` positions each; the kernel
// computes the columns in the range. `near_first`: as a link of a chain it brings keys and values
// nearer while it waits, which costs more than it gains where many columns do.
AttentionVariant attention(const Mapping& mapping, const AttentionShape& shape,
                           const AttentionRange& range, AttentionMode mode, std::uint32_t columns,
                           std::uint32_t context, bool near_first = false);
// Returns how many positions a column's attention goes through if sequences have `context`
// positions: with a window, those of its pages. Modes and splits are chosen for this number.
std::uint32_t positions_seen(const AttentionShape& shape, std::uint32_t context);
// Makes the kernel for the columns that kTiles and kSpreadTiles leave out; it takes the same push constants.
AttentionVariant attention_alone(const Mapping& mapping, const AttentionShape& shape,
                                 const AttentionRange& range, std::uint32_t columns);
// Returns the mode for a step of so many columns.
AttentionMode attention_mode(const Mapping& mapping, const AttentionShape& shape,
                             const AttentionRange& range, std::uint32_t columns,
                             std::uint32_t context);
// Returns the number of splits of a column that goes through up to `context` positions
// (positions_seen()).
std::uint32_t attention_splits(const Mapping& mapping, std::uint32_t context);
// Returns for how many partial results of a column's head `partials` must have room, for any range.
std::uint32_t partial_splits(const Mapping& mapping, const AttentionShape& shape,
                             std::uint32_t columns, std::uint32_t context);

static_assert(sizeof(AttentionCombinePush) == 40);
KernelSpec attention_combine(const Mapping& mapping, const AttentionShape& shape);

// Caps logits in place: cap * tanh(logit / cap).
constexpr std::uint32_t kSoftCapEntries = 2048;  // of a workgroup
static_assert(sizeof(SoftCapPush) == 32);
KernelSpec soft_cap(const Mapping& mapping);

// Takes over the rows of the residual stream that an earlier stage of a split model computed.
static_assert(sizeof(StreamInPush) == 80);
KernelSpec stream_in(const Mapping& mapping);

constexpr std::uint32_t kGreedyChunk = 2048;
static_assert(sizeof(GreedyPush) == 48);
enum class GreedyPass { kChunks, kAll };
KernelSpec greedy(const Mapping& mapping, GreedyPass pass);

// What an output asks of the sampling kernel (sample.comp). All zeros ask for nothing.
struct SampleChoice {
  std::uint32_t mode;      // 1: all tokens, 2: with top-p or min-p
  std::uint32_t top_k;     // 0: all; at most kSampleTopK
  float scale;             // 1 / temperature
  float least;             // (logit - best) * scale of tokens that min-p leaves in
  std::uint32_t top_p;     // in units of 2^-32; all ones: 1
  std::uint32_t draw;      // the draw's upper 32 bits,
  std::uint32_t draw_low;  // and the 21 below them
  std::uint32_t
      logprobs;  // 1 + how many of the best tokens logprobs.comp tells; 0: it has nothing to do
};
static_assert(sizeof(SampleChoice) == 32);
constexpr std::uint32_t kSampleTopK = 256;
constexpr std::uint32_t kSampleVocabulary = 512 * kGreedyChunk;  // at most
struct SamplePush {
#include "gpu/kernels/fields/sample_push.glsl"
};
static_assert(sizeof(SamplePush) == 72);
KernelSpec sample(const Mapping& mapping);

// What the log-probabilities of an output are made of; see logprobs.comp. Token i's is
// logit - best - ln(sum / 2^40).
struct LogprobRow {
  std::uint64_t sum;
  float best;    // the largest logit
  float chosen;  // the chosen token's
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

// The push constants that make a kernel a link of a chain (chain.glsl). They follow the kernel's own push
// constants, whose size is a multiple of 8 bytes.
struct ChainPush {
#include "gpu/kernels/fields/chain_push.glsl"
};
static_assert(sizeof(ChainPush) == 24);
constexpr std::uint32_t kChainCountBytes = 128;
// Returns the kernel as a link; without push constants if the kernel can't be one.
KernelSpec chained(KernelSpec spec);

// Returns a hash of the code of all kernels that the build makes. It is part of the numerics id.
std::uint64_t code_hash();
// Returns the hash of these kernels.
std::uint64_t hash_of(std::span<const spirv::Module> modules);

}  // namespace bulkhead::gpu::kernels
