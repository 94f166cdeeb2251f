#include "gpu/kernels/kernels.hpp"

#include <algorithm>

#include "config/base/log.hpp"
#include "gpu/kernels/attention.hpp"
#include "gpu/kernels/attention_chained.hpp"
#include "gpu/kernels/attention_combine.hpp"
#include "gpu/kernels/attention_rows.hpp"
#include "gpu/kernels/embed.hpp"
#include "gpu/kernels/embed_units.hpp"
#include "gpu/kernels/gated_product.hpp"
#include "gpu/kernels/gated_product_chained.hpp"
#include "gpu/kernels/greedy.hpp"
#include "gpu/kernels/greedy_chained.hpp"
#include "gpu/kernels/logprobs.hpp"
#include "gpu/kernels/matvec_lanes.hpp"
#include "gpu/kernels/matvec_rows.hpp"
#include "gpu/kernels/matvec_units.hpp"
#include "gpu/kernels/matvec_units_chained.hpp"
#include "gpu/kernels/read_bandwidth.hpp"
#include "gpu/kernels/rms_norm.hpp"
#include "gpu/kernels/rms_norm_chained.hpp"
#include "gpu/kernels/rope_kv.hpp"
#include "gpu/kernels/rope_kv_chained.hpp"
#include "gpu/kernels/sample.hpp"
#include "gpu/kernels/units.hpp"
#include "gpu/kernels/units_check.hpp"

