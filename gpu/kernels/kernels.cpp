#include "gpu/kernels/kernels.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "config/base/fnv1a.hpp"
#include "config/base/log.hpp"
#include "gpu/kernels/attention_combine.hpp"
#include "gpu/kernels/attention_constants.hpp"
#include "gpu/kernels/constants.hpp"
#include "gpu/kernels/kernel_row.hpp"
#include "gpu/kernels/layer_norm.hpp"
#include "gpu/kernels/logprobs.hpp"
#include "gpu/kernels/rms_norm.hpp"
#include "gpu/kernels/rope_kv.hpp"
#include "gpu/kernels/rope_latent.hpp"
#include "gpu/kernels/sample.hpp"
#include "gpu/kernels/shader_modules.hpp"
#include "gpu/kernels/units_check.hpp"

namespace bulkhead::gpu::kernels {
namespace {

// as in norm_scale.glsl
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
  mapping.sorting_invocations = std::min(512U, info.max_workgroup_invocations);
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
    spdlog::warn(
        "{} has matrix units of a kind that the kernels do not support ({}); products do not use "
        "them",
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
  RmsNormConstants constants;
  constants.invocations = mapping.norm_invocations;
  constants.form = static_cast<std::uint32_t>(form);
  constants.lanes = mapping.rows ? 0 : mapping.lanes;
  constants.makes = static_cast<std::uint32_t>(makes);
  constants.next_form = form_of(mapping);
  return {makes == NormMakes::kScale ? "norm scales" : "norm", spirv::rms_norm, sizeof(RmsNormPush),
          constants_of(constants), mapping.rows ? 0 : mapping.required_subgroup};
}

KernelSpec layer_norm(const Mapping& mapping, InputForm form) {
  LayerNormConstants constants;
  constants.invocations = mapping.wide_invocations;
  constants.form = static_cast<std::uint32_t>(form);
  return {"layer norm", spirv::layer_norm, sizeof(LayerNormPush), constants_of(constants), 0};
}

KernelSpec norm_scales(const Mapping& mapping) {
  return rms_norm(mapping, NormMakes::kScale, mapping.input_form());
}

KernelSpec gated_product(const Mapping& mapping, Gate gate, std::uint32_t per_column) {
  GatedProductConstants constants;
  constants.invocations = mapping.wide_invocations;
  constants.form = form_of(mapping);
  constants.gate = static_cast<std::uint32_t>(gate);
  constants.per_column = per_column;
  return kernel<GatedProductKernel>(constants);
}

HeadConstants head_constants(const AttentionShape& shape) {
  HeadConstants constants;
  constants.head = shape.head;
  constants.heads = shape.heads;
  constants.kv_heads = shape.kv_heads;
  constants.kv_format = static_cast<std::uint32_t>(shape.kv);
  return constants;
}

PageConstants page_constants(const AttentionShape& shape) {
  PageConstants constants;
  constants.page_stride = shape.page_stride;
  return constants;
}

namespace {

// The workgroup of a kernel that rotates one head.
RopeWorkgroupConstants rope_workgroup(const Mapping& mapping, const AttentionShape& shape) {
  RopeWorkgroupConstants workgroup;
  workgroup.lanes =
      mapping.rows ? mapping.lanes
                   : std::max(mapping.lanes, round_up_to_power_of_two(shape.head_padded(), 128));
  return workgroup;
}

}  // namespace

KernelSpec rope_latent(const Mapping& mapping, const AttentionShape& shape, float temperature,
                       std::uint32_t temperature_span) {
  RopeLatentConstants constants;
  constants.latent = shape.value_entries;
  constants.halves = flag(shape.rope_halves);
  constants.temperature = std::bit_cast<std::uint32_t>(temperature);
  constants.temperature_span = temperature_span;
  return {"rope and latent write", spirv::rope_latent, sizeof(RopeLatentPush),
          constants_of(rope_workgroup(mapping, shape), head_constants(shape), constants,
                       page_constants(shape)),
          0};
}

KernelSpec rope_kv(const Mapping& mapping, const AttentionShape& shape, const RopeKvRules& rules) {
  RopeConstants rope;
  rope.pairing = flag(shape.rope_halves);
  rope.value_norm = static_cast<std::uint32_t>(rules.values);
  rope.norm_last = flag(rules.norm_last);
  rope.temperature = std::bit_cast<std::uint32_t>(rules.temperature);
  rope.temperature_span = rules.temperature_span;
  return {"rope and KV write", spirv::rope_kv, sizeof(RopeKvPush),
          constants_of(rope_workgroup(mapping, shape), head_constants(shape), rope,
                       page_constants(shape)),
          0};
}

std::uint32_t together_positions(const Mapping& mapping) {
  return kTogetherSubgroups * mapping.attention_split;
}

std::uint32_t positions_seen(const AttentionShape& shape, std::uint32_t context) {
  return shape.window == 0
             ? context
             : std::min(context, shape.window + shape.seen_behind() + kPageTokens - 1);
}

std::vector<AttentionRange> attention_ranges(const Mapping& mapping, const AttentionShape& shape,
                                             std::uint32_t columns) {
  // Heads of more than kMostEntries entries leave a subgroup too few registers. Single columns of such heads are faster
  // without matrix units in windows, and elsewhere before kFarPosition. Whoever changes these numbers must raise
  // kNumericsVersion.
  constexpr std::uint32_t kMostEntries = 128, kFarPosition = 1024;
  if (mapping.units_attention == UnitsAttention::kNowhere || !units_attend(mapping, shape))
    return {{}};
  if (mapping.units_attention == UnitsAttention::kWhereFaster &&
      shape.head_padded() > kMostEntries) {
    if (shape.window != 0) return {{}};
    return {{.until = kFarPosition}, {.units = true, .from = kFarPosition}};
  }
  // A few columns that see few positions are divided in another way, by a kernel of its own.
  const std::uint32_t near = together_positions(mapping);
  const bool some_see_more = shape.window == 0 || shape.window > near;
  if (columns > kFewAttentionColumns || !some_see_more) return {{.units = true}};
  return {{.units = true, .until = near}, {.units = true, .from = near}};
}

AttentionMode attention_mode(const Mapping& mapping, const AttentionShape& shape,
                             const AttentionRange& range, std::uint32_t columns,
                             std::uint32_t context) {
  if (!mapping.rows) {
    // Tiles of a few columns are fewer than a large device's processors, and each would go through all positions. The
    // partial results of more columns would take too much room.
    constexpr std::uint32_t kSpreadColumns = 128, kSpreadPositions = 4096;
    if (range.units && columns > 64)
      return columns <= kSpreadColumns && context > kSpreadPositions ? AttentionMode::kSpreadTiles
                                                                     : AttentionMode::kTiles;
    // The heads of a few columns are fastest if each gets its own workgroup. (With rows as long as latents' rows, a
    // split for each subgroup doesn't fit into a workgroup's memory.) If many heads share a KV head, spreading is
    // faster with 16 columns, and slower with 8. (In a chain it was not tried with matrix units.)
    constexpr std::uint32_t kManyHeads = 7, kColumnsOfMany = 12;
    // With matrix units, one workgroup for a group of heads is faster than several if a large device's processors all
    // have one. (Heads of more than 128 entries were not tried.)
    constexpr std::uint32_t kProcessors = 128;
    if (range.units && columns > kTogetherColumns) {
      const bool busy = columns * unit_attention_groups(shape) >= kProcessors;
      return busy && shape.head_padded() <= 128 ? AttentionMode::kTogether : AttentionMode::kSpread;
    }
    const bool many = !range.units && shape.heads / shape.kv_heads >= kManyHeads;
    if (mapping.attention_together && columns <= (many ? kColumnsOfMany : kTogetherColumns) &&
        shape.value_entries == 0 &&
        lanes_shared_bytes(mapping, shape, AttentionMode::kTogether, 1, kTogetherSubgroups) <=
            mapping.shared_bytes)
      return AttentionMode::kTogether;
    // Many columns keep a GPU busy without spreading, and partial results take room.
    return columns <= 64 ? AttentionMode::kSpread : AttentionMode::kWhole;
  }
  // llvmpipe ends an invocation's loops after 65,535 rounds in total.
  const std::uint64_t rounds =
      std::uint64_t{positions_seen(shape, context)} / mapping.lanes * (shape.head_padded() / 8 + 2);
  return rounds < 50000 ? AttentionMode::kWhole : AttentionMode::kPartial;
}

std::uint32_t attention_splits(const Mapping& mapping, std::uint32_t context) {
  const std::uint32_t least = mapping.attention_split;
  return std::clamp((context + least - 1) / least, 1U, mapping.attention_splits);
}

std::uint32_t partial_splits(const Mapping& mapping, const AttentionShape& shape,
                             std::uint32_t columns, std::uint32_t context) {
  std::uint32_t most = 0;
  for (const AttentionRange& range : attention_ranges(mapping, shape, columns)) {
    const std::uint32_t seen = std::min(positions_seen(shape, context), range.until);
    const std::uint32_t splits =
        range.units ? units_splits(mapping, shape, seen) : attention_splits(mapping, seen);
    const AttentionMode mode = attention_mode(mapping, shape, range, columns, seen);
    switch (mode) {
      case AttentionMode::kWhole:
      case AttentionMode::kTiles:
        break;
      case AttentionMode::kPartial:
        most = std::max(most, mapping.attention_splits);
        break;
      case AttentionMode::kTogether:
        if (seen > together_positions(mapping) &&
            (!range.units || unit_attention(mapping, shape, range, mode, columns).spreads))
          most = std::max(most, splits);
        break;
      case AttentionMode::kSpread:
      case AttentionMode::kSpreadTiles:
        most = std::max(most, splits);
        break;
    }
  }
  return most;
}

AttentionLanesConstants lanes_constants(const Mapping& mapping) {
  AttentionLanesConstants constants;
  constants.lanes = mapping.lanes;
  return constants;
}

AttentionSplitConstants split_constants(const Mapping& mapping, const AttentionShape& shape,
                                        std::uint32_t heads) {
  AttentionSplitConstants constants;
  constants.heads_together = heads;
  constants.out_form =
      shape.plain_out ? static_cast<std::uint32_t>(InputForm::kRows) : form_of(mapping);
  constants.minimum_split = mapping.attention_split;
  constants.by_rows = flag(mapping.rows);
  constants.maximum_splits = mapping.attention_splits;
  return constants;
}

AttentionRulesConstants rules_constants(const AttentionShape& shape) {
  constexpr double kLog2E = 1.4426950408889634;
  AttentionRulesConstants constants;
  constants.window = shape.window;
  constants.soft_cap = std::bit_cast<std::uint32_t>(static_cast<float>(shape.soft_cap * kLog2E));
  constants.sinks = flag(shape.sinks);
  constants.value_entries = shape.value_entries;
  constants.behind = shape.seen_behind();
  return constants;
}

AttentionRangeConstants range_constants(const AttentionRange& range) {
  AttentionRangeConstants constants;
  constants.from = range.from;
  constants.until = range.until;
  return constants;
}

AttentionVariant attention(const Mapping& mapping, const AttentionShape& shape,
                           const AttentionRange& range, AttentionMode mode, std::uint32_t columns,
                           std::uint32_t context, bool near_first) {
  context = std::min(positions_seen(shape, context), range.until);
  if (range.units)
    return units_attention(mapping, shape, range,
                           unit_attention(mapping, shape, range, mode, columns), columns, context,
                           near_first);
  return lanes_variant(mapping, shape, range, lanes_attention(mapping, shape, mode, columns),
                       columns, context, near_first);
}

KernelSpec attention_combine(const Mapping& mapping, const AttentionShape& shape) {
  return {"attention combine", spirv::attention_combine, sizeof(AttentionCombinePush),
          constants_of(lanes_constants(mapping), head_constants(shape),
                       split_constants(mapping, shape, 1), rules_constants(shape)),
          0};
}

KernelSpec soft_cap(const Mapping& mapping) {
  SoftCapConstants constants;
  constants.invocations = mapping.wide_invocations;
  constants.entries = kSoftCapEntries;
  return kernel<SoftCapKernel>(constants);
}

KernelSpec bias_logits(const Mapping& mapping) {
  BiasLogitsConstants constants;
  constants.invocations = mapping.wide_invocations;
  constants.entries = kBiasLogitsEntries;
  return kernel<BiasLogitsKernel>(constants);
}

KernelSpec stream_in(const Mapping& mapping) {
  StreamInConstants constants;
  constants.invocations = mapping.wide_invocations;
  constants.form = form_of(mapping);
  return kernel<StreamInKernel>(constants);
}

namespace {
const char* name_of(SamplePass pass) {
  switch (pass) {
    case SamplePass::kClear:
      return "sample clear";
    case SamplePass::kHistogram:
      return "sample histogram";
    case SamplePass::kLast:
      return "sample last of top-p";
    case SamplePass::kSums:
      return "sample sums";
    case SamplePass::kDraw:
      return "sample";
  }
  return "sample";
}
}  // namespace

KernelSpec greedy(const Mapping& mapping, GreedyPass pass) {
  GreedyConstants constants;
  constants.invocations = mapping.rows ? mapping.lanes : 128;
  constants.second_pass = flag(pass == GreedyPass::kAll);
  constants.chunk = kGreedyChunk;
  constants.adjusted = flag(pass == GreedyPass::kAdjustedChunks);
  KernelSpec spec = kernel<GreedyKernel>(constants);
  switch (pass) {
    case GreedyPass::kChunks:
      spec.name = "greedy chunks";
      break;
    case GreedyPass::kAdjustedChunks:
      spec.name = "adjusted greedy chunks";
      break;
    case GreedyPass::kAll:
      break;
  }
  return spec;
}

KernelSpec edit_logits(const Mapping& mapping, EditPass pass) {
  EditLogitsConstants constants;
  constants.invocations = mapping.rows ? mapping.lanes : 128;
  constants.tells = flag(pass == EditPass::kTells);
  KernelSpec spec = kernel<EditLogitsKernel>(constants);
  if (pass == EditPass::kTells) spec.name = "edited logprobs";
  return spec;
}

std::uint32_t sample_vocabulary(const Mapping& mapping) {
  // llvmpipe ends an invocation's loops after 65,535 rounds in total: with the invocations below, a search among as
  // many chunks as the rows mapping has here takes nearly all of them.
  constexpr std::uint32_t kMostChunks = 512, kMostChunksOfRows = 144;
  return (mapping.rows ? kMostChunksOfRows : kMostChunks) * kGreedyChunk;
}

KernelSpec sample(const Mapping& mapping, SamplePass pass) {
  const bool of_chunks = pass == SamplePass::kHistogram || pass == SamplePass::kSums;
  SamplingConstants constants;
  constants.invocations = mapping.rows ? 64
                          : of_chunks  ? mapping.wide_invocations
                                       : mapping.sorting_invocations;
  constants.chunk = kGreedyChunk;
  return {name_of(pass), spirv::sample(static_cast<std::size_t>(pass)), sizeof(SamplePush),
          constants_of(constants), 0};
}

KernelSpec logprobs(const Mapping& mapping, LogprobPass pass) {
  const bool sums = pass == LogprobPass::kSums;
  SamplingConstants constants;
  constants.invocations = mapping.rows ? 64 : sums ? 128 : mapping.sorting_invocations;
  constants.chunk = kGreedyChunk;
  return {sums ? "logprob sums" : "logprobs", spirv::logprobs(static_cast<std::size_t>(pass)),
          sizeof(SamplePush), constants_of(constants), 0};
}

KernelSpec read_bandwidth() {
  ReadBandwidthConstants constants;
  constants.invocations = kReadBandwidthInvocations;
  return kernel<ReadBandwidthKernel>(constants);
}

KernelSpec chained(KernelSpec spec) {
  const std::span<const spirv::Module> modules = spirv::modules();
  const auto alone = std::ranges::find_if(modules, [&](const spirv::Module& module) {
    return module.words.data() == spec.spirv.data();
  });
  const std::string name = alone != modules.end() ? std::string(alone->name) + "_chained" : "";
  const auto link = std::ranges::find(modules, name, &spirv::Module::name);
  if (link == modules.end()) {
    spec.push_bytes = 0;
    return spec;
  }
  spec.spirv = link->words;
  spec.push_bytes += sizeof(ChainPush);
  return spec;
}

std::uint64_t hash_of(std::span<const spirv::Module> modules) {
  std::uint64_t hash = kFnv1aStart;
  for (const spirv::Module& module : modules) {
    hash = fnv1a(std::as_bytes(std::span(module.name)), hash);
    const std::uint64_t size = module.words.size();
    hash = fnv1a(std::as_bytes(std::span(&size, 1)), hash);
    hash = fnv1a(std::as_bytes(module.words), hash);
  }
  return hash;
}

std::uint64_t code_hash() {
  static const std::uint64_t kHash = hash_of(spirv::modules());
  return kHash;
}

}  // namespace bulkhead::gpu::kernels
