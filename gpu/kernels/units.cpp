#include "gpu/kernels/units.hpp"

#include <algorithm>

#include "gpu/kernels/matvec_single.hpp"
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

UnitTiling unit_tiling(const MatvecShape& shape, std::uint32_t columns, bool in_chain) {
  const WeightType type = unit_type(shape.type);
  const bool halves = type == WeightType::kF16;
  const std::uint32_t segments = unit_segments(shape).count;
  // Two blocks of a subgroup share each x; that must leave subgroups enough, with long rows.
  const bool plenty = segments <= 4 || shape.groups / kStageGroups >= 64;
  UnitTiling tiling;
  tiling.columns = columns;
  tiling.step_groups = halves ? 2 : 4;
  if (columns <= 128) {
    tiling.subgroups = segments >= 4 ? segments : 4 / segments * segments;
    if (columns <= 8) {
      const bool little_to_unpack =
          halves || (type == WeightType::kQ4_0 && segments <= 4) || type == WeightType::kQ8_0;
      tiling.row_blocks = little_to_unpack ? 2 : 1;
      if (in_chain) {
        // The first weights are asked for before the link before is over.
        const bool small = blocks_of(shape) <= 512, bytes = halves || type == WeightType::kQ8_0;
        if (shape.epilogue == Epilogue::kGated && !small) {
          tiling.row_blocks = 2;
          tiling.step_groups = type == WeightType::kQ4_0 ? 4 : 2;
          tiling.ahead = 2;
        } else if (bytes) {
          tiling.ahead = 1;
          if (!halves) tiling.row_blocks = 1;
        } else if (small) {
          tiling.row_blocks = 1;
          if (type == WeightType::kQ4_0 || shape.groups <= 256) tiling.step_groups = 8;
          tiling.ahead = 2;
        }
      }
    } else {
      tiling.column_tiles = 2;
      tiling.row_blocks = plenty && !halves ? 2 : 1;
      if (halves && columns > 16 && segments <= 8) tiling.column_tiles = 4;
    }
  } else {
    tiling.serial = true;
    tiling.row_blocks = 2;
    tiling.column_tiles = 4;
    tiling.step_groups = 2;
    tiling.subgroups = 8;
    if (halves && blocks_of(shape) <= 256) {
      tiling.column_tiles = 2;
      tiling.subgroups = 4;
      tiling.column_subgroups = 2;
      tiling.ahead = 1;
    } else if (halves) {
      tiling.row_blocks = 4;
    }
  }
  return tiling;
}

MatvecVariant unit_product(const MatvecShape& shape, const UnitTiling& tiling) {
  const UnitSegments segments = unit_segments(shape);
  const std::uint32_t in_workgroup = tiling.serial ? 1 : segments.count;
  const std::uint32_t tiles = tiling.row_blocks * tiling.column_tiles;
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
      in_workgroup > 1 ? tiling.subgroups * tiles * 128 : 1,
      static_cast<std::uint32_t>(shape.scaling),
      shape.scaling == Scaling::kHere ? tiling.columns : 1};
  variant.columns_per_workgroup =
      tiling.column_tiles * 8 * (tiling.serial ? tiling.column_subgroups : 1);
  const std::uint32_t row_subgroups =
      tiling.serial ? tiling.subgroups / tiling.column_subgroups : tiling.subgroups / in_workgroup;
  variant.rows_per_workgroup = row_subgroups * tiling.row_blocks * results_of_block(shape);
  return variant;
}

bool single_pays(WeightType type) {
  return unit_type(type) == WeightType::kF16 || type == WeightType::kQ8_0;
}

SingleTiling single_tiling(const MatvecShape& shape) {
  constexpr std::uint32_t kProcessors = 132, kSubgroups = 16;  // of an H200, and for each of them
  const bool halves = unit_type(shape.type) == WeightType::kF16;
  const std::uint32_t segments = unit_segments(shape).count, blocks = blocks_of(shape);
  SingleTiling tiling;
  std::uint32_t subgroups = 8,
                most = 32;  // of a workgroup, about; of all on a processor: the rest in turn
  if (shape.epilogue == Epilogue::kGated) {
    most = halves ? 16 : 24;
    if (!halves) {
      tiling.share = segments;
      subgroups = 4;
    }
  } else if (shape.epilogue != Epilogue::kAdd) {
    // A large matrix is the logits'. Of others as few subgroups for each block as fill the device.
    const bool large = segments <= 2;
    const std::uint32_t parts = std::clamp(kSubgroups * kProcessors / blocks, 1U, segments);
    tiling.share = !large ? (segments + parts - 1) / parts : halves ? 1 : segments;
  }
  const std::uint32_t parts = (segments + tiling.share - 1) / tiling.share;
  tiling.places = std::max(subgroups / parts, 1U);
  // With halves loads are long, and more registers cost more than earlier loads gain.
  tiling.ahead = !halves && shape.epilogue != Epilogue::kAdd ? 1 : 0;
  tiling.workgroups = kProcessors * std::max(most / (parts * tiling.places), 1U);
  return tiling;
}

MatvecVariant single_product(const MatvecShape& shape, const SingleTiling& tiling) {
  const UnitSegments segments = unit_segments(shape);
  const std::uint32_t parts = (segments.count + tiling.share - 1) / tiling.share;
  const std::uint32_t subgroups = parts * tiling.places;
  MatvecVariant variant;
  variant.spec.name = name_of(shape.type);
  variant.spec.spirv = spirv::matvec_single;
  variant.spec.push_bytes = sizeof(SinglePush);
  variant.spec.required_subgroup_size = kLanes;
  variant.spec.constants = {
      static_cast<std::uint32_t>(unit_type(shape.type)),
      1,
      1,
      kLanes,
      static_cast<std::uint32_t>(shape.epilogue),
      static_cast<std::uint32_t>(shape.permuted_out ? InputForm::kUnits : InputForm::kRows),
      subgroups,
      subgroups * kLanes,
      segments.count,
      segments.stages,
      tiling.step_groups,
      tiling.ahead,
      static_cast<std::uint32_t>(shape.scaling),
      shape.groups * 4,
      tiling.share,
      parts};
  variant.rows_per_workgroup = tiling.places * results_of_block(shape);
  variant.most_workgroups = tiling.workgroups;
  return variant;
}

}  // namespace bulkhead::gpu::kernels
