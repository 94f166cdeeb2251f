// Norm, element-wise product and the greedy choice against float64.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "gpu/kernels/kernel_row.hpp"
#include "kernel_harness.hpp"
#include "reference.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

// A norm's result is a product's input, or a hidden state, which is plain floats under every
// mapping.
struct TriedNorm {
  std::string name;
  k::Mapping mapping;
  bool hidden;

  k::InputForm form() const { return hidden ? k::InputForm::kRows : mapping.input_form(); }
  std::uint32_t stride(std::uint32_t width) const {
    return hidden ? width : k::input_stride(mapping, width);
  }
  std::uint32_t padded(std::uint32_t width) const {
    return hidden ? width : (width + 31) / 32 * 32;
  }
  std::uint32_t place(std::uint32_t i) const { return hidden ? i : place_in_input(mapping, i); }
};
std::vector<TriedNorm> tried_norms(const gpu::Device& device) {
  std::vector<TriedNorm> tried;
  for (const auto& [name, mapping] : test_mappings(device)) {
    tried.push_back({name, mapping, false});
    tried.push_back({std::string(name) + ", hidden", mapping, true});
  }
  k::Mapping units = k::lanes_mapping(device.info());
  units.units = true;
  tried.push_back({"units, hidden", units, true});
  return tried;
}

class SmallKernels : public KernelTest {
 protected:
  SmallKernels() : KernelTest(7) {}

  // Returns what an operation with the base model::Entrywise makes of two columns, which are the halves of `values`.
  // `push` has the numbers of the operation's function.
  template <typename Kernel>
  std::vector<float> of_each_entry(const k::Mapping& mapping, const std::vector<float>& values,
                                   typename Kernel::Push push) {
    const auto width = static_cast<std::uint32_t>(values.size() / 2);
    const std::uint32_t stride = k::input_stride(mapping, width);
    const gpu::Buffer in = upload(values), counts = parameters(2),
                      out = empty(std::uint64_t{2} * stride * 4);
    push.in_address = in.address();
    push.out_address = out.address();
    push.parameters = counts.address();
    push.width = push.in_stride = width;
    push.out_stride = stride;
    push.padded_width = k::input_padded(mapping, width);
    typename Kernel::Constants constants;
    constants.invocations = mapping.wide_invocations;
    constants.form = static_cast<std::uint32_t>(mapping.input_form());
    // One workgroup more than there are columns.
    run(k::kernel<Kernel>(constants), push, 3);
    return read_input(mapping, out, 2, width);
  }
};

TEST_F(SmallKernels, NormOfListedColumns) {
  for (const TriedNorm& tried : tried_norms(device())) {
    for (const std::uint32_t width : {6U, 320U, 1100U, 1101U}) {
      const auto x = random_floats(4 * width, 2), gain = random_floats(width, 1);
      const std::vector<std::uint32_t> list{3, 0};
      const gpu::Buffer in = buffer(std::span<const float>(x)),
                        gains = buffer(std::span<const float>(gain)),
                        which = buffer(std::span<const std::uint32_t>(list)),
                        counts = parameters(2);
      const std::uint32_t stride = tried.stride(width);
      const gpu::Buffer out = empty(2 * stride * 4);
      k::RmsNormPush push{};
      push.in_address = in.address();
      push.gain = gains.address();
      push.out_address = out.address();
      push.parameters = counts.address();
      push.list = which.address();
      push.width = width;
      push.in_stride = width;
      push.out_stride = stride;
      push.padded_width = tried.padded(width);
      push.count_word = k::kOutputCountWord;
      push.epsilon = 1e-5F;
      run(k::rms_norm(tried.mapping, k::NormMakes::kNormed, tried.form()), push, 3);
      const auto got = read<float>(out, 2 * stride);
      for (std::size_t c = 0; c < list.size(); ++c) {
        double squares = 0;
        for (std::uint32_t i = 0; i < width; ++i)
          squares += std::pow(x[list[c] * width + i], 2.0);
        const double scale = 1 / std::sqrt(squares / width + 1e-5);
        for (std::uint32_t i = 0; i < push.padded_width; ++i) {
          const double want = i < width ? x[list[c] * width + i] * scale * gain[i] : 0;
          ASSERT_NEAR(got[c * stride + tried.place(i)], want, 1e-5)
              << tried.name << " width " << width << " entry " << i;
        }
      }
    }
  }
}

