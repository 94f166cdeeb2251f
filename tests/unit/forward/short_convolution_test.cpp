// Compares the kernel of gated short convolutions with float64. Its bits must be the same however positions are
// cut into steps.
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "gpu/kernels/kernel_row.hpp"
#include "kernel_harness.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

struct Shape {
  std::uint32_t width = 0, taps = 0;
  std::uint32_t carried() const { return (taps - 1) * width; }
  std::uint32_t slot_floats() const { return carried() + 7; }
};

struct Sequence {
  std::vector<float> bcx;  // [column][3 * width]
};
// See KernelTest::runs_of.
struct ConvolutionPart {
  const Sequence* of = nullptr;
  std::uint32_t first = 0, count = 0;
  std::uint32_t from = 0, to = 0;
  std::uint32_t saved_after = 0, saved = 0;
  std::vector<std::uint32_t> drafts = {};
};

class ShortConvolutions : public KernelTest {
 protected:
  ShortConvolutions() : KernelTest(5) {}

  Sequence random_sequence(const Shape& shape, std::uint32_t columns) {
    return {random_floats(std::size_t{columns} * 3 * shape.width)};
  }
  // Computes one step of these parts and returns the result as [column][width].
  std::vector<float> step(const k::Mapping& mapping, const Shape& shape,
                          const std::vector<float>& taps, const std::vector<ConvolutionPart>& parts,
                          const gpu::Buffer& states);
};

std::vector<float> ShortConvolutions::step(const k::Mapping& mapping, const Shape& shape,
                                           const std::vector<float>& taps,
                                           const std::vector<ConvolutionPart>& parts,
                                           const gpu::Buffer& states) {
  std::vector<float> rows;
  for (const ConvolutionPart& part : parts) {
    const std::ptrdiff_t width = 3 * std::ptrdiff_t{shape.width};
    const auto at = part.of->bcx.begin() + part.first * width;
    rows.insert(rows.end(), at, at + part.count * width);
  }
  const Runs runs = runs_of(parts);
  const std::uint32_t stride = k::input_stride(mapping, shape.width);
  const gpu::Buffer given = buffer(std::span<const float>(rows)),
                    weights = buffer(std::span<const float>(taps)),
                    out = empty(std::uint64_t{runs.columns} * stride * 4);
  k::ShortConvolutionPush push{};
  push.in_address = given.address();
  push.out_address = out.address();
  push.taps = weights.address();
  push.states = states.address();
  push.parameters = runs.parameters.address();
  push.runs = runs.list.address();
  push.column_runs = runs.of_columns.address();
  push.width = shape.width;
  push.in_stride = 3 * shape.width;
  push.out_stride = stride;
  push.padded_width = k::input_padded(mapping, shape.width);
  push.slot_floats = shape.slot_floats();
  k::ShortConvolutionConstants constants;
  constants.invocations = mapping.wide_invocations;
  constants.form = static_cast<std::uint32_t>(mapping.input_form());
  constants.taps = shape.taps;
  // One workgroup more than there are columns.
  run(k::kernel<k::ShortConvolutionKernel>(constants), push, runs.columns + 1,
      (push.padded_width + constants.invocations - 1) / constants.invocations);
  return read_input(mapping, out, runs.columns, shape.width);
}

// The convolution is one entry of the sequence's products b * x by another; c multiplies its results.
std::vector<double> convolution_in_double(const Shape& shape, const std::vector<float>& taps,
                                          const Sequence& of) {
  const std::size_t width = shape.width, columns = of.bcx.size() / width / 3;
  std::vector<double> made;
  for (std::size_t t = 0; t < columns; ++t) {
    for (std::size_t i = 0; i < width; ++i) {
      double sum = 0;
      for (std::size_t back = 0; back < shape.taps && back <= t; ++back) {
        const float* const row = of.bcx.data() + (t - back) * 3 * width;
        sum += double{taps[i * shape.taps + shape.taps - 1 - back]} * row[i] * row[2 * width + i];
      }
      made.push_back(sum * of.bcx[(t * 3 + 1) * width + i]);
    }
  }
  return made;
}

constexpr Shape kConvolutionShapes[] = {{64, 3}, {500, 3}, {96, 2}, {32, 6}};

TEST_F(ShortConvolutions, AreTheDoubleEvaluations) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const Shape& shape : kConvolutionShapes) {
      const Sequence of = random_sequence(shape, 17);
      const std::vector<float> taps = random_floats(std::size_t{shape.width} * shape.taps);
      const std::vector<double> want = convolution_in_double(shape, taps, of);
      const gpu::Buffer states = empty(2 * shape.slot_floats() * 4);
      const auto got = step(mapping, shape, taps, {{&of, 0, 17, 0, 1}}, states);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-5 * (1 + std::abs(want[i]))) << name << " entry " << i;
    }
  }
}

