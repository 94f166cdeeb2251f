// One kernel computes the downs of a single column's experts and adds them up (expert_sum.glsl). It gives the bits of
// a product whose results are added afterwards, as mix.comp adds them.
#include <array>
#include <cstring>

#include "expert_kernels.hpp"
#include "gpu/kernels/units_check.hpp"

namespace bulkhead::forward {
namespace {

class ExpertSum : public ExpertKernels {
 protected:
  // The residual stream after the experts' sum was added to it, and the next product's input as halves.
  struct Made {
    std::vector<float> sum;
    std::vector<std::uint16_t> input;
  };

  void SetUp() override {
    ExpertKernels::SetUp();
    if (IsSkipped()) return;
    const auto found = k::fragments_as_expected(device());
    has_units_ = device().info().matrix_units && found.ok() && *found;
  }

  // Returns the mapping of matrix units; a device without them emulates its kernels.
  k::Mapping units() {
    k::Mapping mapping = k::lanes_mapping(device().info());
    mapping.units = true;
    return mapping;
  }

  static k::MatvecShape shape_of(const ExpertMatrices& downs, const k::RouterShape& router,
                                 bool biased) {
    k::MatvecShape shape;
    shape.type = downs.packed->type();
    shape.rows = static_cast<std::uint32_t>(downs.packed->slice_rows());
    shape.groups = downs.packed->layout().groups;
    shape.together = router.used;
    shape.biased = biased;
    return shape;
  }

  Made add_up(const k::RouterShape& router, const ExpertMatrices& downs, const gpu::Buffer& routes,
              const Columns& hidden, const std::vector<float>& stream,
              const std::vector<float>& gain, const std::vector<float>& biases, float scale,
              k::ChoosesHere chooses, std::uint32_t count = 1) {
    const k::Mapping mapping = units();
    const k::MatvecShape shape = shape_of(downs, router, !biases.empty());
    EXPECT_TRUE(k::sums_experts(mapping, shape, router, 1));
    k::MatvecVariant variant = k::expert_sum(shape, router, scale, chooses);
    EXPECT_EQ(variant.rows_per_workgroup, 16U);
    if (!real_units_) emulate_experts(variant, shape, true);
    const std::uint32_t padded = k::input_padded(mapping, shape.rows);
    const gpu::Buffer in = input(mapping, hidden), out = buffer(std::span<const float>(stream)),
                      next = empty(std::size_t{8} * k::input_stride(mapping, shape.rows) * 4),
                      gains = buffer(std::span<const float>(gain)),
                      bias = buffer(std::span<const float>(biases)), counts = parameters(count);
    k::FusedOperands operands{};
    operands.bias = bias.address();
    operands.next_gain = gains.address();
    operands.next_input = next.address();
    operands.next_stride = k::input_stride(mapping, shape.rows);
    const gpu::Buffer fused = buffer(std::span<const k::FusedOperands>(&operands, 1));
    k::ExpertPush push{};
    push.product.quants = downs.memory.address() + downs.packed->layout().quants;
    push.product.x = in.address();
    push.product.out_address = out.address();
    push.product.parameters = counts.address();
    push.product.rows = push.product.out_stride = shape.rows;
    push.product.written_rows = padded;
    push.product.groups = shape.groups;
    push.product.x_stride = k::input_stride(mapping, downs.packed->width());
    push.product.fused = fused.address();
    push.tiles = routes.address() + k::route_layout(router, 1).tiles;
    run(variant.spec, push, (padded + variant.rows_per_workgroup - 1) / variant.rows_per_workgroup);
    return {read<float>(out, shape.rows), halves(next, padded)};
  }

  // Adds up results by the kernel that does nothing else.
  Made mix(const k::RouterShape& router, const Columns& results, const std::vector<float>& weights,
           const std::vector<float>& stream, const std::vector<float>& gain) {
    const k::Mapping mapping = units();
    const auto width = static_cast<std::uint32_t>(stream.size());
    std::vector<float> all;
    for (const std::vector<float>& result : results)
      all.insert(all.end(), result.begin(), result.end());
    const gpu::Buffer in = buffer(std::span<const float>(all)),
                      shares = buffer(std::span<const float>(weights)),
                      out = buffer(std::span<const float>(stream)),
                      next = empty(std::size_t{8} * k::input_stride(mapping, width) * 4),
                      gains = buffer(std::span<const float>(gain)), counts = parameters(1);
    k::MixPush push{};
    push.results = in.address();
    push.weights = shares.address();
    push.out_address = out.address();
    push.parameters = counts.address();
    push.next_gain = gains.address();
    push.next_input = next.address();
    push.width = push.results_stride = push.out_stride = width;
    push.padded_width = k::input_padded(mapping, width);
    push.next_stride = k::input_stride(mapping, width);
    const k::MixVariant variant = k::mix(mapping, router, true);
    run(variant.spec, push, 1,
        (push.padded_width + variant.entries_per_workgroup - 1) / variant.entries_per_workgroup);
    return {read<float>(out, width), halves(next, push.padded_width)};
  }

  // Returns the first column of a product's input.
  static std::vector<std::uint16_t> halves(const gpu::Buffer& input, std::uint32_t count) {
    std::vector<std::uint16_t> made(count);
    for (std::uint32_t i = 0; i < count; ++i)
      std::memcpy(&made[i], input.mapped().data() + (i / 32 * 256 + i % 32) * 2, 2);
    return made;
  }