TEST_F(SmallKernels, LayerNormOfListedColumns) {
  for (const TriedNorm& tried : tried_norms(device())) {
    for (const std::uint32_t width : {6U, 320U, 1100U, 1101U}) {
      auto x = random_floats(4 * width, 2);
      for (float& value : x)
        value += 5;  // a mean to be taken away
      const auto gain = random_floats(width, 1), bias = random_floats(width, 1);
      const std::vector<std::uint32_t> list{3, 0};
      const gpu::Buffer in = buffer(std::span<const float>(x)),
                        gains = buffer(std::span<const float>(gain)),
                        biases = buffer(std::span<const float>(bias)),
                        which = buffer(std::span<const std::uint32_t>(list)),
                        counts = parameters(2);
      const std::uint32_t stride = tried.stride(width);
      const gpu::Buffer out = empty(2 * stride * 4);
      k::LayerNormPush push{};
      push.norm.in_address = in.address();
      push.norm.gain = gains.address();
      push.norm.out_address = out.address();
      push.norm.parameters = counts.address();
      push.norm.list = which.address();
      push.norm.width = push.norm.in_stride = width;
      push.norm.out_stride = stride;
      push.norm.padded_width = tried.padded(width);
      push.norm.count_word = k::kOutputCountWord;
      push.norm.epsilon = 1e-5F;
      push.bias = biases.address();
      run(k::layer_norm(tried.mapping, tried.form()), push, 3);
      const auto got = read<float>(out, 2 * stride);
      for (std::size_t c = 0; c < list.size(); ++c) {
        double mean = 0, squares = 0;
        for (std::uint32_t i = 0; i < width; ++i)
          mean += static_cast<double>(x[list[c] * width + i]) / width;
        for (std::uint32_t i = 0; i < width; ++i)
          squares += std::pow(static_cast<double>(x[list[c] * width + i]) - mean, 2.0);
        const double scale = 1 / std::sqrt(squares / width + 1e-5);
        for (std::uint32_t i = 0; i < push.norm.padded_width; ++i) {
          const double apart = i < width ? static_cast<double>(x[list[c] * width + i]) - mean : 0;
          const double want = i < width ? apart * scale * static_cast<double>(gain[i]) +
                                              static_cast<double>(bias[i])
                                        : 0;
          ASSERT_NEAR(got[c * stride + tried.place(i)], want, 2e-5)
              << tried.name << " width " << width << " entry " << i;
        }
      }
    }
  }
}

TEST_F(SmallKernels, GatedProduct) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const k::Gate function : reference::kGates) {
      const std::uint32_t width = 333;
      auto gate = random_floats(2 * width, 3);
      auto up = random_floats(2 * width, 1);
      up[2] = 30;  // beyond the limits of some functions
      up[3] = -30;
      gate[0] = 200;  // the exponential leaves a float's range on both sides
      gate[1] = -200;
      const gpu::Buffer gates = buffer(std::span<const float>(gate)),
                        ups = buffer(std::span<const float>(up)), counts = parameters(2);
      const std::uint32_t stride = k::input_stride(mapping, width);
      const gpu::Buffer out = empty(2 * stride * 4);
      k::GatedProductPush push{};
      push.gate = gates.address();
      push.up = ups.address();
      push.out_address = out.address();
      push.parameters = counts.address();
      push.width = width;
      push.in_stride = push.up_stride = width;
      push.out_stride = stride;
      push.padded_width = 352;
      run(k::gated_product(mapping, function), push, 2);
      const auto got = read<float>(out, 2 * stride);
      for (std::size_t c = 0; c < 2; ++c) {
        for (std::uint32_t i = 0; i < 352; ++i) {
          const double want =
              i < width ? reference::gated(function, gate[c * width + i], up[c * width + i]) : 0;
          ASSERT_NEAR(got[c * stride + place_in_input(mapping, i)], want,
                      1e-5 * (1 + std::abs(want)))
              << name << ' ' << i;
        }
      }
    }
  }
}

