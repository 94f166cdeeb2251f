// Compares the kernels of gated delta nets with float64. Their bits must be the same however
// positions are cut into steps.
#include "gpu/kernels/delta.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernel_harness.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

constexpr float kEpsilon = 1e-6F;
constexpr std::uint64_t kUnused = 12;  // floats at the end of a slot

struct Inputs {
  std::vector<float> mixed;  // [column][mixed_width]
  std::vector<float> taps, rates, bias, gain;
  std::vector<float> taps_bias, skip;  // only with StateRule::kSum
};

// Columns [first, first + count) of a sequence, which are its positions, and the slots they use.
struct Part {
  const Inputs* in = nullptr;
  std::uint32_t first = 0, count = 0;
  std::uint32_t from = 0, to = 0;
  std::uint32_t saved_after = 0, saved = 0;
  std::vector<std::uint32_t> drafts = {};
};

// Returns the floats from one slot to the next: the heads' states, the convolution's rows, and floats
// that nothing uses.
std::uint64_t slot_floats(const k::DeltaShape& shape) {
  return std::uint64_t{shape.value_width()} * shape.size + (shape.taps - 1) * shape.channels() +
         kUnused;
}

class DeltaKernels : public KernelTest {
 protected:
  DeltaKernels() : KernelTest(11) {}

  // Computes one step of these parts and returns the result as [column][value_width]. All parts
  // have the first one's weights.
  std::vector<float> step(const k::Mapping& mapping, const k::DeltaShape& shape,
                          const std::vector<Part>& parts, const gpu::Buffer& states);
  // The decays of channels are computed already.
  static Inputs with_decays(Inputs made, const k::DeltaShape& shape) {
    const std::size_t width = shape.mixed_width();
    for (std::size_t column = 0; column < made.mixed.size() / width; ++column) {
      float* const decays =
          made.mixed.data() + column * width + shape.channels() + shape.value_width();
      for (std::size_t i = 0; i < std::size_t{shape.value_heads} * shape.size; ++i)
        decays[i] = 1 / (1 + std::exp(-3 * decays[i]));
    }
    return made;
  }
  Inputs random_inputs(const k::DeltaShape& shape, std::uint32_t columns) {
    const bool sums = shape.rule == k::StateRule::kSum;
    Inputs made{random_floats(std::size_t{columns} * shape.mixed_width(), 1),
                random_floats(std::size_t{shape.channels()} * shape.taps, 0.5F),
                random_floats(shape.value_heads, 0.2F, -0.6F),
                random_floats(shape.value_heads, 1),
                random_floats(sums ? shape.value_width() : shape.size, 0.3F, 1),
                random_floats(sums ? shape.channels() : 0, 0.3F),
                random_floats(sums ? shape.value_heads : 0, 1)};
    if (shape.rule == k::StateRule::kChannels) return with_decays(std::move(made), shape);
    made.mixed[shape.mixed_width() - shape.value_heads] = 40;  // an alpha
    return made;
  }
};