  void expect_equal(TensorType type, const k::RouterShape& router, std::uint32_t hidden_width,
                    bool biased) {
    for (const bool real : {false, true}) {
      real_units_ = real;
      if (!real || has_units_) compare(type, router, hidden_width, biased);
    }
  }

  // Compares the kernel with a product and a sum of its results.
  void compare(TensorType type, const k::RouterShape& router, std::uint32_t hidden_width,
               bool biased) {
    SCOPED_TRACE(testing::Message()
                 << model::traits(type)->name << ", " << router.used << " of " << router.experts
                 << " experts" << (real_units_ ? "" : ", emulated"));
    const k::Mapping mapping = units();
    const std::uint32_t rows = 52;  // these fill no block of matrix units
    const float scale = 1.7F;
    const ExpertMatrices downs = matrices(type, router, rows, hidden_width, Packing::kUnits, false);
    gpu::Buffer memory;
    const Routes routes =
        route(mapping, router, router_rows(router, random_), std::vector<float>(kWidth, 1.0F),
              columns(1, kWidth), scale, memory);
    const Columns hidden = columns(router.used, hidden_width);
    const std::vector<float> stream = columns(1, rows)[0], gain = columns(1, rows)[0];
    const std::vector<float> biases =
        biased ? columns(1, router.experts * rows)[0] : std::vector<float>();
    const Columns results =
        multiply(mapping, router, downs, memory, 1, hidden, k::Epilogue::kStore, {biases, {}});
    const Made made = add_up(router, downs, memory, hidden, stream, gain, biases, scale,
                             k::ChoosesHere::kByRoute);
    const Made mixed = mix(router, results, routes.weights, stream, gain);
    EXPECT_EQ(made.sum, mixed.sum);
    EXPECT_EQ(made.input, mixed.input);
    for (std::uint32_t row = 0; row < rows; ++row) {
      double want = static_cast<double>(stream[row]), terms = std::abs(want);
      for (std::uint32_t place = 0; place < router.used; ++place) {
        const std::uint32_t expert = routes.chosen[place];
        const std::vector<double>& own = downs.values[expert][row];
        const auto weight = static_cast<double>(routes.weights[place]);
        const double bias = biased ? static_cast<double>(biases[expert * rows + row]) : 0;
        want += weight * (exact(own, hidden[place]) + bias);
        terms += weight * magnitude(own, hidden[place]);
      }
      ASSERT_NEAR(made.sum[row], want, 0x1p-11 * terms + 1e-6) << row;
    }

    if (!k::chooses_in_products(mapping, router, false, 1)) return;
    // The kernel chooses the same experts from the logits, and reads nothing else of the route.
    std::memset(memory.mapped().data(), 0xee, k::route_layout(router, 1).logits);
    const Made chosen =
        add_up(router, downs, memory, hidden, stream, gain, biases, scale, k::ChoosesHere::kHere);
    EXPECT_EQ(chosen.sum, made.sum);
    EXPECT_EQ(chosen.input, made.input);
    EXPECT_EQ(read_routes(memory, k::route_layout(router, 1), router, 1).tiles[0], 0xeeeeeeeeU);

    const Made none = add_up(router, downs, memory, hidden, stream, gain, biases, scale,
                             k::ChoosesHere::kHere, 0);
    EXPECT_EQ(none.sum, stream) << "a step without columns adds something";
  }

  bool has_units_ = false;
};

TEST_F(ExpertSum, GivesTheBitsOfAProductAndASum) {
  expect_equal(TensorType::kQ8_0, {16, 4, false, true}, 96, true);
  // These rows have several segments, and subgroups compute parts of different experts.
  expect_equal(TensorType::kQ4_K, {8, 5, false, true}, 768, false);
  expect_equal(TensorType::kMXFP4, {32, 4, false, true}, 736, true);
  expect_equal(TensorType::kF16, {8, 3, false, true}, 32, false);
}

TEST_F(ExpertSum, TakesWeightsThatTheRoutersKernelMakes) {
  k::RouterShape router{16, 3, false, false};
  expect_equal(TensorType::kQ6_K, router, 768, false);
}

TEST_F(ExpertSum, IsForOneColumnOfShortRowsWhoseWeightsFitIntoRegisters) {
  const k::RouterShape router{16, 4, false, true};
  k::MatvecShape shape;
  shape.type = k::WeightType::kQ4_K;
  shape.rows = 2048;
  shape.groups = 24;
  shape.together = router.used;
  EXPECT_TRUE(k::sums_experts(units(), shape, router, 1));
  EXPECT_FALSE(k::sums_experts(units(), shape, router, 2));
  EXPECT_FALSE(k::sums_experts(k::lanes_mapping(device().info()), shape, router, 1));
  shape.groups = 2880 / 32;
  EXPECT_FALSE(k::sums_experts(units(), shape, router, 1)) << "a row is too long";
  shape.groups = 1024 / 32;
  shape.type = k::WeightType::kF16;
  shape.together = 32;
  EXPECT_FALSE(k::sums_experts(units(), shape, {64, 32, false, true}, 1)) << "too many weights";
}

}  // namespace
}  // namespace bulkhead::forward
