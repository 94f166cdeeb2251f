// What the tests of a mixture's kernels share: matrices of experts, a router's steps, and products by routes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include <gmock/gmock.h>

#include "emulated_experts.hpp"
#include "gpu/kernels/experts.hpp"
#include "kernel_harness.hpp"
#include "reference.hpp"
#include "worker/forward/weight_packing.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;
using model::TensorType;
using Columns = std::vector<std::vector<float>>;

constexpr std::uint32_t kWidth = 256, kHidden = 96;
constexpr float kEpsilon = 1e-5F;

// One matrix for each expert; with `both` a gate's matrix and an up's.
struct ExpertMatrices {
  std::vector<std::vector<std::byte>> data;
  std::vector<model::TensorInfo> tensors;                // each expert's stand together
  std::vector<std::vector<std::vector<double>>> values;  // [tensor][row][k]
  std::unique_ptr<PackedMatrix> packed;
  gpu::Buffer memory;
};

// Biases as [expert][row]: the gate's and the up's, or those of the only matrix. Empty: no biases.
struct Biases {
  std::vector<float> first, second;
};

struct Routes {
  std::vector<std::uint32_t> tiles, list, chosen;
  std::vector<float> weights;
};

inline double exact(const std::vector<double>& row, const std::vector<float>& x) {
  return std::inner_product(row.begin(), row.end(), x.begin(), 0.0);
}

inline double magnitude(const std::vector<double>& row, const std::vector<float>& x) {
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i)
    sum += std::abs(row[i] * static_cast<double>(x[i]));
  return sum;
}

class ExpertKernels : public KernelTest {
 protected:
  ExpertKernels() : KernelTest(20261123) {}

  ExpertMatrices matrices(TensorType type, const k::RouterShape& router, std::uint32_t rows,
                          std::uint32_t width, Packing packing, bool both) {
    ExpertMatrices m;
    const std::uint32_t count = router.experts * (both ? 2 : 1);
    for (std::uint32_t i = 0; i < count; ++i) {
      m.data.push_back(reference::random_rows(type, rows, width, random_));
      std::vector<std::vector<double>> values;
      const std::size_t bytes = m.data.back().size() / rows;
      for (std::uint32_t row = 0; row < rows; ++row)
        values.push_back(reference::dequantize(
            type, std::span(m.data.back()).subspan(row * bytes, bytes), width));
      m.values.push_back(std::move(values));
    }
    for (const auto& data : m.data) {
      model::TensorInfo& tensor = m.tensors.emplace_back();
      tensor.type = type;
      tensor.ne = {width, rows, 1, 1};
      tensor.dimensions = 2;
      tensor.data = data;
    }
    std::vector<const model::TensorInfo*> views;
    for (const model::TensorInfo& tensor : m.tensors)
      views.push_back(&tensor);
    m.packed =
        std::make_unique<PackedMatrix>(views, std::vector<RowOrder>{}, packing, router.experts);
    m.memory = empty(m.packed->layout().bytes);
    m.packed->fill(0, m.memory.mapped());
    return m;
  }

  Columns columns(std::uint32_t count, std::uint32_t width) {
    std::normal_distribution<float> normal;
    Columns x(count, std::vector<float>(width));
    for (auto& column : x) {
      // Half-precision floats hold these values exactly.
      for (float& value : column)
        value = std::round(normal(random_) * 64) / 64;
    }
    return x;
  }

  // Returns the columns as a product's input, with zeros up to the padding and NaN elsewhere.
  gpu::Buffer input(const k::Mapping& mapping, const Columns& x) {
    const auto width = static_cast<std::uint32_t>(x[0].size());
    const std::uint32_t stride = k::input_stride(mapping, width);
    gpu::Buffer made = empty((x.size() + 7) / 8 * 8 * stride * 4);
    for (std::size_t c = 0; c < x.size(); ++c) {
      for (std::uint32_t i = 0; i < k::input_padded(mapping, width); ++i) {
        const float value = i < width ? x[c][i] : 0.0F;
        if (mapping.units) {
          const std::uint16_t bits = k::types::to_half(value);
          std::memcpy(made.mapped().data() +
                          ((c / 8 * (stride / 32) + i / 32) * 256 + c % 8 * 32 + i % 32) * 2,
                      &bits, 2);
        } else {
          std::memcpy(made.mapped().data() + (c * stride + place(mapping, i)) * 4, &value, 4);
        }
      }
    }
    return made;
  }
  static std::uint32_t place(const k::Mapping& mapping, std::uint32_t i) {
    if (mapping.rows) return i;
    return i / 1024 * 1024 + (i / 4 % 8) * 128 + (i / 32 % 32) * 4 + i % 4;
  }

  Routes route(const k::Mapping& mapping, const k::RouterShape& router,
               const std::vector<float>& rows, const std::vector<float>& gain, const Columns& x,
               float scale, gpu::Buffer& memory, const std::vector<float>& factors = {}) {
    const auto count = static_cast<std::uint32_t>(x.size());
    std::vector<float> stream;
    for (const auto& column : x)
      stream.insert(stream.end(), column.begin(), column.end());
    const gpu::Buffer in = buffer(std::span<const float>(stream));
    const gpu::Buffer gains = buffer(std::span<const float>(gain));
    const gpu::Buffer weights = buffer(std::span<const float>(rows));
    const gpu::Buffer counts = parameters(count);
    const k::RouteLayout layout = k::route_layout(router, count);
    EXPECT_LE(layout.bytes, std::uint64_t{count} * k::route_words(router) * 4);
    memory = empty(layout.bytes);
    k::RoutePush push{};
    push.in_address = in.address();
    push.gain = gains.address();
    push.router = weights.address();
    push.logits = memory.address() + layout.logits;
    push.parameters = counts.address();
    push.width = push.in_stride = kWidth;
    push.rows = router.rows();
    push.epsilon = kEpsilon;
    const k::RouteVariant variant = k::route(mapping, router, count);
    run(variant.spec, push,
        (count + variant.columns_per_workgroup - 1) / variant.columns_per_workgroup,
        (push.rows + variant.rows_per_workgroup - 1) / variant.rows_per_workgroup);
    k::ChoosePush choose{};
    choose.logits = push.logits;
    choose.chosen = memory.address() + layout.chosen;
    choose.weights = memory.address() + layout.weights;
    choose.list = memory.address() + layout.list;
    choose.tiles = memory.address() + layout.tiles;
    choose.parameters = push.parameters;
    choose.scale = scale;
    const gpu::Buffer of_each = buffer(std::span<const float>(factors));
    if (!factors.empty()) choose.expert_scales = of_each.address();
    const std::uint32_t tile = k::expert_tile(mapping, router, count);
    const auto dispatch = [&](k::ChoosePart part) {
      const k::ChooseVariant made = k::choose(mapping, router, part, count, tile);
      run(made.spec, choose, made.workgroups);
    };
    if (count == 1) {
      dispatch(k::ChoosePart::kOneColumn);
    } else if (k::chooses_at_once(mapping, count)) {
      dispatch(k::ChoosePart::kBoth);
    } else {
      dispatch(k::ChoosePart::kChoose);
      dispatch(k::ChoosePart::kSort);
    }
    return read_routes(memory, layout, router, count);
  }

  static Routes read_routes(const gpu::Buffer& memory, const k::RouteLayout& layout,
                            const k::RouterShape& router, std::uint32_t count) {
    const auto take = [&]<typename T>(std::vector<T>& to, std::uint64_t from, std::size_t n) {
      to.resize(n);
      std::memcpy(to.data(), memory.mapped().data() + from, n * sizeof(T));
    };
    Routes made;
    const std::size_t pairs = std::size_t{count} * router.used;
    take(made.tiles, layout.tiles, 4 + pairs * 4);
    take(made.list, layout.list, pairs);
    take(made.chosen, layout.chosen, pairs);
    take(made.weights, layout.weights, std::size_t{count} * router.weights());
    return made;
  }