std::vector<float> DeltaKernels::step(const k::Mapping& mapping, const k::DeltaShape& shape,
                                      const std::vector<Part>& parts, const gpu::Buffer& states) {
  std::vector<float> mixed;
  for (const Part& part : parts) {
    const auto at = part.in->mixed.begin();
    const std::ptrdiff_t width = shape.mixed_width();
    mixed.insert(mixed.end(), at + part.first * width, at + (part.first + part.count) * width);
  }
  const Runs runs = runs_of(parts);
  const std::uint32_t columns = runs.columns;
  const Inputs& in = *parts.front().in;
  const gpu::Buffer given = buffer(std::span<const float>(mixed)),
                    taps = buffer(std::span<const float>(in.taps)),
                    rates = buffer(std::span<const float>(in.rates)),
                    bias = buffer(std::span<const float>(in.bias)),
                    gain = buffer(std::span<const float>(in.gain)),
                    taps_bias = buffer(
                        std::span<const float>(in.taps_bias.empty() ? in.bias : in.taps_bias)),
                    skip = buffer(std::span<const float>(in.skip.empty() ? in.bias : in.skip)),
                    convolved = empty(std::uint64_t{columns} * shape.channels() * 4),
                    read_back = empty(std::uint64_t{columns} * shape.value_width() * 4);
  const std::uint32_t stride = k::input_stride(mapping, shape.value_width());
  const gpu::Buffer out = empty(std::uint64_t{columns} * stride * 4);
  k::DeltaPush push{};
  push.mixed = given.address();
  push.convolved = convolved.address();
  push.read = read_back.address();
  push.states = states.address();
  push.parameters = runs.parameters.address();
  push.runs = runs.list.address();
  push.column_runs = runs.of_columns.address();
  push.weights = taps.address();
  push.bias = in.taps_bias.empty() ? 0 : taps_bias.address();
  push.out_address = out.address();
  push.mixed_stride = shape.mixed_width();
  push.slot_floats = static_cast<std::uint32_t>(slot_floats(shape));
  push.out_stride = stride;
  push.padded_width = k::input_padded(mapping, shape.value_width());
  push.epsilon = kEpsilon;
  // One workgroup more than there are columns and runs.
  const k::DeltaKernel inputs = k::delta_inputs(mapping, shape),
                       output = k::delta_output(mapping, shape);
  run(inputs.spec, push, columns + 1, inputs.y);
  push.weights = rates.address();
  push.bias = bias.address();
  const k::DeltaScans scans = k::delta_scans(mapping, shape, columns);
  if (scans.few > 0) run(scans.few_long, push, scans.few, shape.value_heads, scans.z);
  run(scans.others, push, runs.count + 1, shape.value_heads, scans.z);
  push.weights = gain.address();
  push.bias = in.skip.empty() ? 0 : skip.address();
  run(output.spec, push, columns + 1, output.y);
  return read_input(mapping, out, columns, shape.value_width());
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double silu(double x) {
  return x * sigmoid(x);
}

// The result of a sequence from position 0 on: [column][value_width], and the state that it carries
// at the end.
struct Expected {
  std::vector<double> out;
  std::vector<double> state;  // [value head][value][key]
};
Expected mamba_reference(const k::DeltaShape& shape, const Inputs& in);
Expected reference(const k::DeltaShape& shape, const Inputs& in) {
  if (shape.rule == k::StateRule::kSum) return mamba_reference(shape, in);
  const std::size_t size = shape.size, channels = shape.channels(), width = shape.mixed_width();
  const std::size_t columns = in.mixed.size() / width;
  Expected made;
  made.state.resize(shape.value_heads * size * size);
  for (std::size_t t = 0; t < columns; ++t) {
    std::vector<double> x(channels);
    for (std::size_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (std::size_t tap = 0; tap < shape.taps; ++tap) {
        if (t + tap + 1 < shape.taps) continue;
        sum += double{in.taps[c * shape.taps + tap]} *
               in.mixed[(t + tap + 1 - shape.taps) * width + c];
      }
      x[c] = silu(sum);
    }
    for (std::size_t head = 0; head < 2 * shape.key_heads; ++head) {
      double squares = kEpsilon;
      for (std::size_t i = 0; i < size; ++i)
        squares += x[head * size + i] * x[head * size + i];
      const double scale = head < shape.key_heads ? std::sqrt(static_cast<double>(size)) : 1;
      for (std::size_t i = 0; i < size; ++i)
        x[head * size + i] /= std::sqrt(squares) * scale;
    }
    const float* const row = in.mixed.data() + t * width;
    for (std::size_t head = 0; head < shape.value_heads; ++head) {
      const std::size_t key_head =
          shape.neighbours ? head / (shape.value_heads / shape.key_heads) : head % shape.key_heads;
      const double* const q = x.data() + key_head * size;
      const double* const key = x.data() + (shape.key_heads + key_head) * size;
      const float* const rest = row + channels + shape.value_width();
      const bool by_channels = shape.rule == k::StateRule::kChannels;
      const double beta = sigmoid(rest[(by_channels ? shape.value_heads * size : 0) + head]);
      const double alpha = double{rest[shape.value_heads + head]} + in.bias[head];
      const double decay = std::exp(in.rates[head] * std::log1p(std::exp(alpha)));
      std::vector<double> read(size);
      double squares = 0;
      for (std::size_t v = 0; v < size; ++v) {
        double* const state = made.state.data() + (head * size + v) * size;
        double known = 0;
        for (std::size_t i = 0; i < size; ++i)
          known += (state[i] *= by_channels ? rest[head * size + i] : decay) * key[i];
        const double learnt = beta * (x[(2 * shape.key_heads + head) * size + v] - known);
        for (std::size_t i = 0; i < size; ++i)
          read[v] += (state[i] += key[i] * learnt) * q[i];
        squares += read[v] * read[v];
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(size) + kEpsilon);
      for (std::size_t v = 0; v < size; ++v) {
        const double gate = row[channels + head * size + v];
        made.out.push_back(read[v] * scale * in.gain[v] *
                           (by_channels ? sigmoid(gate) : silu(gate)));
      }
    }
  }
  return made;
}

// Mamba-2 as its paper has it: x, B and C are convolved; a head's state decays and learns dt * x B^T, and is read with
// C; gates multiply before the norm of each group.
Expected mamba_reference(const k::DeltaShape& shape, const Inputs& in) {
  const std::size_t inner = shape.value_width(), groups = shape.key_heads, size = shape.size;
  const std::size_t channels = shape.channels(), width = shape.mixed_width();
  const std::size_t columns = in.mixed.size() / width, heads = shape.value_heads;
  Expected made;
  made.state.resize(inner * size);
  for (std::size_t t = 0; t < columns; ++t) {
    const float* const row = in.mixed.data() + t * width;
    std::vector<double> all(channels);
    for (std::size_t c = 0; c < channels; ++c) {
      double sum = in.taps_bias[c];
      for (std::size_t tap = 0; tap < shape.taps; ++tap) {
        if (t + tap + 1 < shape.taps) continue;
        sum += double{in.taps[c * shape.taps + tap]} *
               in.mixed[(t + tap + 1 - shape.taps) * width + c];
      }
      all[c] = silu(sum);
    }
    std::vector<double> gated(inner);
    for (std::size_t i = 0; i < inner; ++i) {
      const std::size_t head = i / shape.value_size, group = head / (heads / groups);
      const double* const b = all.data() + inner + group * size;
      const double* const c = all.data() + inner + (groups + group) * size;
      const double dt = std::log1p(std::exp(double{row[channels + inner + head]} + in.bias[head]));
      double read = in.skip[head] * all[i];
      for (std::size_t n = 0; n < size; ++n) {
        double& state = made.state[i * size + n];
        state = state * std::exp(in.rates[head] * dt) + dt * all[i] * b[n];
        read += state * c[n];
      }
      gated[i] = read * silu(row[channels + i]);
    }
    for (std::size_t i = 0; i < inner; ++i) {
      const std::size_t of_group = inner / groups, first = i / of_group * of_group;
      double squares = 0;
      for (std::size_t j = first; j < first + of_group; ++j)
        squares += gated[j] * gated[j];
      made.out.push_back(!shape.norms
                             ? gated[i]
                             : gated[i] * in.gain[i] /
                                   std::sqrt(squares / static_cast<double>(of_group) + kEpsilon));
    }
  }
  return made;
}

const k::DeltaShape kShapes[] = {{64, 2, 6, 4, false, 64},
                                 {128, 1, 2, 4, false, 128},
                                 {48, 2, 4, 2, true, 48},
                                 {128, 2, 6, 4, true, 64, k::StateRule::kSum},
                                 {16, 1, 4, 4, true, 80, k::StateRule::kSum},
                                 {16, 1, 4, 4, true, 80, k::StateRule::kSum, false},
                                 {64, 3, 3, 4, true, 64, k::StateRule::kChannels},
                                 {128, 2, 2, 4, true, 128, k::StateRule::kChannels}};

// Returns the first shape with that rule.
const k::DeltaShape& shape_with(k::StateRule rule) {
  return *std::ranges::find(kShapes, rule, &k::DeltaShape::rule);
}

TEST_F(DeltaKernels, AreTheDoubleEvaluations) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const k::DeltaShape& shape : kShapes) {
      const Inputs in = random_inputs(shape, 37);
      const Expected want = reference(shape, in);
      const gpu::Buffer states = empty(2 * slot_floats(shape) * 4);
      const auto got = step(mapping, shape, {{&in, 0, 37, 0, 1}}, states);
      ASSERT_EQ(got.size(), want.out.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want.out[i], 2e-4 * (1 + std::abs(want.out[i])))
            << name << " size " << shape.size << " entry " << i;
      const auto all = read<float>(states, 2 * slot_floats(shape));
      const float* const state = all.data() + slot_floats(shape);
      for (std::size_t i = 0; i < want.state.size(); ++i)
        ASSERT_NEAR(state[i], want.state[i], 1e-5 * (1 + std::abs(want.state[i]))) << name;
    }
  }
}