namespace bulkhead::gpu::kernels {
namespace {

// norm_scale.glsl
constexpr std::uint32_t kNormParts = 8;

std::uint32_t flag(bool value) {
  return value ? 1 : 0;
}

std::uint32_t form_of(const Mapping& mapping) {
  return static_cast<std::uint32_t>(mapping.input_form());
}

std::uint32_t round_up_to_power_of_two(std::uint32_t value, std::uint32_t limit) {
  std::uint32_t power = 1;
  while (power < value && power < limit)
    power *= 2;
  return power;
}

}  // namespace

Mapping lanes_mapping(const DeviceInfo& info) {
  Mapping mapping;
  mapping.lanes = std::max(info.subgroup_size, 4U);
  mapping.required_subgroup = info.kind == DeviceKind::kCpu ? 0 : mapping.lanes;
  mapping.wide_invocations = std::min(256U, info.max_workgroup_invocations);
  mapping.norm_invocations = kNormParts * mapping.lanes;
  mapping.attention_together = mapping.lanes * kTogetherSubgroups <= info.max_workgroup_invocations;
  mapping.shared_bytes = info.shared_memory_bytes;
  if (info.kind == DeviceKind::kCpu) {
    mapping.most_columns = 4;
    mapping.attention_heads = 3;
    mapping.attention_ahead = 1;
  }
  return mapping;
}

Mapping mapping_for(const DeviceInfo& info) {
  Mapping mapping = lanes_mapping(info);
  // The rows mapping broadcasts from eight lanes.
  if (info.kind == DeviceKind::kCpu && info.subgroup_size >= 8) {
    mapping.rows = true;
    mapping.most_columns = 8;
    mapping.wide_invocations = mapping.lanes;
    mapping.norm_invocations = mapping.lanes;
    mapping.attention_together = false;
    mapping.attention_splits = 16;
  }
  return mapping;
}

Mapping mapping_for(Device& device) {
  Mapping mapping = mapping_for(device.info());
  if (mapping.rows || !device.info().matrix_units) return mapping;
  const Result<bool> usable = fragments_as_expected(device);
  mapping.units = usable.ok() && *usable;
  if (mapping.units) {
    mapping.lanes = mapping.required_subgroup = 32;
    mapping.norm_invocations = kNormParts * mapping.lanes;
  } else {
    spdlog::warn("{} has matrix units, but not as the kernels know them ({}); products go without",
                 device.info().name,
                 usable.ok() ? "their fragments lie otherwise" : usable.error().message());
  }
  return mapping;
}

std::uint32_t input_stride(const Mapping& mapping, std::uint32_t width) {
  const std::uint32_t block = mapping.units ? kUnitStageWeights : mapping.rows ? 32 : 1024;
  return (width + block - 1) / block * block;
}

std::uint32_t input_padded(const Mapping& mapping, std::uint32_t width) {
  const std::uint32_t block = mapping.units ? kUnitStageWeights : kGroupWeights;
  return (width + block - 1) / block * block;
}

KernelSpec rms_norm(const Mapping& mapping, NormMakes makes, InputForm form) {
  return {makes == NormMakes::kScale ? "norm scales" : "norm",
          spirv::rms_norm,
          sizeof(RmsNormPush),
          {mapping.norm_invocations, static_cast<std::uint32_t>(form),
           mapping.rows ? 0 : mapping.lanes, static_cast<std::uint32_t>(makes)},
          mapping.rows ? 0 : mapping.required_subgroup};
}

KernelSpec norm_scales(const Mapping& mapping) {
  return rms_norm(mapping, NormMakes::kScale, mapping.input_form());
}

KernelSpec gated_product(const Mapping& mapping) {
  return {"gated product",
          spirv::gated_product,
          sizeof(GatedProductPush),
          {mapping.wide_invocations, form_of(mapping)},
          0};
}

KernelSpec rope_kv(const Mapping& mapping, const AttentionShape& shape) {
  const std::uint32_t invocations =
      mapping.rows ? mapping.lanes
                   : std::max(mapping.lanes, round_up_to_power_of_two(shape.head_padded(), 128));
  return {"rope and KV write",
          spirv::rope_kv,
          sizeof(RopeKvPush),
          {invocations, shape.head, shape.heads, shape.kv_heads,
           static_cast<std::uint32_t>(shape.kv), flag(shape.rope_halves)},
          0};
}

namespace {

// What the subgroups of a workgroup make at once, a split each.
std::uint32_t together_positions(const Mapping& mapping) {
  return kTogetherSubgroups * mapping.attention_split;
}

}  // namespace

AttentionMode attention_mode(const Mapping& mapping, const AttentionShape& shape,
                             std::uint32_t columns, std::uint32_t context) {
  if (!mapping.rows) {
    // A few columns' heads are made soonest each by a workgroup of its own. 5 to 16 of them would
    // perhaps be made sooner spread, too: within a chain that has not run on a GPU.
    if (mapping.attention_together && columns <= 16) return AttentionMode::kTogether;
    // Many columns keep a GPU busy without their being spread; and partial results take room.
    return columns <= 64 ? AttentionMode::kSpread : AttentionMode::kWhole;
  }
  // llvmpipe ends an invocation's loops after 65,535 rounds in all.
  const std::uint64_t rounds =
      std::uint64_t{context} / mapping.lanes * (shape.head_padded() / 8 + 2);
  return rounds < 50000 ? AttentionMode::kWhole : AttentionMode::kPartial;
}

std::uint32_t attention_splits(const Mapping& mapping, std::uint32_t context) {
  const std::uint32_t least = mapping.attention_split;
  return std::clamp((context + least - 1) / least, 1U, mapping.attention_splits);
}

std::uint32_t partial_splits(const Mapping& mapping, AttentionMode mode, std::uint32_t context) {
  if (mode == AttentionMode::kWhole) return 0;
  if (mode == AttentionMode::kPartial) return mapping.attention_splits;
  if (mode == AttentionMode::kTogether && context <= together_positions(mapping)) return 0;
  return attention_splits(mapping, context);
}

namespace {

// Query heads that share a KV head and one workgroup. A CPU profits from loading keys once for
// several heads.
std::uint32_t heads_together(const Mapping& mapping, const AttentionShape& shape) {
  const std::uint32_t group = shape.heads / shape.kv_heads;
  if (!mapping.rows) return 1;
  for (const std::uint32_t heads : {4U, 3U, 2U}) {
    if (group % heads == 0 && heads * shape.head_padded() <= 256) return heads;
  }
  return 1;
}

// attention.comp's `room`, shared_q and wide_weights, or a little more, of a GPU's workgroup.
std::uint32_t attention_shared_bytes(const Mapping& mapping, const AttentionShape& shape,
                                     AttentionMode mode, std::uint32_t heads,
                                     std::uint32_t subgroups) {
  const std::uint32_t padded = shape.head_padded();
  const std::uint32_t parts = std::max(mapping.lanes / (padded / 8), 1U);
  const std::uint32_t of_part = (heads + parts - 1) / parts;
  const std::uint32_t weights = subgroups * (mapping.lanes + 1) *
                                ((heads + of_part - 1) / of_part) *
                                (of_part > 2 ? (of_part + 3) / 4 * 4 : of_part);
  const std::uint32_t shares = heads * mapping.attention_splits * 3;
  const std::uint32_t q = heads * padded * (mode == AttentionMode::kWhole ? subgroups : 1);
  return 4 * (q + weights + std::max(subgroups * partial_floats(shape), shares) + 4);
}

// Heads of a KV head for which a GPU's subgroup loads keys and values once.
std::uint32_t heads_sharing(const Mapping& mapping, const AttentionShape& shape, AttentionMode mode,
                            std::uint32_t most, std::uint32_t subgroups) {
  const std::uint32_t group = shape.heads / shape.kv_heads;
  std::uint32_t heads = 1;
  for (std::uint32_t parts = 1; parts <= group; ++parts) {
    heads = (group + parts - 1) / parts;
    if (heads > std::min(most, mapping.attention_heads)) continue;
    if (attention_shared_bytes(mapping, shape, mode, heads, subgroups) <= mapping.shared_bytes)
      break;
  }
  return heads;
}

std::vector<std::uint32_t> attention_constants(const Mapping& mapping, const AttentionShape& shape,
                                               std::uint32_t heads) {
  return {mapping.lanes,
          shape.head,
          shape.heads,
          shape.kv_heads,
          static_cast<std::uint32_t>(shape.kv),
          heads,
          form_of(mapping),
          mapping.attention_split,
          flag(mapping.rows),
          mapping.attention_splits};
}

}  // namespace

AttentionVariant attention(const Mapping& mapping, const AttentionShape& shape, AttentionMode mode,
                           std::uint32_t columns, std::uint32_t context, bool near_first) {
  const std::uint32_t heads = heads_together(mapping, shape);
  std::vector<std::uint32_t> constants = attention_constants(mapping, shape, heads);
  AttentionVariant variant;
  std::uint32_t subgroups = 1, sharing = 1, ahead = mapping.attention_ahead, spread_from = 0;
  variant.x = columns;
  variant.y = shape.heads / heads;
  if (mode == AttentionMode::kPartial) variant.z = mapping.attention_splits;
  const auto groups = [&] {
    return (shape.heads / shape.kv_heads + sharing - 1) / sharing * shape.kv_heads;
  };
  switch (mode) {
    case AttentionMode::kWhole:
      if (mapping.rows) break;
      ahead = std::min(ahead, 4U);
      sharing = heads_sharing(mapping, shape, mode, mapping.attention_heads, 4);
      if (sharing == 1) break;
      subgroups = 4;
      variant.x = (columns + subgroups - 1) / subgroups;
      variant.y = groups();
      break;
    case AttentionMode::kPartial:
      break;
    case AttentionMode::kTogether:
      subgroups = kTogetherSubgroups;
      sharing = heads_sharing(mapping, shape, mode, 4, subgroups);
      spread_from = together_positions(mapping);
      // A few columns' heads are fewer than a large device's processors.
      if (context > spread_from) variant.z = std::clamp(128 / (columns * shape.heads), 1U, 4U);
      break;
    case AttentionMode::kSpread:
      subgroups = 8;
      sharing = heads_sharing(mapping, shape, mode, mapping.attention_heads, subgroups);
      variant.y = groups();
      variant.z = std::clamp(4096 / (columns * variant.y * subgroups), 1U,
                             (attention_splits(mapping, context) + subgroups - 1) / subgroups);
      break;
  }
  constants.insert(constants.end(), {static_cast<std::uint32_t>(mode), mapping.lanes * subgroups,
                                     flag(near_first), sharing, ahead, spread_from});
  variant.spec = {"attention", mapping.rows ? spirv::attention_rows : spirv::attention,
                  sizeof(AttentionPush), std::move(constants), mapping.required_subgroup};
  variant.spec.slow_to_compile = true;
  return variant;
}

KernelSpec attention_combine(const Mapping& mapping, const AttentionShape& shape) {
  return {"attention combine", spirv::attention_combine, sizeof(AttentionCombinePush),
          attention_constants(mapping, shape, 1), 0};
}

KernelSpec greedy(const Mapping& mapping, GreedyPass pass) {
  return {pass == GreedyPass::kChunks ? "greedy chunks" : "greedy",
          spirv::greedy,
          sizeof(GreedyPush),
          {mapping.rows ? mapping.lanes : 128, flag(pass == GreedyPass::kAll), kGreedyChunk},
          0};
}

KernelSpec sample(const Mapping& mapping) {
  return {
      "sample", spirv::sample, sizeof(SamplePush), {mapping.rows ? 64U : 512U, kGreedyChunk}, 0};
}

KernelSpec logprobs(const Mapping& mapping, LogprobPass pass) {
  const bool sums = pass == LogprobPass::kSums;
  return {sums ? "logprob sums" : "logprobs",
          spirv::logprobs,
          sizeof(SamplePush),
          {mapping.rows ? 64U
           : sums       ? 128U
                        : 512U,
           kGreedyChunk, flag(sums)},
          0};
}

KernelSpec read_bandwidth() {
  return {"read bandwidth",
          spirv::read_bandwidth,
          sizeof(ReadBandwidthPush),
          {kReadBandwidthInvocations},
          0};
}

KernelSpec chained(KernelSpec spec) {
  const std::span<const std::uint32_t> links[][2] = {
      {spirv::attention, spirv::attention_chained},
      {spirv::gated_product, spirv::gated_product_chained},
      {spirv::greedy, spirv::greedy_chained},
      {spirv::matvec_units, spirv::matvec_units_chained},
      {spirv::rms_norm, spirv::rms_norm_chained},
      {spirv::rope_kv, spirv::rope_kv_chained}};
  for (const auto& [alone, link] : links) {
    if (spec.spirv.data() != alone.data()) continue;
    spec.spirv = link;
    spec.push_bytes += sizeof(ChainPush);
    return spec;
  }
  spec.push_bytes = 0;
  return spec;
}

std::uint64_t code_hash() {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a over words
  for (const auto& module : {spirv::attention,
                             spirv::attention_combine,
                             spirv::attention_rows,
                             spirv::embed,
                             spirv::embed_units,
                             spirv::gated_product,
                             spirv::matvec_units,
                             spirv::greedy,
                             spirv::sample,
                             spirv::logprobs,
                             spirv::matvec_lanes,
                             spirv::matvec_rows,
                             spirv::rms_norm,
                             spirv::rope_kv,
                             spirv::attention_chained,
                             spirv::gated_product_chained,
                             spirv::greedy_chained,
                             spirv::matvec_units_chained,
                             spirv::rms_norm_chained,
                             spirv::rope_kv_chained}) {
    for (const std::uint32_t word : module)
      hash = (hash ^ word) * 0x100000001b3U;
  }
  return hash;
}

}  // namespace bulkhead::gpu::kernels
