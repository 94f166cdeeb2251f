// The products of matrix units on a device that has none. The kernel's own source runs with emulated
// fragments (gpu/kernels/units_emulated.glsl), so that its loads, its unpacking and its sums are tested
// on every machine.
#include <cstring>

#include <gmock/gmock.h>

#include "gpu/kernels/embed_units_emulated.hpp"
#include "gpu/kernels/matvec_units_emulated.hpp"
#include "unit_products.hpp"

namespace bulkhead::forward {
namespace {

class EmulatedUnits : public UnitProducts {
 protected:
  // Returns a variant whose workgroups have one subgroup, which computes all of a row.
  k::MatvecVariant variant_of(const k::MatvecShape& shape, const k::UnitTiling& tiling) override {
    k::UnitTiling alone = tiling;
    alone.subgroups = 1;
    alone.column_subgroups = 1;
    k::MatvecVariant variant = k::unit_product(shape, alone);
    variant.spec.spirv = gpu::spirv::matvec_units_emulated;
    variant.spec.required_subgroup_size = 0;
    auto constants = k::read_constants<k::MatvecUnitsConstants>(variant.spec);
    constants.subgroups = 1;
    constants.invocations = 32;
    if (!alone.serial) {
      constants.segments = 1;
      constants.segment_stages = shape.groups / 4;
    }
    k::write_constants(variant.spec, constants);
    variant.columns_per_workgroup = alone.column_tiles * 8;
    variant.rows_per_workgroup =
        alone.row_blocks * (shape.epilogue == k::Epilogue::kGated ? 8 : 16);
    return variant;
  }
};

struct Way {
  std::uint32_t blocks, step, ahead;
};
// Compiling takes most of the time, so each way is tested with some types, and each type in some ways. If every_way()
// is false, one type is tested in the first of all ways, which have each block, step and distance, and each other
// type in one way, in turn.
constexpr Way kFewWays[] = {{1, 8, 2}, {2, 2, 2}};
constexpr Way kInTurn[] = {{1, 8, 2}, {1, 1, 0}, {2, 1, 1}, {1, 2, 1}};
constexpr Way kAllWays[] = {{1, 4, 0}, {2, 1, 1}, {1, 2, 1}, {2, 8, 2}, {1, 1, 0},
                            {1, 1, 2}, {1, 4, 1}, {1, 4, 2}, {1, 8, 0}, {1, 8, 1},
                            {1, 8, 2}, {2, 2, 2}, {2, 4, 0}, {2, 4, 1}, {2, 4, 2}};
constexpr std::size_t kFirstWays = 4;

// The way in which a subgroup computes a row changes no bit, and the result is the product.
TEST_F(EmulatedUnits, EveryWayOfEveryTypeIsTheProduct) {
  std::size_t turn = 0;
  for (const TensorType type : kTypes) {
    // Types of one form differ only by their codebook, so one type of each form is enough.
    const k::TensorRow& own = k::row_of(type);
    const auto like = [&](const k::TensorRow& other) { return other.units == own.units; };
    if (own.has_codebook() && std::ranges::find_if(k::kTensorRows, like)->id != own.id) continue;
    // The rows have three stages, so that one stage remains after steps of two (with blocks of 256
    // weights: six stages).
    const std::uint32_t width = is_super(type) ? 768 : is_float(type) ? 290 : 288, rows = 20;
    const TestMatrix m = make_matrix(type, rows, width, random_);
    const gpu::Buffer weights = buffer(std::span<const std::byte>(m.packed));
    const auto x = columns(9, width);
    const bool all = type == TensorType::kQ5_1;  // scales, minima and fifth bits
    std::vector<float> first;
    std::span<const Way> ways(kFewWays);
    if (all) ways = kAllWays;
    if (!every_way())
      ways = all ? ways.first(kFirstWays) : std::span(kInTurn).subspan(turn++ % 4, 1);
    for (const Way& way : ways) {
      const k::UnitTiling tiling{9, way.blocks, way.blocks, 1, way.step, false, 1, way.ahead};
      const std::vector<float> y = multiply(m, weights, x, k::Epilogue::kStore, tiling);
      if (first.empty()) {
        first = y;
        for (std::uint32_t c = 0; c < x.size(); ++c) {
          for (std::uint32_t row = 0; row < rows; ++row) {
            const double want = exact(m.values[row], x[c]);
            ASSERT_LT(std::abs(static_cast<double>(y[c * rows + row]) - want),
                      0x1p-11 * magnitude(m.values[row], x[c]))
                << model::traits(type)->name << " row " << row << " column " << c;
          }
        }
      }
      ASSERT_EQ(std::memcmp(y.data(), first.data(), y.size() * 4), 0)
          << model::traits(type)->name << ": blocks " << way.blocks << ", step " << way.step
          << ", ahead " << way.ahead;
    }
  }
}

// A row of one segment shares no sums: every piece of a tile has sums of its own.
TEST_F(EmulatedUnits, PiecesOfATileAreTheProduct) {
  const std::uint32_t width = 64, rows = 35;
  const TestMatrix m = make_matrix(TensorType::kF16, rows, width, random_);
  const gpu::Buffer weights = buffer(std::span<const std::byte>(m.packed));
  const auto x = columns(13, width);
  const k::UnitTiling one_tile{13, 1, 1, 1, 2, false, 1, 0};
  const std::vector<float> whole = multiply(m, weights, x, k::Epilogue::kStore, one_tile);
  for (const k::UnitTiling& tiling : {k::UnitTiling{13, 1, 2, 1, 2, false, 1, 0, false, 1},
                                      k::UnitTiling{13, 2, 2, 1, 2, false, 1, 0, false, 2}}) {
    const std::vector<float> y = multiply(m, weights, x, k::Epilogue::kStore, tiling);
    ASSERT_EQ(y, whole) << tiling.row_blocks << " blocks in pieces of " << tiling.piece_tiles;
  }
}

// Steps have one column, as a single stream has, and compute a row's segments one after another. If
// every_way() is false, one type is tested in all four ways, and each other type in one.
TEST_F(EmulatedUnits, OneColumnAndSegmentsInTurn) {
  std::size_t turn = 0;
  for (const TensorType type : {TensorType::kF16, TensorType::kQ4_0, TensorType::kQ4_K,
                                TensorType::kQ6_K, TensorType::kQ8_0}) {
    const TestMatrix m = make_matrix(type, 17, 1536, random_);
    const gpu::Buffer weights = buffer(std::span<const std::byte>(m.packed));
    const auto x = columns(1, 1536);
    std::vector<float> first;
    std::size_t place = 0;
    const bool all = every_way() || type == TensorType::kQ4_K;
    ++turn;
    for (const auto& [ahead, local_totals] :
         {std::pair{0U, false}, std::pair{1U, false}, std::pair{2U, false}, std::pair{0U, true}}) {
      if (!all && place++ != turn % 4) continue;
      const k::UnitTiling tiling{1, 1, 1, 1, 2, true, 1, ahead, local_totals};
      const std::vector<float> y = multiply(m, weights, x, k::Epilogue::kStore, tiling);
      if (first.empty()) first = y;
      ASSERT_EQ(y, first) << model::traits(type)->name;
      for (std::uint32_t row = 0; row < 17; ++row) {
        ASSERT_LT(std::abs(static_cast<double>(y[row]) - exact(m.values[row], x[0])),
                  0x1p-11 * magnitude(m.values[row], x[0]));
      }
    }
  }
}

TEST_F(EmulatedUnits, ARowOfAnEmbeddingIsFloats) {
  k::Mapping mapping = k::lanes_mapping(device().info());
  mapping.units = true;
  for (const TensorType type : kTypes) {
    const TestMatrix m = make_matrix(type, 19, is_super(type) ? 512 : 320, random_);
    gpu::KernelSpec kernel = k::embed(mapping, weight_type(type), m.layout);
    kernel.spirv = gpu::spirv::embed_units_emulated;
    kernel.required_subgroup_size = 0;
    auto constants = k::read_constants<k::EmbedConstants>(kernel);
    constants.invocations = 32;
    k::write_constants(kernel, constants);
    expect_rows(kernel, m, 3);
  }
}

}  // namespace
}  // namespace bulkhead::forward