// The prompt is computed in one step; position by position; in steps of different widths beside another
// sequence; and from a state that was saved in the middle of a step.
TEST_F(DeltaKernels, CutsOfAPromptDoNotChangeABit) {
  std::vector<std::tuple<std::string, k::Mapping, k::DeltaShape>> cases;
  for (const auto& [name, mapping] : test_mappings(device())) {
    cases.emplace_back(name, mapping, shape_with(k::StateRule::kDelta));
    cases.emplace_back(std::string(name) + " Mamba-2", mapping, shape_with(k::StateRule::kSum));
    cases.emplace_back(std::string(name) + " channels", mapping,
                       shape_with(k::StateRule::kChannels));
  }
  for (const auto& [name, mapping, shape] : cases) {
    const std::uint64_t floats = slot_floats(shape);
    const Inputs in = random_inputs(shape, 23);
    Inputs other = random_inputs(shape, 23);
    other.taps = in.taps;
    other.rates = in.rates;
    other.bias = in.bias;
    other.gain = in.gain;
    other.taps_bias = in.taps_bias;
    other.skip = in.skip;
    const gpu::Buffer states = empty(4 * floats * 4);
    const auto whole = step(mapping, shape, {{&in, 0, 23, 0, 0, 9, 3}}, states);
    const auto ends = read<float>(states, 4 * floats);
    const std::size_t state_bytes = (floats - kUnused) * 4;
    const auto expect_end = [&](std::uint32_t slot, const char* what) {
      const auto now = read<float>(states, 4 * floats);
      EXPECT_EQ(std::memcmp(now.data() + slot * floats, ends.data(), state_bytes), 0)
          << name << ": the state after " << what;
    };
    const auto expect_same = [&](const std::vector<float>& got, std::size_t first,
                                 const char* what) {
      const std::size_t at = first * shape.value_width();
      ASSERT_LE(at + got.size(), whole.size());
      EXPECT_EQ(std::memcmp(got.data(), whole.data() + at, got.size() * 4), 0)
          << name << ": " << what << " from " << first;
    };
    for (std::uint32_t i = 0; i < 23; ++i)
      expect_same(step(mapping, shape, {{&in, i, 1, 1, 1}}, states), i, "one by one");
    expect_end(1, "one by one");
    std::uint32_t first = 0;
    for (const std::uint32_t count : {2U, 5U, 1U, 15U}) {
      const std::uint32_t slot = first == 0 ? 2 : first % 2 + 1;  // 'from' and 'to' differ
      const std::uint32_t next = (first + count) % 2 + 1;
      const auto got = step(
          mapping, shape, {{&other, first, count, 0, 0}, {&in, first, count, slot, next}}, states);
      expect_same({got.begin() + count * shape.value_width(), got.end()}, first, "in company");
      first += count;
    }
    expect_end(first % 2 + 1, "in company");
    expect_same(step(mapping, shape, {{&in, 9, 14, 3, 1}}, states), 9, "from what was saved");
    expect_end(1, "from what was saved");
  }
}

