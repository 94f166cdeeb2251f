// Mixtures of experts, kernel by kernel, against float64: the router's choice, the products of experts'
// matrices, and their sum. A column's bits are the same whichever experts the other columns choose.
#include "expert_kernels.hpp"

namespace bulkhead::forward {
namespace {

void expect_tiles(const Routes& routes, std::uint32_t most, std::uint32_t tile_columns) {
  std::set<std::uint32_t> seen;
  std::uint32_t expert_before = 0;
  ASSERT_LE(routes.tiles[0], most);
  for (std::uint32_t i = 0; i < routes.tiles[0]; ++i) {
    const std::uint32_t* const tile = &routes.tiles[4 + i * 4];
    ASSERT_GE(tile[2], 1U);
    ASSERT_LE(tile[2], tile_columns);
    if (routes.tiles[0] < routes.chosen.size()) {  // sorted
      ASSERT_GE(tile[0], expert_before);
      expert_before = tile[0];
    }
    for (std::uint32_t at = tile[1]; at < tile[1] + tile[2]; ++at) {
      ASSERT_LT(at, routes.list.size());
      const std::uint32_t pair = routes.list[at];
      ASSERT_LT(pair, routes.chosen.size());
      ASSERT_EQ(routes.chosen[pair], tile[0]);
      ASSERT_TRUE(seen.insert(pair).second) << "pair " << pair << " twice";
    }
    if (tile_columns == 1) {
      ASSERT_EQ(tile[3], routes.list[tile[1]]);
    }
  }
  ASSERT_EQ(seen.size(), routes.chosen.size());
}

std::vector<NamedMapping> mappings_with_units(gpu::Device& device) {
  std::vector<NamedMapping> mappings = test_mappings(device);
  k::Mapping units = k::lanes_mapping(device.info());
  units.units = true;
  mappings.push_back({"units, emulated", units});
  return mappings;
}

TEST_F(ExpertKernels, TheRouterChoosesAsDoubleDoes) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const k::RouterShape& router :
         {k::RouterShape{16, 4, false, true}, k::RouterShape{60, 4, true, false},
          k::RouterShape{8, 8, false, false}, k::RouterShape{256, 10, true, true}}) {
      const std::vector<float> rows = router_rows(router, random_);
      std::vector<float> gain(kWidth);
      for (float& value : gain)
        value = 1 + std::uniform_real_distribution<float>(-0.2F, 0.2F)(random_);
      const Columns x = columns(37, kWidth);
      gpu::Buffer memory;
      // Some routers are tested only with the most and with the fewest columns.
      const bool all_counts = every_way() || router.experts == 16;
      for (const std::uint32_t count : {1U, 3U, 16U, 33U}) {
        if (!all_counts && (count == 3 || count == 16)) continue;
        SCOPED_TRACE(testing::Message()
                     << name << ", " << router.experts << " experts, " << count << " columns");
        const Columns some(x.begin(), x.begin() + count);
        // One of the routers has a factor for each expert.
        std::vector<float> factors(router.experts == 60 ? router.experts : 0);
        for (std::size_t i = 0; i < factors.size(); ++i)
          factors[i] = 0.5F + static_cast<float>(i) / 64;
        const Routes routes = route(mapping, router, rows, gain, some, 1.5F, memory, factors);
        const std::uint32_t tile = k::expert_tile(mapping, router, count);
        ASSERT_NO_FATAL_FAILURE(expect_tiles(routes, k::most_tiles(router, count, tile), tile));
        for (std::uint32_t c = 0; c < count; ++c) {
          double squares = 0;
          for (const float value : x[c])
            squares += static_cast<double>(value) * static_cast<double>(value);
          const double norm = 1 / std::sqrt(squares / kWidth + static_cast<double>(kEpsilon));
          std::vector<double> logits(router.rows());
          for (std::uint32_t row = 0; row < router.rows(); ++row) {
            for (std::uint32_t i = 0; i < kWidth; ++i)
              logits[row] += static_cast<double>(rows[row * kWidth + i]) *
                             static_cast<double>(x[c][i]) * static_cast<double>(gain[i]) * norm;
          }
          std::vector<std::uint32_t> order(router.experts);
          std::iota(order.begin(), order.end(), 0U);
          std::stable_sort(order.begin(), order.end(),
                           [&](std::uint32_t a, std::uint32_t b) { return logits[a] > logits[b]; });
          double sum = 0;
          for (std::uint32_t i = 0; i < (router.renormalise ? router.used : router.experts); ++i)
            sum += std::exp(logits[order[i]] - logits[order[0]]);
          for (std::uint32_t place = 0; place < router.used; ++place) {
            ASSERT_EQ(routes.chosen[c * router.used + place], order[place]) << c << ' ' << place;
            const double factor =
                factors.empty() ? 1.5 : 1.5 * static_cast<double>(factors[order[place]]);
            ASSERT_NEAR(routes.weights[c * router.weights() + place],
                        factor * std::exp(logits[order[place]] - logits[order[0]]) / sum, 3e-6);
          }
          if (router.shared_gate) {
            ASSERT_NEAR(routes.weights[c * router.weights() + router.used],
                        1 / (1 + std::exp(-logits[router.experts])), 1e-6);
          }
        }
      }
    }
  }
}