TEST_F(SmallKernels, SquaredRelu) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    auto values = random_floats(666, 3);
    values[0] = -0.0F;
    values[1] = 1e15F;
    values[2] = -1e30F;
    const std::vector<float> got = of_each_entry<k::SquaredReluKernel>(mapping, values, {});
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double positive = std::max<double>(values[i], 0);
      ASSERT_FLOAT_EQ(got[i], static_cast<float>(positive * positive)) << name << ' ' << i;
    }
  }
}

TEST_F(SmallKernels, Xielu) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    auto values = random_floats(1000, 2);
    // The values are around zero, where the function bends, and where the kernel changes its
    // method.
    const float places[] = {0.0F, -0.0F, 1e-30F, -1e-30F, -1e-7F,  -1e-6F, -1e-3F,
                            0.1F, -0.1F, -0.5F,  -0.499F, -0.501F, -90.0F, 1e4F};
    std::ranges::copy(places, values.begin());
    k::XieluPush push{};
    push.positive = 0.8F;
    push.negative = 1.3F;
    push.beta = 0.5F;
    push.least = -1e-6F;
    const std::vector<float> got = of_each_entry<k::XieluKernel>(mapping, values, push);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double x = values[i];
      const double below =
          double{push.negative} * (std::expm1(std::min(x, double{push.least})) - x);
      const double want = (x > 0 ? double{push.positive} * x * x : below) + 0.5 * x;
      ASSERT_NEAR(got[i], want, 3e-7 * (std::abs(x) + std::abs(want))) << name << ' ' << x;
    }
  }
}

// Workgroups beyond the columns and heads that there are do nothing.
TEST_F(SmallKernels, HeadGates) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    constexpr std::uint32_t kSize = 66, kWidth = 5 * kSize, kGateStride = 7;
    const auto gates = random_floats(2 * kGateStride, 3), values = random_floats(2 * kWidth, 2);
    const std::uint32_t stride = k::input_stride(mapping, kWidth);
    const gpu::Buffer of_heads = buffer(std::span<const float>(gates)),
                      in = buffer(std::span<const float>(values)), counts = parameters(2),
                      out = empty(std::uint64_t{2} * stride * 4);
    k::HeadGatesPush push{};
    push.gates = of_heads.address();
    push.values = in.address();
    push.out_address = out.address();
    push.parameters = counts.address();
    push.width = push.in_stride = kWidth;
    push.gate_stride = kGateStride;
    push.out_stride = stride;
    push.padded_width = k::input_padded(mapping, kWidth);
    push.head_size = kSize;
    k::HeadGatesKernel::Constants constants;
    constants.invocations = mapping.wide_invocations;
    constants.form = static_cast<std::uint32_t>(mapping.input_form());
    run(k::kernel<k::HeadGatesKernel>(constants), push, 3);
    const auto got = read_input(mapping, out, 2, kWidth);
    for (std::uint32_t i = 0; i < 2 * kWidth; ++i) {
      const double gate = gates[i / kWidth * kGateStride + i % kWidth / kSize];
      ASSERT_NEAR(got[i], values[i] / (1 + std::exp(-gate)), 1e-6 * (1 + std::abs(values[i])))
          << name << ' ' << i;
    }
  }
}