  // Returns results[pair][row], whatever the form of the results in memory.
  Columns multiply(const k::Mapping& mapping, const k::RouterShape& router, const ExpertMatrices& m,
                   const gpu::Buffer& routes, std::uint32_t count, const Columns& x,
                   k::Epilogue epilogue, const Biases& biases,
                   k::ChoosesHere chooses = k::ChoosesHere::kByRoute, float scale = 1) {
    k::MatvecShape shape;
    shape.type = m.packed->type();
    shape.rows = static_cast<std::uint32_t>(m.packed->slice_rows());
    if (epilogue == k::Epilogue::kGated) shape.rows /= 2;
    shape.groups = m.packed->layout().groups;
    shape.epilogue = epilogue;
    shape.together = router.used;
    shape.biased = !biases.first.empty();
    if (shape.biased) shape.gate = k::Gate::kClamped;
    const std::uint32_t share = x.size() == count ? router.used : 1;
    k::MatvecVariant variant = k::expert_product(mapping, shape, router, share, count);
    if (chooses != k::ChoosesHere::kByRoute) k::choose_in_product(variant, router, scale, chooses);
    if (mapping.units && !real_units_) emulate_experts(variant, shape);
    const gpu::Buffer in = input(mapping, x);
    const std::size_t pairs = std::size_t{count} * router.used;
    const gpu::Buffer out = empty(pairs * shape.rows * 4);
    const gpu::Buffer counts = parameters(count);
    const k::RouteLayout layout = k::route_layout(router, count);
    k::ExpertPush push{};
    push.product.quants = m.memory.address() + m.packed->layout().quants;
    push.product.high = m.memory.address() + m.packed->layout().high;
    push.product.scales = m.memory.address() + m.packed->layout().scales;
    push.product.supers = m.memory.address() + m.packed->layout().supers;
    push.product.x = in.address();
    push.product.out_address = out.address();
    push.product.parameters = counts.address();
    push.product.rows = push.product.written_rows = push.product.out_stride = shape.rows;
    push.product.groups = shape.groups;
    push.product.x_stride = k::input_stride(mapping, m.packed->width());
    push.tiles = routes.address() + layout.tiles;
    push.list = routes.address() + layout.list;
    const gpu::Buffer first = buffer(std::span<const float>(biases.first)),
                      second = buffer(std::span<const float>(biases.second));
    k::FusedOperands operands{};
    operands.bias = first.address();
    operands.second_bias = second.address();
    const gpu::Buffer fused = buffer(std::span<const k::FusedOperands>(&operands, 1));
    push.product.fused = fused.address();
    run(variant.spec, push, k::most_tiles(router, count, variant.columns_per_workgroup),
        (shape.rows + variant.rows_per_workgroup - 1) / variant.rows_per_workgroup);
    const std::vector<float> all = read<float>(out, pairs * shape.rows);
    Columns made;
    for (std::size_t pair = 0; pair < pairs; ++pair)
      made.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(pair * shape.rows),
                        all.begin() + static_cast<std::ptrdiff_t>((pair + 1) * shape.rows));
    return made;
  }

  bool real_units_ = false;  // the device's own matrix units compute the units' products
};

// Returns a router's rows. Some are equal, so their logits are, and the router takes the lower
// index.
inline std::vector<float> router_rows(const k::RouterShape& router, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 0.1F);
  std::vector<float> rows(std::size_t{router.rows()} * kWidth);
  for (float& value : rows)
    value = normal(random);
  for (std::uint32_t expert = 1; expert < router.experts; expert += 3)
    std::copy_n(rows.begin() + expert * kWidth, kWidth, rows.begin() + (expert - 1) * kWidth);
  return rows;
}

}  // namespace bulkhead::forward