// A hostile file can give a router any numbers. No index must lie outside the experts.
TEST_F(ExpertKernels, LogitsThatAreNoNumbersChooseSomeExperts) {
  const k::RouterShape router{16, 4, false, true};
  for (const auto& [name, mapping] : test_mappings(device())) {
    std::vector<float> rows(router.experts * kWidth, std::nanf(""));
    std::fill_n(rows.begin(), kWidth, 1.0F);
    gpu::Buffer memory;
    const Routes routes = route(mapping, router, rows, std::vector<float>(kWidth, 1.0F),
                                columns(5, kWidth), 1, memory);
    for (const std::uint32_t expert : routes.chosen)
      ASSERT_LT(expert, router.experts) << name;
  }
}

TEST_F(ExpertKernels, ProductsAndTheirSumAreThoseOfDoubleAndKeepTheirBits) {
  const k::RouterShape router{16, 4, false, true};
  for (const auto& [name, mapping] : mappings_with_units(device())) {
    for (const TensorType type : {TensorType::kQ8_0, TensorType::kQ4_K}) {
      const bool blocks_of_256 = model::traits(type)->block_weights == 256;
      const std::uint32_t hidden = blocks_of_256 ? 256 : kHidden;
      // This number of rows fills no block of matrix units.
      const std::uint32_t results = 52;
      const Packing one = mapping.units ? Packing::kUnits : Packing::kPlanes;
      const Packing two = mapping.units ? Packing::kUnitsAlternating : Packing::kPlanes;
      const ExpertMatrices gates = matrices(type, router, hidden - 4, kWidth, two, true);
      const ExpertMatrices downs = matrices(type, router, results, hidden, one, false);
      const std::vector<float> rows = router_rows(router, random_);
      const std::vector<float> gain(kWidth, 1.0F);
      // One type has biases and gpt-oss's gate, and the other has neither.
      const bool biased = type == TensorType::kQ8_0;
      const auto some_biases = [&](std::uint32_t count) {
        return biased ? columns(1, router.experts * count)[0] : std::vector<float>();
      };
      const Biases gate_biases{some_biases(hidden - 4), some_biases(hidden - 4)},
          down_biases{some_biases(results), {}};
      const Columns x = columns(33, kWidth), h = columns(33 * router.used, hidden);
      Columns first_gated(33 * router.used), first_down(33 * router.used);
      for (const std::uint32_t count : {33U, 16U, 3U, 1U}) {
        // Both types are tested with the most columns, and each other number of columns with one
        // type.
        if (!every_way() && count != 33 && (count == 1) == biased) continue;
        SCOPED_TRACE(testing::Message()
                     << name << ' ' << model::traits(type)->name << ", " << count << " columns");
        const Columns some(x.begin(), x.begin() + count);
        const Columns inner(h.begin(), h.begin() + count * router.used);
        gpu::Buffer memory;
        const Routes routes = route(mapping, router, rows, gain, some, 1, memory);
        const Columns gated =
            multiply(mapping, router, gates, memory, count, some, k::Epilogue::kGated, gate_biases);
        const Columns down = multiply(mapping, router, downs, memory, count, inner,
                                      k::Epilogue::kStore, down_biases);
        const double error = mapping.units ? 0x1p-11 : 1e-6;  // of the terms' magnitudes
        for (std::uint32_t pair = 0; pair < count * router.used; ++pair) {
          const std::uint32_t expert = routes.chosen[pair];
          if (count == 33) {
            for (std::uint32_t row = 0; row < hidden - 4; ++row) {
              const auto &gate_row = gates.values[expert * 2][row],
                         &up_row = gates.values[expert * 2 + 1][row];
              const std::vector<float>& column = x[pair / router.used];
              double gate = exact(gate_row, column), up = exact(up_row, column);
              if (biased) {
                gate += static_cast<double>(gate_biases.first[expert * (hidden - 4) + row]);
                up += static_cast<double>(gate_biases.second[expert * (hidden - 4) + row]);
              }
              const double want =
                  reference::gated(biased ? k::Gate::kClamped : k::Gate::kSilu, gate, up);
              // Both gates' slopes are at most 1.1.
              ASSERT_NEAR(gated[pair][row], want,
                          error * (1.1 * magnitude(gate_row, column) * (std::abs(up) + 1) +
                                   magnitude(up_row, column) * (std::abs(gate) + 0.3)) +
                              1e-6 * (1 + std::abs(want)))
                  << "pair " << pair << " row " << row;
            }
            for (std::uint32_t row = 0; row < results; ++row) {
              const std::vector<double>& own = downs.values[expert][row];
              const double bias =
                  biased ? static_cast<double>(down_biases.first[expert * results + row]) : 0;
              ASSERT_NEAR(down[pair][row], exact(own, h[pair]) + bias,
                          error * magnitude(own, h[pair]) + 1e-6)
                  << "pair " << pair << " row " << row;
            }
            first_gated[pair] = gated[pair];
            first_down[pair] = down[pair];
          }
          ASSERT_EQ(std::memcmp(gated[pair].data(), first_gated[pair].data(), (hidden - 4) * 4), 0);
          ASSERT_EQ(std::memcmp(down[pair].data(), first_down[pair].data(), results * 4), 0);
        }
      }
    }
  }
}