// In a wide step, another dispatch takes the long runs if there are only a few of them. The test has one long run, as
// many as that dispatch takes, and one more, each beside short runs and with a state that is saved in the middle of a
// run.
TEST_F(DeltaKernels, LongRunsOfAWideStepHaveTheBitsOfNarrowSteps) {
  constexpr std::uint32_t kColumns = 19, kWide = 70;
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const k::StateRule rule :
         {k::StateRule::kDelta, k::StateRule::kSum, k::StateRule::kChannels}) {
      const k::DeltaShape& shape = shape_with(rule);
      const Inputs in = random_inputs(shape, kWide);
      const std::uint32_t few = k::delta_scans(mapping, shape, kWide).few;
      EXPECT_EQ(few > 0, !mapping.rows) << name;
      const std::uint64_t floats = slot_floats(shape);
      const gpu::Buffer states = empty((few + 32) * floats * 4);
      std::vector<float> whole;
      for (std::uint32_t first = 0; first < kWide; first += 10) {
        const auto part = step(mapping, shape, {{&in, first, 10, 0, 0}}, states);
        whole.insert(whole.end(), part.begin(), part.end());
      }
      const auto ends = read<float>(states, floats);
      const auto expect_begin = [&](const float* got, std::uint32_t columns, const char* what) {
        EXPECT_EQ(std::memcmp(got, whole.data(), std::size_t{columns} * shape.value_width() * 4), 0)
            << name << ": " << what << ", size " << shape.size;
      };
      const auto alone = step(mapping, shape, {{&in, 0, kWide, 1, 1, 41, 2}}, states);
      expect_begin(alone.data(), kWide, "alone");
      const auto now = read<float>(states, 2 * floats);
      const std::size_t state_bytes = std::size_t{shape.value_width()} * shape.size * 4;
      EXPECT_EQ(std::memcmp(now.data() + floats, ends.data(), state_bytes), 0) << name;
      const auto behind = step(mapping, shape, {{&in, 41, kWide - 41, 2, 3}}, states);
      EXPECT_EQ(std::memcmp(behind.data(), whole.data() + std::size_t{41} * shape.value_width(),
                            behind.size() * 4),
                0)
          << name;
      for (const std::uint32_t long_runs : {few, few + 1}) {
        std::vector<Part> parts(long_runs);
        for (std::uint32_t i = 0; i < long_runs; ++i)
          parts[i] = {&in, 0, kColumns, i, i};
        for (std::uint32_t columns = long_runs * kColumns, i = 0; i < 3 || columns < kWide;
             ++i, columns += 3) {
          const auto slot = static_cast<std::uint32_t>(parts.size());
          parts.push_back({&in, 0, 3, slot, slot});
        }
        const auto got = step(mapping, shape, parts, states);
        std::size_t at = 0;
        for (const Part& part : parts) {
          expect_begin(got.data() + at, part.count, "beside others");
          at += std::size_t{part.count} * shape.value_width();
        }
      }
    }
  }
}

// The states after each draft are those of steps of one column. The slot `to` has the states before all drafts; `to`
// may be the slot that the run began with, or another slot. In a wide step, another dispatch computes the long runs.
TEST_F(DeltaKernels, TheSlotOfADraftGetsTheStatesAfterIt) {
  constexpr std::uint32_t kFirst = 5, kBegun = 20, kOther = 21, kSaved = 22, kSlots = 48;
  struct Case {
    std::uint32_t sure = 1, drafts = 0, to = kBegun, saved_after = 0, wide = 0;
  };
  constexpr Case kCases[] = {
      {1, 3}, {1, 1, kOther}, {3, 2, kOther, 2}, {2, 4, kBegun, 1}, {2, 15, kBegun, 2, 70}};
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const k::StateRule rule :
         {k::StateRule::kDelta, k::StateRule::kSum, k::StateRule::kChannels}) {
      const k::DeltaShape& shape = shape_with(rule);
      const std::uint64_t floats = slot_floats(shape);
      const Inputs in = random_inputs(shape, kFirst + 17);
      const gpu::Buffer states = empty(kSlots * floats * 4);
      std::vector<std::vector<float>> after{{}};
      std::vector<float> whole;
      for (std::uint32_t i = 0; i < kFirst + 17; ++i) {
        const auto part = step(mapping, shape, {{&in, i, 1, 0, 0}}, states);
        whole.insert(whole.end(), part.begin(), part.end());
        after.push_back(read<float>(states, floats));
      }
      for (const Case& each : kCases) {
        step(mapping, shape, {{&in, 0, kFirst, 0, kBegun}}, states);
        Part drafted{&in,   kFirst, each.sure + each.drafts, kBegun, each.to, each.saved_after,
                     kSaved};
        for (std::uint32_t i = 0; i < each.drafts; ++i)
          drafted.drafts.push_back(2 + i);
        std::vector<Part> parts{drafted};
        for (std::uint32_t columns = drafted.count, slot = kSaved + 1; columns < each.wide;
             columns += 3, ++slot)
          parts.push_back({&in, 0, 3, slot, slot});
        const auto got = step(mapping, shape, parts, states);
        EXPECT_EQ(std::memcmp(got.data(), whole.data() + kFirst * shape.value_width(),
                              std::size_t{drafted.count} * shape.value_width() * 4),
                  0)
            << name;
        const auto now = read<float>(states, kSlots * floats);
        const auto expect_states = [&](std::uint32_t slot, std::uint32_t columns) {
          EXPECT_EQ(std::memcmp(now.data() + slot * floats, after[kFirst + columns].data(),
                                (floats - kUnused) * 4),
                    0)
              << name << ": slot " << slot << " after " << columns << " of " << drafted.count;
        };
        expect_states(each.to, each.sure);
        if (each.to != kBegun) expect_states(kBegun, 0);
        if (each.saved_after > 0) expect_states(kSaved, each.saved_after);
        for (std::uint32_t i = 0; i < each.drafts; ++i)
          expect_states(2 + i, each.sure + i + 1);
      }
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward
