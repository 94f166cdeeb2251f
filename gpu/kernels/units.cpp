#include "gpu/kernels/units.hpp"

#include <algorithm>

#include "gpu/kernels/matvec_units.hpp"

namespace bulkhead::gpu::kernels {
namespace {

constexpr std::uint32_t kLanes = 32;
constexpr std::uint32_t kStageGroups = kUnitStageWeights / kGroupWeights;

// A block has two matrix rows for each result of a gate and an up.
std::uint32_t results_of_block(const MatvecShape& shape) {
  return shape.epilogue == Epilogue::kGated ? kUnitBlockRows / 2 : kUnitBlockRows;
}

std::uint32_t blocks_of(const MatvecShape& shape) {
  return (shape.rows + results_of_block(shape) - 1) / results_of_block(shape);
}

const char* name_of(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return "units Q4_0";
    case WeightType::kQ4_1:
      return "units Q4_1";
    case WeightType::kQ5_0:
      return "units Q5_0";
    case WeightType::kQ5_1:
      return "units Q5_1";
    case WeightType::kQ8_0:
      return "units Q8_0";
    case WeightType::kQ4_K:
      return "units Q4_K";
    case WeightType::kQ5_K:
      return "units Q5_K";
    case WeightType::kQ6_K:
      return "units Q6_K";
    case WeightType::kIQ4_NL:
      return "units IQ4_NL";
    default:
      return "units F16";
  }
}

// A float of each entry of a tile.
std::uint32_t shared_floats(const UnitSegments& segments, const UnitTiling& tiling) {
  if (tiling.serial || segments.count == 1) return 0;
  return tiling.subgroups * tiling.row_blocks * tiling.column_tiles * kUnitBlockRows * 8;
}

}  // namespace

UnitSegments unit_segments(const MatvecShape& shape) {
  // As many subgroups as it takes to have enough loads in flight with one column.
  constexpr std::uint32_t kEnoughSubgroups = 8192;
  const std::uint32_t stages = std::max(shape.groups / kStageGroups, 1U);
  const std::uint32_t blocks = blocks_of(shape);
  const std::uint32_t wanted =
      std::clamp((kEnoughSubgroups + blocks - 1) / blocks, 2U, kMostSegments);
  UnitSegments segments;
  segments.stages = (stages + wanted - 1) / wanted;
  // A header serves two stages.
  if (unit_type_is_super(shape.type)) segments.stages = (segments.stages + 1) / 2 * 2;
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
  variant.spec.name = name_of(shape.type);
  variant.spec.spirv = spirv::matvec_units;
  variant.spec.push_bytes = sizeof(MatvecPush);
  variant.spec.required_subgroup_size = kLanes;
  variant.spec.constants = {
      static_cast<std::uint32_t>(unit_type(shape.type)),
      tiling.columns,
      tiling.row_blocks,
      kLanes,
      static_cast<std::uint32_t>(shape.epilogue),
      static_cast<std::uint32_t>(shape.permuted_out ? InputForm::kUnits : InputForm::kRows),
      tiling.column_tiles,
      tiling.subgroups,
      tiling.subgroups * kLanes,
      segments.count,
      segments.stages,
      tiling.step_groups,
      tiling.serial ? 1U : 0U,
      tiling.column_subgroups,
      tiling.ahead,
      std::max(shared_floats(segments, tiling), 1U),
      static_cast<std::uint32_t>(shape.scaling),
      shape.scaling == Scaling::kHere ? tiling.columns : 1};
  variant.columns_per_workgroup =
      tiling.column_tiles * 8 * (tiling.serial ? tiling.column_subgroups : 1);
  const std::uint32_t row_subgroups =
      tiling.serial ? tiling.subgroups / tiling.column_subgroups : tiling.subgroups / in_workgroup;
  variant.rows_per_workgroup = row_subgroups * tiling.row_blocks * results_of_block(shape);
  return variant;
}

}  // namespace bulkhead::gpu::kernels