// A single column's products of long rows are divided among subgroups in a way of their own.
TEST_F(ExpertKernels, ASingleColumnOfLongRowsHasTheBitsOfSeveral) {
  const k::RouterShape router{8, 2, false, true};
  const std::uint32_t hidden = 1280, results = 52;
  for (const auto& [name, mapping] : mappings_with_units(device())) {
    for (const TensorType type : {TensorType::kMXFP4, TensorType::kQ4_K}) {
      SCOPED_TRACE(testing::Message() << name << ' ' << model::traits(type)->name);
      const ExpertMatrices downs =
          matrices(type, router, results, hidden,
                   mapping.units ? Packing::kUnits : Packing::kPlanes, false);
      const std::vector<float> rows = router_rows(router, random_), gain(kWidth, 1.0F);
      const Columns x = columns(3, kWidth), h = columns(3 * router.used, hidden);
      Columns several;
      for (const std::uint32_t count : {3U, 1U}) {
        gpu::Buffer memory;
        const Routes routes =
            route(mapping, router, rows, gain, {x.begin(), x.begin() + count}, 1, memory);
        const Columns made =
            multiply(mapping, router, downs, memory, count,
                     {h.begin(), h.begin() + count * router.used}, k::Epilogue::kStore, {});
        if (count != 1) several = made;
        for (std::uint32_t pair = 0; pair < router.used; ++pair) {
          for (std::uint32_t row = 0; row < results; ++row) {
            const std::vector<double>& own = downs.values[routes.chosen[pair]][row];
            const double error = mapping.units ? 0x1p-11 : 1e-6;  // of the terms' magnitudes
            ASSERT_NEAR(made[pair][row], exact(own, h[pair]), error * magnitude(own, h[pair]) + 1e-6)
                << count << " columns, pair " << pair << " row " << row;
          }
          ASSERT_EQ(std::memcmp(made[pair].data(), several[pair].data(), results * 4), 0)
              << count << " columns, pair " << pair;
        }
      }
    }
  }
}

TEST_F(ExpertKernels, AColumnsSumIsInTheOrderOfItsChoice) {
  const k::RouterShape router{16, 4, true, true};
  const std::uint32_t width = 50, count = 3;
  for (const auto& [name, mapping] : test_mappings(device())) {
    const Columns results = columns(count * router.used, width), shared = columns(count, width),
                  stream = columns(count, width), weights = columns(count, router.weights());
    const auto flat = [this](const Columns& x) {
      std::vector<float> all;
      for (const auto& column : x)
        all.insert(all.end(), column.begin(), column.end());
      return buffer(std::span<const float>(all));
    };
    const gpu::Buffer in = flat(results), other = flat(shared), out = flat(stream),
                      shares = flat(weights), gain = flat(columns(1, width)),
                      counts = parameters(count);
    const std::uint32_t stride = k::input_stride(mapping, width);
    const gpu::Buffer next = empty(std::uint64_t{count} * stride * 4);
    k::MixPush push{};
    push.results = in.address();
    push.weights = shares.address();
    push.shared_result = other.address();
    push.out_address = out.address();
    push.parameters = counts.address();
    push.next_gain = gain.address();
    push.next_input = next.address();
    push.width = push.results_stride = push.shared_stride = push.out_stride = width;
    push.padded_width = k::input_padded(mapping, width);
    push.next_stride = stride;
    const k::MixVariant variant = k::mix(mapping, router, true);
    run(variant.spec, push, count + 2,
        (push.padded_width + variant.entries_per_workgroup - 1) / variant.entries_per_workgroup);
    const auto made = read<float>(out, count * width), gains = read<float>(gain, width);
    const auto inputs = read<float>(next, std::size_t{count} * stride);
    for (std::uint32_t c = 0; c < count; ++c) {
      for (std::uint32_t i = 0; i < push.padded_width; ++i) {
        const float input = inputs[c * stride + place(mapping, i)];
        if (i >= width) {
          ASSERT_EQ(input, 0.0F) << name;
          continue;
        }
        float sum = 0;
        for (std::uint32_t place = 0; place < router.used; ++place)
          sum = std::fma(weights[c][place], results[c * router.used + place][i], sum);
        sum = std::fma(weights[c][router.used], shared[c][i], sum);
        const float total = stream[c][i] + sum;
        ASSERT_EQ(made[c * width + i], total) << name << " column " << c << " entry " << i;
        ASSERT_EQ(input, total * gains[i]) << name << " column " << c << " entry " << i;
      }
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward
