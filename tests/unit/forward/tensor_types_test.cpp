// The rows of tensor types: the facts that llama.cpp's formats fix, and the rules for a new row.
#include <set>
#include <string>

#include <gmock/gmock.h>

#include "gpu/kernels/weight_layout.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

static_assert(std::is_same_v<model::TensorType, k::TensorType>);

TEST(TensorTypes, EachHasANameAndANumberOfItsOwn) {
  std::set<std::string> names;
  std::set<std::uint32_t> ids;
  for (const k::TensorRow& row : k::kTensorRows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(ids.insert(row.id).second) << row.name;
    EXPECT_EQ(k::find_row(static_cast<k::TensorType>(row.id))->name, row.name);
  }
  EXPECT_EQ(k::find_row(static_cast<k::TensorType>(1000)), nullptr);
}

TEST(TensorTypes, EachKeepsWhatItsWeightsTakeAtLeast) {
  for (const k::TensorRow& row : k::kTensorRows) {
    EXPECT_TRUE(row.block_weights == 1 || row.block_weights == 32 || row.block_weights == 256)
        << row.name;
    // Planes have sixteen bytes for each group, and what follows has whole words, because kernels
    // load these units.
    EXPECT_EQ(row.planes.high % 4, 0U) << row.name;
    EXPECT_LE(row.planes.high, 12U) << row.name;
    const auto type = static_cast<k::TensorType>(row.id);
    const k::WeightLayout planes = k::weight_layout(type, 16, 1024),
                          units = k::unit_layout(type, 16, 1024);
    const std::uint64_t least = 16ULL * 1024 / row.block_weights * row.block_bytes;
    EXPECT_LT(planes.bytes_read(), 4 * least + 1) << row.name;
    EXPECT_EQ(units.bytes % 16, 0U) << row.name;
    EXPECT_EQ(units.block_bytes, units.bytes) << row.name;
  }
}

TEST(TensorTypes, BlocksForMatrixUnitsAreOfTheseSizes) {
  const auto bytes = [](k::TensorType type) { return k::unit_stage_bytes(k::row_of(type).units); };
  EXPECT_EQ(bytes(k::TensorType::kF32), 4096U);
  EXPECT_EQ(bytes(k::TensorType::kQ8_0), 2176U);
  EXPECT_EQ(bytes(k::TensorType::kIQ4_NL), 1152U);
  EXPECT_EQ(bytes(k::TensorType::kQ4_K), 1280U);
  EXPECT_EQ(bytes(k::TensorType::kQ5_0), 1408U);
  EXPECT_EQ(bytes(k::TensorType::kQ5_1), 1536U);
  EXPECT_EQ(bytes(k::TensorType::kQ6_K), 3360U);  // two stages
}

}  // namespace
}  // namespace bulkhead::forward
