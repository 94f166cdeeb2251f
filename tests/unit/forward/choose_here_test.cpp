// A product that chooses a single column's experts itself (choose_here.glsl) gives the same bits as with the router's
// own kernel.
#include <cstring>
#include <limits>

#include "expert_kernels.hpp"

namespace bulkhead::forward {
namespace {

class ChooseHere : public ExpertKernels {
 protected:
  // Returns the mapping of matrix units; the device emulates its kernels.
  k::Mapping units() {
    k::Mapping mapping = k::lanes_mapping(device().info());
    mapping.units = true;
    return mapping;
  }

  // Multiplies a column by the experts that the route names, and by those that the product chooses.
  void expect_equal(const k::RouterShape& router, const std::vector<float>& rows) {
    SCOPED_TRACE(testing::Message() << router.experts << " experts, " << router.used << " used");
    const k::Mapping mapping = units();
    ASSERT_TRUE(k::chooses_in_products(mapping, router, false, 1));
    const ExpertMatrices gates =
        matrices(TensorType::kQ8_0, router, 24, kWidth, Packing::kUnitsAlternating, true);
    const Columns x = columns(1, kWidth);
    const std::vector<float> gain(kWidth, 1.0F);
    const float scale = 1.7F;
    gpu::Buffer memory;
    const Routes wanted = route(mapping, router, rows, gain, x, scale, memory);
    const Columns by_route =
        multiply(mapping, router, gates, memory, 1, x, k::Epilogue::kGated, {});
    const k::RouteLayout layout = k::route_layout(router, 1);
    std::memset(memory.mapped().data(), 0xee, layout.logits);
    const Columns here = multiply(mapping, router, gates, memory, 1, x, k::Epilogue::kGated, {},
                                  k::ChoosesHere::kHereAndTells, scale);
    for (std::uint32_t place = 0; place < router.used; ++place) {
      EXPECT_EQ(std::memcmp(here[place].data(), by_route[place].data(), 24 * 4), 0) << place;
    }
    const Routes told = read_routes(memory, layout, router, 1);
    EXPECT_EQ(told.tiles[0], router.used);
    for (std::uint32_t word = 4; word < 4 + router.used * 4; ++word) {
      EXPECT_EQ(told.tiles[word], wanted.tiles[word]) << word;
    }
    EXPECT_EQ(std::memcmp(told.weights.data(), wanted.weights.data(), router.weights() * 4), 0);

    if (!every_way() && router.experts != 16) return;
    // Another product of the step writes no route.
    std::memset(memory.mapped().data(), 0xee, layout.logits);
    const Columns again = multiply(mapping, router, gates, memory, 1, x, k::Epilogue::kGated, {},
                                   k::ChoosesHere::kHere, scale);
    EXPECT_EQ(again, here);
    EXPECT_EQ(read_routes(memory, layout, router, 1).tiles[0], 0xeeeeeeeeU);
  }
};

TEST_F(ChooseHere, GivesTheBitsOfTheRoute) {
  for (const k::RouterShape& router :
       {k::RouterShape{16, 4, false, true}, k::RouterShape{128, 8, true, true},
        k::RouterShape{5, 1, false, true}}) {
    expect_equal(router, router_rows(router, random_));
  }
}

TEST_F(ChooseHere, TakesSomeExpertsWhereLogitsAreNoNumbers) {
  const k::RouterShape router{16, 4, false, true};
  std::vector<float> rows = router_rows(router, random_);
  rows[3 * kWidth] = std::numeric_limits<float>::quiet_NaN();
  rows[7 * kWidth] = std::numeric_limits<float>::infinity();
  expect_equal(router, rows);
}

TEST_F(ChooseHere, IsForRoutersThatNeedNothingElse) {
  k::RouterShape router{16, 4, false, true};
  EXPECT_FALSE(k::chooses_in_products(units(), router, false, 2));
  EXPECT_FALSE(k::chooses_in_products(units(), router, true, 1)) << "experts have scales";
  EXPECT_FALSE(k::chooses_in_products(k::lanes_mapping(device().info()), router, false, 1));
  router.renormalise = false;
  EXPECT_FALSE(k::chooses_in_products(units(), router, false, 1));
  router.renormalise = router.sigmoid = true;
  EXPECT_FALSE(k::chooses_in_products(units(), router, false, 1));
}

}  // namespace
}  // namespace bulkhead::forward
