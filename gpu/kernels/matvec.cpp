#include "gpu/kernels/matvec.hpp"

#include <algorithm>
#include <bit>

#include "gpu/kernels/embed.hpp"
#include "gpu/kernels/embed_units.hpp"
#include "gpu/kernels/matvec_lanes.hpp"
#include "gpu/kernels/matvec_rows.hpp"
#include "gpu/kernels/units.hpp"

namespace bulkhead::gpu::kernels {
namespace {

constexpr const char* kNames[] = {
#define BULKHEAD_TYPE(NAME) "matvec " #NAME,
    BULKHEAD_TENSOR_TYPES(BULKHEAD_TYPE)
#undef BULKHEAD_TYPE
};

// Columns of a workgroup: a power of two.
std::uint32_t tile_of(const Mapping& mapping, std::uint32_t columns) {
  return std::min(std::bit_ceil(columns), mapping.most_columns);
}

MatvecVariant product(const MatvecShape& shape) {
  MatvecVariant variant;
  variant.spec.name = kNames[tensor_place(shape.type)];
  variant.spec.push_bytes = sizeof(MatvecPush);
  return variant;
}

}  // namespace

WeightConstants weight_constants(TensorType type) {
  const TensorRow& row = row_of(type);
  WeightConstants constants;
  constants.type = static_cast<std::uint32_t>(tensor_place(type));
  constants.planes = row.planes.quants;
  constants.high_bytes = row.planes.high;
  constants.scale_bytes = row.planes.scales;
  constants.super_bytes = row.planes.supers;
  constants.codebook_0 = row.codebook_word(0);
  constants.codebook_1 = row.codebook_word(1);
  constants.codebook_2 = row.codebook_word(2);
  constants.codebook_3 = row.codebook_word(3);
  return constants;
}

BiasConstants bias_constants(const MatvecShape& shape) {
  BiasConstants constants;
  constants.biased = shape.biased ? 1 : 0;
  return constants;
}

RowsTiling rows_tiling(const Mapping& mapping, const MatvecShape& shape, std::uint32_t columns) {
  // Four row blocks share each part of x, whose loads take the CPU's driver loops over the lanes. (A gate and its
  // up are two.) With eight, products hardly get faster, and compiling takes a quarter longer.
  const bool gated = shape.epilogue == Epilogue::kGated;
  const std::uint32_t blocks = shape.rows < 256 ? 1 : gated ? 2 : 4;
  return {tile_of(mapping, columns), blocks};
}

MatvecVariant rows_product(const Mapping& mapping, const MatvecShape& shape,
                           const RowsTiling& tiling) {
  MatvecVariant variant = product(shape);
  variant.spec.spirv = spirv::matvec_rows(tensor_place(shape.type));
  MatvecConstants constants;
  constants.columns = tiling.columns;
  constants.rows = tiling.row_blocks;
  constants.epilogue = static_cast<std::uint32_t>(shape.epilogue);
  constants.gate = static_cast<std::uint32_t>(shape.gate);
  MatvecRowsConstants rows;
  rows.lanes = mapping.lanes;
  variant.spec.constants =
      constants_of(weight_constants(shape.type), constants, rows, bias_constants(shape));
  variant.columns_per_workgroup = tiling.columns;
  variant.rows_per_workgroup = mapping.lanes * tiling.row_blocks;
  return variant;
}

std::uint32_t lanes_split(const Mapping& mapping, const MatvecShape& shape) {
  // Long rows of small matrices are split over subgroups, so that enough loads are in flight. Only the shape decides,
  // because the split affects the order of additions.
  const std::uint32_t rounds = (shape.groups + mapping.lanes - 1) / mapping.lanes;
  return shape.rows > 8192                   ? 1
         : rounds >= 8                       ? 4
         : rounds >= 4                       ? 2
         : rounds >= 2 && shape.rows <= 4096 ? 2
                                             : 1;
}

LanesTiling lanes_tiling(const Mapping& mapping, const MatvecShape& shape, std::uint32_t columns) {
  const bool few_bits = row_of(shape.type).planes.quants <= 1;
  const bool gated = shape.epilogue == Epilogue::kGated;
  LanesTiling tiling;
  tiling.columns = tile_of(mapping, columns);
  tiling.split = lanes_split(mapping, shape);
  // The rows that share each x. With one column, x costs little compared with the weights, and more subgroups hide
  // more waiting. Eight columns times four rows are as many sums as registers can hold without spilling (bench-matvec
  // tries all).
  tiling.rows = tiling.columns >= 8                                      ? 4
                : tiling.columns == 1 && shape.rows <= 4096 && !few_bits ? 1
                                                                         : 2;
  if (gated && (tiling.columns > 1 || few_bits)) tiling.rows = std::max(tiling.rows / 2, 1U);
  tiling.subgroups = columns > 8 && few_bits ? 8 : 4;
  // Two rows that rotate together are finished together.
  if (shape.epilogue == Epilogue::kQkv && tiling.subgroups / tiling.split * tiling.rows % 2 != 0)
    tiling.rows = 2;
  return tiling;
}

MatvecVariant lanes_product(const Mapping& mapping, const MatvecShape& shape,
                            const LanesTiling& tiling) {
  MatvecVariant variant = product(shape);
  variant.spec.spirv = spirv::matvec_lanes;
  variant.spec.required_subgroup_size = mapping.required_subgroup;
  MatvecConstants constants;
  constants.columns = tiling.columns;
  constants.rows = tiling.rows;
  constants.epilogue = static_cast<std::uint32_t>(shape.epilogue);
  constants.gate = static_cast<std::uint32_t>(shape.gate);
  constants.out_form =
      static_cast<std::uint32_t>(shape.permuted_out ? InputForm::kLanes : InputForm::kRows);
  MatvecLanesConstants lanes;
  lanes.lanes = mapping.lanes;
  lanes.split = tiling.split;
  lanes.subgroups = tiling.subgroups;
  lanes.invocations = mapping.lanes * tiling.subgroups;
  lanes.scaling = static_cast<std::uint32_t>(shape.scaling);
  variant.spec.constants =
      constants_of(weight_constants(shape.type), constants, lanes, bias_constants(shape));
  variant.columns_per_workgroup = tiling.columns;
  variant.rows_per_workgroup = tiling.subgroups / tiling.split * tiling.rows;
  return variant;
}

MatvecVariant matvec(const Mapping& mapping, const MatvecShape& shape, std::uint32_t columns,
                     bool in_chain) {
  if (mapping.units) return unit_product(shape, unit_tiling(shape, columns, in_chain));
  if (mapping.rows) return rows_product(mapping, shape, rows_tiling(mapping, shape, columns));
  return lanes_product(mapping, shape, lanes_tiling(mapping, shape, columns));
}

KernelSpec embed(const Mapping& mapping, TensorType type, const WeightLayout& layout) {
  EmbedConstants constants;
  constants.form = static_cast<std::uint32_t>(mapping.input_form());
  constants.invocations = mapping.rows    ? mapping.lanes
                          : mapping.units ? mapping.wide_invocations
                                          : 128;
  if (layout.block_bytes != 0) {
    return {"embed", spirv::embed_units, sizeof(EmbedPush),
            constants_of(unit_constants(type), constants), mapping.lanes};
  }
  return {"embed", spirv::embed, sizeof(EmbedPush), constants_of(weight_constants(type), constants),
          0};
}

}  // namespace bulkhead::gpu::kernels