// The prompt is computed in one step; position by position; in steps of different widths beside another sequence,
// some of them shorter than the convolution; and from a state that was saved in the middle of a step.
TEST_F(ShortConvolutions, CutsOfAPromptDoNotChangeABit) {
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const Shape& shape : {kConvolutionShapes[0], kConvolutionShapes[3]}) {
      const std::uint32_t width = shape.width, floats = shape.slot_floats();
      const Sequence of = random_sequence(shape, 23), other = random_sequence(shape, 23);
      const std::vector<float> taps = random_floats(std::size_t{width} * shape.taps);
      const gpu::Buffer states = empty(4 * floats * 4);
      const auto run_parts = [&](const std::vector<ConvolutionPart>& parts) {
        return step(mapping, shape, taps, parts, states);
      };
      const auto whole = run_parts({{&of, 0, 23, 0, 0, 9, 3}});
      const auto ends = read<float>(states, floats);
      const auto expect_end = [&](std::uint32_t slot, const char* what) {
        const auto now = read<float>(states, 4 * floats);
        EXPECT_EQ(
            std::memcmp(now.data() + std::size_t{slot} * floats, ends.data(), shape.carried() * 4),
            0)
            << name << ": what is carried after " << what;
      };
      const auto expect_same = [&](std::span<const float> got, std::size_t first,
                                   const char* what) {
        ASSERT_LE(first * width + got.size(), whole.size());
        EXPECT_EQ(std::memcmp(got.data(), whole.data() + first * width, got.size_bytes()), 0)
            << name << ": " << what << " from " << first;
      };
      for (std::uint32_t i = 0; i < 23; ++i)
        expect_same(run_parts({{&of, i, 1, 1, 1}}), i, "one by one");
      expect_end(1, "one by one");
      std::uint32_t first = 0;
      for (const std::uint32_t count : {2U, 5U, 1U, 3U, 12U}) {
        const std::uint32_t slot = first == 0 ? 2 : first % 2 + 1;  // 'from' and 'to' differ
        const std::uint32_t next = (first + count) % 2 + 1;
        const auto got = run_parts({{&other, first, count, 0, 0}, {&of, first, count, slot, next}});
        expect_same(std::span(got).subspan(std::size_t{count} * width), first, "in company");
        first += count;
      }
      expect_end(first % 2 + 1, "in company");
      expect_same(run_parts({{&of, 9, 14, 3, 1}}), 9, "from what was saved");
      expect_end(1, "from what was saved");
    }
  }
}

// What is carried after each draft is what steps of one column carry, and `to` has what is carried before all drafts.
TEST_F(ShortConvolutions, TheSlotOfADraftGetsWhatIsCarriedAfterIt) {
  constexpr std::uint32_t kFirst = 3, kBegun = 12, kOther = 13, kSaved = 14, kSlots = 15;
  struct Case {
    std::uint32_t sure = 1, drafts = 0, to = kBegun, saved_after = 0;
  };
  constexpr Case kCases[] = {{1, 3}, {1, 1, kOther}, {3, 2, kOther, 2}, {2, 9, kBegun, 1}};
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const Shape& shape : {kConvolutionShapes[0], kConvolutionShapes[3]}) {
      const std::uint32_t width = shape.width, floats = shape.slot_floats();
      const Sequence of = random_sequence(shape, kFirst + 11);
      const std::vector<float> taps = random_floats(std::size_t{width} * shape.taps);
      const gpu::Buffer states = empty(kSlots * floats * 4);
      std::vector<std::vector<float>> after{{}};
      std::vector<float> whole;
      for (std::uint32_t i = 0; i < kFirst + 11; ++i) {
        const auto part = step(mapping, shape, taps, {{&of, i, 1, 0, 0}}, states);
        whole.insert(whole.end(), part.begin(), part.end());
        after.push_back(read<float>(states, floats));
      }
      for (const Case& each : kCases) {
        step(mapping, shape, taps, {{&of, 0, kFirst, 0, kBegun}}, states);
        ConvolutionPart drafted{
            &of, kFirst, each.sure + each.drafts, kBegun, each.to, each.saved_after, kSaved};
        for (std::uint32_t i = 0; i < each.drafts; ++i)
          drafted.drafts.push_back(1 + i);
        const auto got = step(mapping, shape, taps, {drafted}, states);
        EXPECT_EQ(std::memcmp(got.data(), whole.data() + kFirst * width, got.size() * 4), 0)
            << name;
        const auto now = read<float>(states, kSlots * floats);
        const auto expect_carried = [&](std::uint32_t slot, std::uint32_t columns) {
          EXPECT_EQ(std::memcmp(now.data() + slot * floats, after[kFirst + columns].data(),
                                shape.carried() * 4),
                    0)
              << name << ": slot " << slot << " after " << columns << " of " << drafted.count;
        };
        expect_carried(each.to, each.sure);
        if (each.to != kBegun) expect_carried(kBegun, 0);
        if (each.saved_after > 0) expect_carried(kSaved, each.saved_after);
        for (std::uint32_t i = 0; i < each.drafts; ++i)
          expect_carried(1 + i, each.sure + i + 1);
      }
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward
