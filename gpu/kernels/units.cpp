#include "gpu/kernels/units.hpp"

#include <algorithm>

#include "gpu/kernels/matvec.hpp"
#include "gpu/kernels/matvec_units.hpp"

namespace bulkhead::gpu::kernels {
namespace {

constexpr std::uint32_t kLanes = 32;
constexpr std::uint32_t kStageGroups = kUnitStageWeights / kGroupWeights;

constexpr const char* kNames[] = {
#define BULKHEAD_TYPE(NAME) "units " #NAME,
    BULKHEAD_TENSOR_TYPES(BULKHEAD_TYPE)
#undef BULKHEAD_TYPE
};

std::uint32_t piece_tiles(const UnitTiling& tiling) {
  return tiling.piece_tiles != 0 ? tiling.piece_tiles : tiling.row_blocks * tiling.column_tiles;
}

// A float of each entry of a tile of a piece.
std::uint32_t shared_floats(const UnitSegments& segments, const UnitTiling& tiling) {
  if (tiling.serial || segments.count == 1) return 0;
  return tiling.subgroups * piece_tiles(tiling) * kUnitBlockRows * 8;
}

}  // namespace

// A block has two matrix rows for each result of a gate and an up.
std::uint32_t unit_block_results(const MatvecShape& shape) {
  return shape.epilogue == Epilogue::kGated ? kUnitBlockRows / 2 : kUnitBlockRows;
}

std::uint32_t unit_blocks(const MatvecShape& shape) {
  return (shape.rows + unit_block_results(shape) - 1) / unit_block_results(shape);
}

UnitConstants unit_constants(TensorType type) {
  const TensorRow& row = row_of(type);
  UnitConstants constants;
  constants.quants = static_cast<std::uint32_t>(row.units.quants);
  constants.high_bits = row.units.high_bits;
  constants.scales = static_cast<std::uint32_t>(row.units.scales);
  constants.minima = row.units.minima ? 1 : 0;
  constants.bias = row.units.bias;
  constants.codebook_0 = row.codebook_word(0);
  constants.codebook_1 = row.codebook_word(1);
  constants.codebook_2 = row.codebook_word(2);
  constants.codebook_3 = row.codebook_word(3);
  return constants;
}

UnitSegments unit_segments(const MatvecShape& shape) {
  // As many subgroups as are needed to have enough loads in flight with one column.
  constexpr std::uint32_t kEnoughSubgroups = 8192;
  const std::uint32_t stages = std::max(shape.groups / kStageGroups, 1U);
  const std::uint32_t blocks = unit_blocks(shape) * shape.together;
  const std::uint32_t wanted =
      std::clamp((kEnoughSubgroups + blocks - 1) / blocks, 2U, kMostSegments);
  UnitSegments segments;
  segments.stages = (stages + wanted - 1) / wanted;
  // A header serves two stages.
  if (unit_stages_in_pairs(row_of(shape.type).units))
    segments.stages = (segments.stages + 1) / 2 * 2;
  segments.count = (stages + segments.stages - 1) / segments.stages;
  return segments;
}

bool unit_sums_fit(const MatvecShape& shape, const UnitTiling& tiling) {
  constexpr std::uint32_t kSharedBytes = 48 * 1024;
  return shared_floats(unit_segments(shape), tiling) * sizeof(float) <= kSharedBytes;
}

MatvecVariant unit_product(const MatvecShape& shape, const UnitTiling& tiling) {
  const UnitSegments segments = unit_segments(shape);
  const std::uint32_t in_workgroup = tiling.serial ? 1 : segments.count;
  MatvecVariant variant;
  variant.spec.name = kNames[tensor_place(shape.type)];
  variant.spec.spirv = spirv::matvec_units;
  variant.spec.push_bytes = sizeof(MatvecPush);
  variant.spec.required_subgroup_size = kLanes;
  MatvecConstants product;
  product.columns = std::min(tiling.columns, 8U);  // the kernel checks whether a tile is full
  product.rows = tiling.row_blocks;
  product.epilogue = static_cast<std::uint32_t>(shape.epilogue);
  product.gate = static_cast<std::uint32_t>(shape.gate);
  product.out_form =
      static_cast<std::uint32_t>(shape.permuted_out ? InputForm::kUnits : InputForm::kRows);
  MatvecUnitsConstants units;
  units.lanes = kLanes;
  units.column_tiles = tiling.column_tiles;
  units.subgroups = tiling.subgroups;
  units.invocations = tiling.subgroups * kLanes;
  units.segments = segments.count;
  units.segment_stages = segments.stages;
  units.step_groups = tiling.step_groups;
  units.serial = tiling.serial ? 1U : 0U;
  units.column_subgroups = tiling.column_subgroups;
  units.ahead = tiling.ahead;
  units.partial_floats = std::max(shared_floats(segments, tiling), 1U);
  units.scaling = static_cast<std::uint32_t>(shape.scaling);
  units.piece_tiles = piece_tiles(tiling);
  units.local_totals = tiling.serial && tiling.local_totals ? 1 : 0;
  units.norm_columns = shape.scaling == Scaling::kHere ? tiling.columns : 1;
  variant.spec.constants =
      constants_of(unit_constants(shape.type), product, units, bias_constants(shape));
  variant.columns_per_workgroup =
      tiling.column_tiles * 8 * (tiling.serial ? tiling.column_subgroups : 1);
  const std::uint32_t row_subgroups =
      tiling.serial ? tiling.subgroups / tiling.column_subgroups : tiling.subgroups / in_workgroup;
  variant.rows_per_workgroup = row_subgroups * tiling.row_blocks * unit_block_results(shape);
  return variant;
}

}  // namespace bulkhead::gpu::kernels
