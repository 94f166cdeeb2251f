#include "bench/matvec_variants.hpp"

#include <algorithm>
#include <utility>

#include "gpu/kernels/matvec.hpp"
#include "gpu/kernels/units.hpp"

namespace bulkhead::bench {

namespace k = gpu::kernels;

namespace {

// Returns tilings of a step of many columns in which neighbouring subgroups compute a row's segments and add them by
// pieces.
std::vector<k::UnitTiling> pieces(const k::MatvecShape& shape, std::uint32_t columns) {
  constexpr std::uint32_t kTiles[][2] = {{1, 4}, {1, 8}, {2, 2}, {2, 4}, {2, 8}, {4, 2}, {4, 4}};
  const std::uint32_t segments = k::unit_segments(shape).count;
  std::vector<k::UnitTiling> list;
  for (const auto& [blocks, tiles] : kTiles) {
    if (tiles * 8 > std::max(columns, 8U)) continue;
    for (const std::uint32_t step : {1U, 2U}) {
      for (std::uint32_t sets = 1; sets * segments <= 16; sets *= 2) {
        for (const std::uint32_t piece : {2U, 4U, 8U}) {
          for (const std::uint32_t ahead : {0U, 1U}) {
            const k::UnitTiling tiling{columns, blocks, tiles, segments * sets, step,
                                       false,   1,      ahead, false,           piece};
            if (piece < blocks * tiles && k::unit_sums_fit(shape, tiling)) list.push_back(tiling);
          }
        }
      }
    }
  }
  return list;
}

}  // namespace

std::vector<ProductVariant> lanes_variants(const k::Mapping& mapping, const k::MatvecShape& shape,
                                           std::uint32_t columns, bool all_splits,
                                           std::uint32_t most_groups) {
  const gpu::KernelSpec standard = k::matvec(mapping, shape, columns).spec;
  const bool gated = shape.epilogue == k::Epilogue::kGated;
  const std::uint32_t own = k::lanes_split(mapping, shape);
  const std::vector<std::uint32_t> splits =
      all_splits ? std::vector<std::uint32_t>{1, 2, 4, 8} : std::vector<std::uint32_t>{own};
  std::vector<ProductVariant> list;
  const auto add = [&](std::uint32_t tile, std::uint32_t rows, std::uint32_t subgroups,
                       std::uint32_t split) {
    const std::uint32_t matrix_rows = gated ? 2 * rows : rows;
    const std::uint32_t quads = matrix_rows * k::row_of(shape.type).planes.quants;
    if (subgroups < split || matrix_rows * tile > 64 || quads > 32) return;
    if (shape.rows > std::uint64_t{subgroups / split * rows} * most_groups) return;
    const k::MatvecVariant made = k::lanes_product(mapping, shape, {tile, rows, subgroups, split});
    ProductVariant variant{
        made.spec, made.columns_per_workgroup, made.rows_per_workgroup, {}, false, 0, 0, {}};
    variant.label = std::to_string(tile) + "/r" + std::to_string(rows) + "/s" +
                    std::to_string(subgroups) + "/k" + std::to_string(split);
    variant.standard = made.spec.constants == standard.constants;
    list.push_back(std::move(variant));
  };
  const std::uint32_t tile = std::min(columns, 16U);
  for (const std::uint32_t t : {tile, tile / 2}) {
    if (t == 0 || (t != tile && t < 8)) continue;
    for (const std::uint32_t rows : {1U, 2U, 4U, 8U}) {
      for (const std::uint32_t subgroups : {4U, 8U, 16U}) {
        if (tile < 8 && subgroups == 16 && !all_splits && own < 4) continue;
        for (const std::uint32_t split : splits)
          add(t, rows, subgroups, split);
      }
    }
  }
  return list;
}

std::vector<ProductVariant> unit_variants(const k::MatvecShape& shape, std::uint32_t columns,
                                          const std::string& wanted) {
  const k::UnitTiling usual = k::unit_tiling(shape, columns);
  const std::uint32_t segments = k::unit_segments(shape).count;
  std::vector<ProductVariant> list;
  const auto add = [&](const k::UnitTiling& tiling) {
    k::MatvecVariant made = k::unit_product(shape, tiling);
    const bool standard = made.spec.constants == k::unit_product(shape, usual).spec.constants;
    for (const ProductVariant& known : list) {
      if (known.spec.constants == made.spec.constants) return;
    }
    const auto text = [](std::uint32_t number) { return std::to_string(number); };
    std::string label =
        std::string(tiling.serial ? "serial" : "split") + "/r" + text(tiling.row_blocks) + "/n" +
        text(tiling.column_tiles) + "/s" + text(tiling.subgroups) +
        (tiling.column_subgroups > 1 ? "x" + text(tiling.column_subgroups) : "") + "/g" +
        text(tiling.step_groups) + (tiling.ahead != 0 ? "/ahead" : "") +
        (tiling.local_totals ? "/local" : "") +
        (tiling.piece_tiles != 0 ? "/p" + text(tiling.piece_tiles) : "") + "/k" + text(segments);
    if (!standard && label.find(wanted) == std::string::npos) return;
    list.push_back({std::move(made.spec),
                    made.columns_per_workgroup,
                    made.rows_per_workgroup,
                    std::move(label),
                    standard,
                    0,
                    0,
                    {}});
  };
  add(usual);
  if (columns > 8) {
    for (const k::UnitTiling& tiling : pieces(shape, columns))
      add(tiling);
  }
  for (const std::uint32_t blocks : {1U, 2U, 4U}) {
    for (const std::uint32_t tiles : {1U, 2U, 4U, 8U}) {
      for (const std::uint32_t step : {1U, 2U, 4U}) {
        for (const bool ahead : {false, true}) {
          const bool useful =
              tiles * 8 <= std::max(columns, 8U) && tiles * 32 >= std::min(columns, 32U);
          const k::UnitTiling split{
              columns, blocks, tiles, segments >= 4 ? segments : 4 / segments * segments,
              step,    false,  1,     ahead ? 1U : 0U};
          if (columns <= 128 && blocks <= 2 && tiles * step <= 8 && step > 1 && useful &&
              k::unit_sums_fit(shape, split)) {
            add(split);
          }
          if (columns > 128 && step < 4 && !ahead && blocks * tiles == 16) {
            constexpr std::uint32_t kWorkgroups[][2] = {{4, 1}, {4, 2}, {8, 1}, {8, 2}, {8, 4}};
            for (const auto& [subgroups, beside] : kWorkgroups)
              add({columns, blocks, tiles, subgroups, step, true, beside, 0, true});
          }
          if (columns > 32 && step < 4 && tiles >= 2 && (blocks >= 2 || tiles == 8) &&
              blocks * tiles <= 16) {
            add({columns, blocks, tiles, 4, step, true, 2, ahead ? 1U : 0U});
            add({columns, blocks, tiles, 8, step, true, 1, ahead ? 1U : 0U});
            add({columns, blocks, tiles, 8, step, true, 2, ahead ? 1U : 0U});
            add({columns, blocks, tiles, 4, step, true, 1, ahead ? 1U : 0U});
          }
        }
      }
    }
  }
  return list;
}

}  // namespace bulkhead::bench