TEST_F(SmallKernels, HeadNorms) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    constexpr std::uint32_t kHeads = 3, kSize = 100, kFirst = 7, kStride = 320;
    const auto values = random_floats(2 * kStride, 2, 5), gains = random_floats(kHeads * kSize, 1);
    const gpu::Buffer rows = buffer(std::span<const float>(values)),
                      factors = buffer(std::span<const float>(gains)), counts = parameters(2);
    k::HeadNormsPush push{};
    push.values = rows.address();
    push.gains = factors.address();
    push.parameters = counts.address();
    push.first = kFirst;
    push.size = kSize;
    push.stride = kStride;
    push.epsilon = 1e-5F;
    k::HeadNormsKernel::Constants constants;
    constants.invocations = mapping.wide_invocations;
    run(k::kernel<k::HeadNormsKernel>(constants), push, 3, kHeads);
    const auto got = read<float>(rows, 2 * kStride);
    for (std::uint32_t i = 0; i < 2 * kStride; ++i) {
      const std::uint32_t entry = i % kStride - kFirst, head = entry / kSize;
      if (i % kStride < kFirst || head >= kHeads) {
        ASSERT_EQ(got[i], values[i]) << name << ' ' << i;
        continue;
      }
      const float* const of_head = values.data() + i - entry % kSize;
      const double mean = std::accumulate(of_head, of_head + kSize, 0.0) / kSize;
      double squares = 0;
      for (std::uint32_t j = 0; j < kSize; ++j)
        squares += (of_head[j] - mean) * (of_head[j] - mean);
      const double want = (values[i] - mean) / std::sqrt(squares / kSize + 1e-5) * gains[entry];
      ASSERT_NEAR(got[i], want, 2e-5) << name << ' ' << i;
    }
  }
}

TEST_F(SmallKernels, SoftCap) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    const std::uint32_t width = 5000, stride = 5003;
    auto logits = random_floats(2 * stride, 40);
    logits[0] = 1e6F;
    logits[1] = -1e6F;
    const gpu::Buffer rows = buffer(std::span<const float>(logits)), counts = parameters(2);
    k::SoftCapPush push{};
    push.rows = rows.address();
    push.parameters = counts.address();
    push.width = width;
    push.stride = stride;
    push.count_word = k::kOutputCountWord;
    push.cap = 30;
    run(k::soft_cap(mapping), push, 3, 3);
    const auto got = read<float>(rows, 2 * stride);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double want = i % stride < width ? 30 * std::tanh(logits[i] / 30.0) : logits[i];
      ASSERT_NEAR(got[i], want, 2e-5) << name << ' ' << i;
    }
  }
}

TEST_F(SmallKernels, GreedyTakesTheLowerOfTiesAndGivesItsProbability) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const std::uint32_t vocabulary : {5U, 2048U, 10007U}) {
      auto logits = random_floats(3 * vocabulary, 3);
      const std::uint32_t low = vocabulary / 3, high = vocabulary - 1;
      logits[vocabulary + low] = logits[vocabulary + high] = 40;  // a tie in the second row
      const gpu::Buffer in = buffer(std::span<const float>(logits)), counts = parameters(3);
      k::GreedyPush push{};
      push.chunks = (vocabulary + k::kGreedyChunk - 1) / k::kGreedyChunk;
      const gpu::Buffer partials = empty(3 * push.chunks * 16), out = empty(3 * 8);
      push.logits = in.address();
      push.partials = partials.address();
      push.results = out.address();
      push.parameters = counts.address();
      push.vocabulary = vocabulary;
      push.stride = vocabulary;
      run(k::greedy(mapping, k::GreedyPass::kChunks), push, 3, push.chunks);
      run(k::greedy(mapping, k::GreedyPass::kAll), push, 3);
      const auto ids = read<std::uint32_t>(out, 6);
      const auto floats = read<float>(out, 6);
      for (std::uint32_t row = 0; row < 3; ++row) {
        const float* const from = &logits[row * vocabulary];
        const auto best =
            static_cast<std::uint32_t>(std::max_element(from, from + vocabulary) - from);
        double sum = 0;
        for (std::uint32_t i = 0; i < vocabulary; ++i)
          sum += std::exp(double{from[i]} - from[best]);
        ASSERT_EQ(ids[row * 2], best) << name << " of " << vocabulary << " row " << row;
        ASSERT_NEAR(floats[row * 2 + 1], -std::log(sum), 2e-5)
            << name << " of " << vocabulary << " row " << row;
      }
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward
