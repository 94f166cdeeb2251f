#include "gpu/kernels/experts.hpp"

#include <algorithm>
#include <bit>

#include "gpu/kernels/choose.hpp"
#include "gpu/kernels/constants.hpp"
#include "gpu/kernels/matvec.hpp"
#include "gpu/kernels/matvec_lanes_experts.hpp"
#include "gpu/kernels/matvec_rows_experts.hpp"
#include "gpu/kernels/matvec_units_experts.hpp"
#include "gpu/kernels/mix.hpp"
#include "gpu/kernels/route.hpp"
#include "gpu/kernels/units.hpp"

namespace bulkhead::gpu::kernels {
namespace {

// Returns how many columns of a step choose an expert if all experts are chosen equally often.
std::uint32_t columns_of_expert(const RouterShape& router, std::uint32_t columns) {
  return (columns * router.used + router.experts - 1) / router.experts;
}

bool chooses_by_scores(const RouterShape& router) {
  return router.sigmoid || router.biased_choice || router.groups > 1;
}

// Matrix units: a tile with this many columns is a wide one, in which a subgroup has two blocks of rows.
constexpr std::uint32_t kWideTile = 32;

// Shares of an expert's product in which one subgroup computes all segments of a row.
UnitTiling serial_tiling(const MatvecShape& shape, std::uint32_t tile_columns) {
  UnitTiling tiling;
  tiling.serial = true;
  if (tile_columns >= kWideTile) {
    tiling.row_blocks = 2;
    tiling.step_groups = 2;
  } else if (shape.epilogue == Epilogue::kGated) {
    tiling.subgroups = 8;
    tiling.step_groups = tile_columns <= 8 && unit_segments(shape).stages % 2 == 0 ? 8 : 4;
  } else {
    tiling.row_blocks = 2;
  }
  return tiling;
}

bool has_short_rows(const MatvecShape& shape) {
  constexpr std::uint32_t kShortRow = 1024;  // weights
  return shape.groups * kGroupWeights <= kShortRow;
}

// Returns whether one subgroup computes a whole row. A step of several columns has more tiles than a device computes at
// once. Then one subgroup for each row keeps more loads in flight than several subgroups that wait for each other. On
// an H200 and an H100 that made gates and ups faster, but other products of experts only if their rows are short
// (bench/history/kernels.md).
bool is_serial(const MatvecShape& shape, const RouterShape& router, std::uint32_t columns,
               std::uint32_t tile_columns) {
  if (tile_columns >= kWideTile) return true;
  if (columns == 1) return false;
  return shape.epilogue == Epilogue::kGated ||
         (router.used < router.experts && has_short_rows(shape));
}

constexpr std::uint32_t kMostSubgroups = 16;  // of a workgroup

// In a step of one column, the most registers of a lane that hold weights. If a lane held more, fewer subgroups would
// fit on a processor.
constexpr std::uint32_t kMostWeightWords = 96;

// Returns the registers that a lane needs for a stage of a block's weights.
std::uint32_t stage_words(const MatvecShape& shape) {
  constexpr std::uint32_t kLaneBytes = 32 * 4, kScaleWords = 4;
  const UnitForm& form = row_of(shape.type).units;
  const std::uint32_t scales = form.quants == UnitQuants::kHalves ? 0 : form.minima ? 2 : 1;
  return (unit_quant_bytes(form) + unit_high_bytes(form)) / kLaneBytes + scales * kScaleWords;
}

// Returns how many shares a subgroup of expert_sum.glsl computes.
std::uint32_t shares_of_subgroup(const MatvecShape& shape, const RouterShape& router) {
  return (router.used * unit_segments(shape).count + kMostSubgroups - 1) / kMostSubgroups;
}

// Returns how many row blocks each workgroup must compute so that an H200, which has 132 processors, computes all
// workgroups at once.
std::uint32_t blocks_at_once(const MatvecShape& shape) {
  constexpr std::uint32_t kAtOnce = 128;
  return (unit_blocks(shape) * shape.together + kAtOnce - 1) / kAtOnce;
}

// Returns whether one_column_tiling() is the best choice for this product. It made longer products (of gpt-oss and
// DeepSeek) slower.
bool fits_at_once(const MatvecShape& shape) {
  constexpr std::uint32_t kMostBlocks = 6;
  return shape.epilogue == Epilogue::kGated && blocks_at_once(shape) <= kMostBlocks;
}

// Makes workgroups for a single column's gates and ups. They are so large that a device computes all of them at once.
// Each further workgroup would make the link longer, because it chooses experts, waits, and counts itself as done. If a
// device had no room for some workgroups, these would start only when others end.
UnitTiling one_column_tiling(const MatvecShape& shape) {
  constexpr std::uint32_t kMostSums = 64;  // tiles of sums in shared memory, 512 bytes each
  const std::uint32_t segments = unit_segments(shape).count, blocks = blocks_at_once(shape);
  const std::uint32_t sets = std::clamp(kMostSubgroups / segments, 1U, blocks);
  UnitTiling tiling;
  tiling.subgroups = sets * segments;
  const std::uint32_t most =
      std::min(kMostWeightWords / stage_words(shape), kMostSums / tiling.subgroups);
  tiling.row_blocks = std::clamp((blocks + sets - 1) / sets, 1U, std::max(most, 1U));
  return tiling;
}

// Shares a single column's product that is too long for one_column_tiling(): each subgroup computes two blocks of rows
// in steps of two groups. With this kernel one stream of gpt-oss made 611 tokens/s instead of 582, and one stream of
// DeepSeek-V2-Lite 334 instead of 322.
UnitTiling long_column_tiling(const MatvecShape& shape) {
  const std::uint32_t segments = unit_segments(shape).count;
  UnitTiling tiling;
  tiling.subgroups = segments * std::clamp(kMostSubgroups / segments, 1U, 2U);
  tiling.row_blocks = 2;
  tiling.step_groups = 2;
  return tiling;
}

UnitTiling tiling_of(const MatvecShape& shape, const RouterShape& router, std::uint32_t columns,
                     std::uint32_t tile_columns) {
  UnitTiling tiling;
  const bool single = columns == 1 && router.used < router.experts;
  if (single && fits_at_once(shape)) {
    tiling = one_column_tiling(shape);
  } else if (single && !has_short_rows(shape)) {
    tiling = long_column_tiling(shape);
  } else if (is_serial(shape, router, columns, tile_columns)) {
    tiling = serial_tiling(shape, tile_columns);
  } else {
    const UnitSegments segments = unit_segments(shape);
    tiling.subgroups = segments.count >= 4 ? segments.count : 4 / segments.count * segments.count;
    tiling.step_groups = tile_columns == 8 && segments.stages % 2 == 0 ? 8 : 4;
  }
  tiling.columns = std::min(columns, tile_columns);
  tiling.column_tiles = tile_columns / 8;
  return tiling;
}

}  // namespace

RouteLayout route_layout(const RouterShape& router, std::uint32_t columns) {
  const std::uint64_t pairs = std::uint64_t{columns} * router.used;
  RouteLayout layout;
  layout.list = 16 + pairs * 16;
  layout.chosen = layout.list + pairs * 4;
  layout.weights = layout.chosen + pairs * 4;
  layout.logits = layout.weights + std::uint64_t{columns} * router.weights() * 4;
  layout.bytes = layout.logits + std::uint64_t{columns} * router.rows() * 4;
  return layout;
}

std::uint32_t route_words(const RouterShape& router) {
  return static_cast<std::uint32_t>((route_layout(router, 1).bytes + 15) / 16 * 4);
}

RouteVariant route(const Mapping& mapping, const RouterShape& router, std::uint32_t columns) {
  constexpr std::uint32_t kFewColumns = 16, kSomeColumns = 64;
  RouteConstants constants;
  constants.lanes = mapping.lanes;
  constants.subgroups = mapping.rows ? 1 : 4;
  if (columns > kSomeColumns || (mapping.rows && columns > kFewColumns)) {
    constants.columns = 4;
  } else if (columns > kFewColumns) {
    constants.subgroups = 8;
    constants.columns = 2;
    constants.many_batch = 4;
  }
  constants.norms = router.norms ? 1 : 0;
  constants.invocations = constants.lanes * constants.subgroups;
  return {{"route", spirv::route, sizeof(RoutePush), constants_of(constants),
           mapping.required_subgroup},
          constants.columns,
          constants.subgroups};
}

bool chooses_at_once(const Mapping& mapping, std::uint32_t columns) {
  // llvmpipe ends an invocation's loops after 65,535 rounds in total.
  return mapping.attention_together && columns <= kTogetherSubgroups;
}

ChooseVariant choose(const Mapping& mapping, const RouterShape& router, ChoosePart part,
                     std::uint32_t columns, std::uint32_t tile_columns) {
  const std::uint32_t most = mapping.attention_together ? kTogetherSubgroups : 1;
  ChooseConstants constants;
  constants.lanes = mapping.lanes;
  switch (part) {
    case ChoosePart::kBoth:
      constants.subgroups = std::min(std::bit_ceil(columns), most);
      break;
    case ChoosePart::kSort:
      constants.subgroups = most;
      break;
    case ChoosePart::kOneColumn:  // an invocation for each expert
      constants.subgroups = std::min((router.experts + mapping.lanes - 1) / mapping.lanes, most);
      break;
    case ChoosePart::kChoose:
      constants.subgroups = 1;
      break;
  }
  constants.invocations = constants.lanes * constants.subgroups;
  constants.part = static_cast<std::uint32_t>(part);
  constants.experts = router.experts;
  constants.used = router.used;
  constants.shared_gate = router.shared_gate ? 1 : 0;
  constants.renormalise = router.renormalise ? 1 : 0;
  constants.sigmoid = router.sigmoid ? 1 : 0;
  constants.by_scores = chooses_by_scores(router) ? 1 : 0;
  constants.groups = router.groups;
  constants.groups_used = router.groups_used;
  constants.tile_columns = tile_columns;
  return {{"choose experts", spirv::choose, sizeof(ChoosePush), constants_of(constants),
           mapping.required_subgroup},
          part == ChoosePart::kChoose ? columns : 1};
}

std::uint32_t expert_tile(const Mapping& mapping, const RouterShape& router,
                          std::uint32_t columns) {
  const std::uint32_t own = columns_of_expert(router, columns);
  if (mapping.units) return own <= 4 ? 8 : own <= 12 ? 16 : kWideTile;
  return std::min(std::bit_ceil(std::min(2 * own - 1, columns)), mapping.most_columns);
}

std::uint32_t most_tiles(const RouterShape& router, std::uint32_t columns,
                         std::uint32_t tile_columns) {
  const std::uint32_t pairs = columns * router.used;
  return std::min(pairs, std::min(router.experts, pairs) + pairs / tile_columns);
}

MatvecVariant expert_product(const Mapping& mapping, const MatvecShape& shape,
                             const RouterShape& router, std::uint32_t share,
                             std::uint32_t columns) {
  const std::uint32_t tile = expert_tile(mapping, router, columns);
  MatvecVariant variant;
  if (mapping.units) {
    variant = unit_product(shape, tiling_of(shape, router, columns, tile));
    variant.spec.spirv = spirv::matvec_units_experts;
  } else if (mapping.rows) {
    variant = rows_product(mapping, shape, rows_tiling(mapping, shape, tile));
    variant.spec.spirv = spirv::matvec_rows_experts(tensor_place(shape.type));
  } else {
    variant = lanes_product(mapping, shape, lanes_tiling(mapping, shape, tile));
    variant.spec.spirv = spirv::matvec_lanes_experts;
  }
  variant.spec.push_bytes = sizeof(ExpertPush);
  ExpertConstants constants;
  constants.share = share;
  write_constants(variant.spec, constants);
  return variant;
}

bool sums_experts(const Mapping& mapping, const MatvecShape& shape, const RouterShape& router,
                  std::uint32_t columns) {
  if (!mapping.units || columns != 1 || !has_short_rows(shape)) return false;
  const UnitSegments segments = unit_segments(shape);
  const std::uint32_t stages = shape.groups * kGroupWeights / kUnitStageWeights;
  return segments.count * segments.stages == stages &&
         shares_of_subgroup(shape, router) * segments.stages * stage_words(shape) <=
             kMostWeightWords;
}

MatvecVariant expert_sum(const MatvecShape& shape, const RouterShape& router, float scale,
                         ChoosesHere chooses) {
  const UnitSegments segments = unit_segments(shape);
  const std::uint32_t shares = router.used * segments.count;
  const std::uint32_t own = shares_of_subgroup(shape, router);
  UnitTiling tiling;
  tiling.columns = 1;
  tiling.subgroups = (shares + own - 1) / own;
  tiling.step_groups = own * segments.stages * (kUnitStageWeights / kGroupWeights);
  MatvecVariant variant = unit_product(shape, tiling);
  variant.spec.spirv = spirv::matvec_units_experts;
  variant.spec.push_bytes = sizeof(ExpertPush);
  auto units = read_constants<MatvecUnitsConstants>(variant.spec);
  units.partial_floats = 1;
  write_constants(variant.spec, units);
  write_constants(variant.spec, ExpertConstants{});
  ExpertSumConstants constants;
  constants.sums_experts = 1;
  constants.sum_floats = (shares + router.used) * kUnitBlockRows;
  write_constants(variant.spec, constants);
  variant.rows_per_workgroup = kUnitBlockRows;
  choose_in_product(variant, router, scale, chooses);
  return variant;
}

bool chooses_in_products(const Mapping& mapping, const RouterShape& router, bool expert_scales,
                         std::uint32_t columns) {
  return mapping.units && columns == 1 && router.renormalise && !chooses_by_scores(router) &&
         !expert_scales;
}

void choose_in_product(MatvecVariant& variant, const RouterShape& router, float scale,
                       ChoosesHere chooses) {
  const RouteLayout layout = route_layout(router, 1);
  ChoosingConstants constants;
  constants.chooses = static_cast<std::uint32_t>(chooses);
  constants.experts = router.experts;
  constants.used = router.used;
  constants.shared_gate = router.shared_gate ? 1 : 0;
  constants.weight_scale = std::bit_cast<std::uint32_t>(scale);
  constants.weights_at = static_cast<std::uint32_t>(layout.weights - layout.tiles);
  constants.logits_at = static_cast<std::uint32_t>(layout.logits - layout.tiles);
  write_constants(variant.spec, constants);
}

SliceProduct slice_product(const Mapping& mapping, const MatvecShape& shape, std::uint32_t slices,
                           std::uint32_t columns) {
  RouterShape all;
  all.experts = all.used = slices;
  SliceProduct made{expert_product(mapping, shape, all, 1, columns)};
  auto constants = read_constants<ExpertConstants>(made.variant.spec);
  constants.slices = slices;
  constants.slice_columns = made.variant.columns_per_workgroup;
  write_constants(made.variant.spec, constants);
  const std::uint32_t tile = made.variant.columns_per_workgroup;
  made.workgroups = slices * ((columns + tile - 1) / tile);
  return made;
}

MixVariant mix(const Mapping& mapping, const RouterShape& router, bool adds) {
  MixConstants constants;
  constants.invocations = mapping.wide_invocations;
  constants.used = router.used;
  constants.shared_gate = router.shared_gate ? 1 : 0;
  constants.adds = adds ? 1 : 0;
  constants.form = static_cast<std::uint32_t>(mapping.input_form());
  return {{"mix experts", spirv::mix, sizeof(MixPush), constants_of(constants), 0},
          constants.invocations};
}

}  // namespace bulkhead::gpu::kernels
