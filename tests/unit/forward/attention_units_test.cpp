// Compares attention by matrix units with float64. Its bits must be the same however heads, columns and splits are
// shared out. On a device without such units, workgroups of one subgroup emulate their fragments
// (gpu/kernels/units_emulated.glsl). If every_way() is false, each shape runs in some ways, and all shapes together run
// in every mode.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "gpu/kernels/attention_constants.hpp"
#include "gpu/kernels/attention_tiles.hpp"
#include "gpu/kernels/attention_tiles_emulated.hpp"
#include "gpu/kernels/attention_units_emulated.hpp"
#include "gpu/kernels/units_check.hpp"
#include "kernel_harness.hpp"
#include "reference.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

struct Case {
  std::uint32_t head, heads, kv_heads;
  std::uint32_t split, splits;  // least positions in a split, and most splits
  // as in AttentionShape
  std::uint32_t window = 0;
  float soft_cap = 0;
  bool sinks = false;
  k::KvFormat kv = k::KvFormat::kF16;
};

// Columns of one sequence: `count` of them from position `first` on.
struct Stretch {
  std::uint32_t first, count;
};

// The ways of sharing. Each begins at the first position, or leaves the positions before a later one to another
// kernel.
enum class Name {
  kTiles,
  kNarrowTiles,
  kTogether,
  kEntryParts,
  kManyTogether,
  kInRounds,
  kSpread,
  kTilesFrom,
  kSpreadTilesFrom,
  kTogetherFrom,
  kSpreadFrom,
  kLastInTiles,
  kTilesInSteps,
  kTogetherInSteps,
};

class AttentionUnits : public KernelTest {
 protected:
  AttentionUnits() : KernelTest(7) {}

  void SetUp() override {
    KernelTest::SetUp();
    if (IsSkipped()) return;
    const auto found = k::fragments_as_expected(device());
    real_ = device().info().matrix_units && found.ok() && *found;
  }

  void check(const Case& each, const std::vector<Stretch>& runs, const std::vector<Name>& some);

  bool real_ = false;
};

// The data of attention: keys and values of some sequences in scattered pages, and queries of their columns.
struct Scene {
  k::Mapping mapping;
  k::AttentionShape shape;
  std::vector<k::ColumnEntry> columns;
  std::vector<std::uint32_t> pages;        // each sequence's, one after another
  std::vector<std::uint8_t> keys, values;  // as they lie
  std::vector<float> queries;              // [column][head][head_padded]
  std::vector<float> sinks;                // each head's
  std::vector<std::vector<double>> exact_keys,
      exact_values;  // [page * kv_heads + kv head]: [position][entry]
  std::uint32_t stride = 0;

  std::uint32_t context() const {
    std::uint32_t last = 0;
    for (const k::ColumnEntry& column : columns)
      last = std::max(last, column.position);
    return last + 1;
  }
  // Returns the first position that a column at this position sees.
  std::uint32_t first_seen(std::uint32_t position) const {
    return shape.window == 0 || position < shape.window ? 0 : position + 1 - shape.window;
  }
  std::uint32_t columns_padded() const {
    return (static_cast<std::uint32_t>(columns.size()) + 7) / 8 * 8;
  }
  // Returns the place of a half in the results.
  std::size_t at(std::uint32_t column, std::uint32_t i) const {
    return (std::size_t{column / 8} * (stride / 32) + i / 32) * 256 + column % 8 * 32 + i % 32;
  }
};

// Makes one position's key or value in a head's part of a page, and returns its entries. Bytes are those that a kernel
// may write, in blocks whose scale is sometimes zero or a subnormal half.
std::vector<double> make_entries(const k::AttentionShape& shape, std::uint8_t* at,
                                 std::uint32_t slot, bool is_value, std::mt19937& random) {
  const std::uint32_t padded = shape.head_padded(), size = shape.kv == k::KvFormat::kQ8 ? 1 : 2;
  const auto place = [&](std::uint32_t i) {
    return (is_value ? slot * padded + i : (i / 8 * 32 + slot) * 8 + i % 8) * size;
  };
  std::vector<double> entries(shape.head);
  if (shape.kv == k::KvFormat::kQ8) {
    const std::uint32_t blocks = padded / 32;
    for (std::uint32_t i = 0; i < padded; i += 32) {
      const std::uint32_t exponent = random() % 8 == 0 ? 0 : 8, block = i / 32;
      const auto scale = static_cast<std::uint16_t>(exponent << 10 | random() % 1024);
      std::memcpy(at + padded * 32 + (is_value ? slot * blocks + block : block * 32 + slot) * 2,
                  &scale, 2);
      for (std::uint32_t e = i; e < i + 32; ++e) {
        const int step = e < shape.head ? static_cast<int>(random() % 255) - 127 : 0;
        at[place(e)] = static_cast<std::uint8_t>(step + 128);
        if (e < shape.head) entries[e] = step * reference::half(scale);
      }
    }
    return entries;
  }
  std::normal_distribution<float> normal;
  for (std::uint32_t i = 0; i < padded; ++i) {
    // Rounds towards zero to eleven bits, so that a half holds the value exactly.
    const float drawn = i < shape.head ? normal(random) : 0;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(drawn) & 0xffffe000U;
    const auto half = static_cast<std::uint16_t>(std::abs(drawn) < 0x1p-14F
                                                     ? 0
                                                     : ((bits >> 16) & 0x8000U) |
                                                           ((((bits >> 23) & 255U) - 112U) << 10) |
                                                           ((bits >> 13) & 1023U));
    std::memcpy(at + place(i), &half, 2);
    if (i < shape.head) entries[i] = reference::half(half);
  }
  return entries;
}

Scene make_scene(const Case& each, const std::vector<Stretch>& runs, std::mt19937& random) {
  Scene s;
  s.mapping.units = true;
  s.mapping.lanes = 32;
  s.mapping.attention_split = each.split;
  s.mapping.attention_splits = each.splits;
  s.mapping.attention_together = true;
  s.shape = {each.head, each.heads,  each.kv_heads, each.kv,
             false,     each.window, each.soft_cap, each.sinks};
  s.stride = k::input_stride(s.mapping, each.heads * each.head);
  std::uint32_t page_count = 0;
  for (const Stretch& run : runs) {
    const auto start = static_cast<std::uint32_t>(s.pages.size());
    const std::uint32_t own = (run.first + run.count + 31) / 32;
    for (std::uint32_t i = 0; i < own; ++i)
      s.pages.push_back(page_count + own - 1 - i);
    page_count += own;
    for (std::uint32_t i = 0; i < run.count; ++i)
      s.columns.push_back({0, run.first + i, start, 0});
  }
  // In slots that no sequence has filled, two bytes are a half that is NaN, as a number or as a scale.
  const std::uint32_t padded = s.shape.head_padded();
  s.keys.assign(page_count * s.shape.page_bytes(), 0x7e);
  s.values = s.keys;
  s.exact_keys.assign(std::size_t{page_count} * each.kv_heads,
                      std::vector<double>(32 * std::size_t{each.head}));
  s.exact_values = s.exact_keys;
  std::size_t column = 0;
  for (const Stretch& run : runs) {
    const std::uint32_t start = s.columns[column].page_table;
    column += run.count;
    for (std::uint32_t p = s.first_seen(run.first) / 32 * 32; p < run.first + run.count; ++p) {
      const std::uint32_t page = s.pages[start + p / 32], slot = p % 32;
      for (std::uint32_t h = 0; h < each.kv_heads; ++h) {
        const std::size_t head = std::size_t{page} * each.kv_heads + h;
        const std::size_t base = head * 32 * k::kv_position_bytes(each.head, each.kv);
        std::ranges::copy(make_entries(s.shape, &s.keys[base], slot, false, random),
                          &s.exact_keys[head][slot * each.head]);
        std::ranges::copy(make_entries(s.shape, &s.values[base], slot, true, random),
                          &s.exact_values[head][slot * each.head]);
      }
    }
  }
  std::normal_distribution<float> normal;
  const auto scale = static_cast<float>(1.4426950408889634 / std::sqrt(each.head));
  for (std::size_t i = 0; i < s.columns.size() * each.heads; ++i) {
    for (std::uint32_t e = 0; e < padded; ++e)
      s.queries.push_back(e < each.head ? normal(random) * scale : 0);
  }
  for (std::uint32_t h = 0; h < each.heads; ++h)
    s.sinks.push_back(3 + normal(random));  // of the size of many weights' sum
  return s;
}

// Returns the largest difference from float64, over the first and the last head of some columns.
double largest_error(const Scene& s, const std::vector<std::uint16_t>& got) {
  const std::uint32_t head = s.shape.head, padded = s.shape.head_padded();
  double largest = 0;
  bool rounded_once = true;
  for (std::uint32_t c = 0; c < s.columns.size(); c += 3) {
    for (const std::uint32_t h : {0U, s.shape.heads - 1}) {
      const std::uint32_t kv_head = h / (s.shape.heads / s.shape.kv_heads);
      std::vector<double> result(head);
      const double cap = s.shape.soft_cap * 1.4426950408889634;
      double sum = s.shape.sinks ? std::exp2(s.sinks[h]) : 0;
      for (std::uint32_t p = s.first_seen(s.columns[c].position); p <= s.columns[c].position; ++p) {
        const std::size_t page =
            std::size_t{s.pages[s.columns[c].page_table + p / 32]} * s.shape.kv_heads + kv_head;
        double score = 0;
        for (std::uint32_t i = 0; i < head; ++i)
          score += s.queries[(std::size_t{c} * s.shape.heads + h) * padded + i] *
                   s.exact_keys[page][p % 32 * head + i];
        const double weight = std::exp2(cap == 0 ? score : cap * std::tanh(score / cap));
        sum += weight;
        for (std::uint32_t i = 0; i < head; ++i)
          result[i] += weight * s.exact_values[page][p % 32 * head + i];
      }
      for (std::uint32_t i = 0; i < head; ++i) {
        const double made = reference::half(got[s.at(c, h * head + i)]);
        const double error = std::abs(made - result[i] / sum);
        // The result of the first position is its value, rounded to a half once.
        if (s.columns[c].position == 0 && !s.shape.sinks)
          rounded_once &= error <= std::abs(result[i] / sum) * 0x1p-10 + 0x1p-24;
        largest = error <= largest ? largest : error;  // NaN is larger
      }
    }
  }
  EXPECT_TRUE(rounded_once);
  return largest;
}

// Runs the case in the ways `some`, or in every way that the device supports.
void AttentionUnits::check(const Case& each, const std::vector<Stretch>& runs,
                           const std::vector<Name>& some) {
  Scene s = make_scene(each, runs, random_);
  const auto count = static_cast<std::uint32_t>(s.columns.size());
  const gpu::Buffer counts = parameters(count, s.columns),
                    page_table = buffer(std::span<const std::uint32_t>(s.pages)),
                    keys = buffer(std::span<const std::uint8_t>(s.keys)),
                    values = buffer(std::span<const std::uint8_t>(s.values)),
                    queries = buffer(std::span<const float>(s.queries)),
                    sinks = buffer(std::span<const float>(s.sinks));
  const std::size_t halves = std::size_t{s.columns_padded()} * s.stride;
  const gpu::Buffer out = empty(halves * 2);
  const std::uint32_t context = s.context(), seen = k::positions_seen(s.shape, context);
  const std::uint32_t splits = k::units_splits(s.mapping, s.shape, seen);
  const gpu::Buffer partials =
      empty(std::uint64_t{count} * each.heads * splits * k::partial_floats(s.shape) * 4);
  const std::vector<std::uint32_t> zeros(std::size_t{count} * each.heads * k::kAttentionCountBytes /
                                         4);
  const gpu::Buffer done = buffer(std::span<const std::uint32_t>(zeros));
  k::AttentionPush push{};
  push.q = queries.address();
  push.keys = keys.address();
  push.values = values.address();
  push.parameters = counts.address();
  push.pages = page_table.address();
  push.out_address = out.address();
  push.out_stride = s.stride;
  push.padded_width = k::input_padded(s.mapping, each.heads * each.head);
  push.partials = partials.address();
  push.counts = done.address();
  push.sinks = sinks.address();
  push.most_splits = splits;
  const auto launch = [&](k::AttentionVariant variant, bool rounds, std::uint32_t columns) {
    const bool tiled = variant.spec.spirv.data() == gpu::spirv::attention_tiles.data();
    if (!real_) {
      variant.spec.spirv =
          tiled ? gpu::spirv::attention_tiles_emulated : gpu::spirv::attention_units_emulated;
      variant.spec.required_subgroup_size = 0;
    }
    auto constants = k::read_constants<k::AttentionConstants>(variant.spec);
    const std::uint32_t subgroups = constants.invocations / 32;
    if (!real_) constants.invocations = 32;
    if (rounds) constants.spread_from = 0xffffffffU;
    k::write_constants(variant.spec, constants);
    if (tiled && !real_ && each.head > 64) {
      // llvmpipe ends an invocation's loops after 65,535 rounds in total, and two tiles may take
      // more.
      auto tiling = k::read_constants<k::AttentionTilesConstants>(variant.spec);
      tiling.portion = 1;
      k::write_constants(variant.spec, tiling);
    }
    const bool whole = constants.mode == static_cast<std::uint32_t>(k::AttentionMode::kWhole);
    // Some workgroups more than there are columns, as recorded steps have.
    run(variant.spec, push, whole ? (columns + 3) / (real_ ? subgroups : 1) + 1 : columns + 2,
        variant.y, variant.z);
  };
  const std::string name = "head of " + std::to_string(each.head) + ", " +
                           std::to_string(each.heads) + " to " + std::to_string(each.kv_heads) +
                           (each.window != 0 ? ", window " + std::to_string(each.window) : "") +
                           (each.soft_cap != 0 ? ", cap" : "") + (each.sinks ? ", sinks" : "") +
                           (each.kv == k::KvFormat::kQ8 ? ", pages of bytes" : "");
  const k::AttentionRange everywhere{.units = true};
  launch(k::attention(s.mapping, s.shape, everywhere, k::AttentionMode::kWhole, count, context),
         false, count);
  const auto wanted = read<std::uint16_t>(out, halves);
  EXPECT_LE(largest_error(s, wanted), 2e-3) << name;

  struct Way {
    Name name;
    const char* what;
    k::AttentionMode mode;
    std::uint32_t columns;
    bool narrow, rounds;
    std::uint32_t from = 0;   // positions before it are another kernel's
    std::uint32_t skips = 0;  // columns that are not in the step
    std::uint32_t step = 0;   // columns of each step: one, or a multiple of eight; 0: all in one
    std::uint32_t until = k::kNoPosition;  // positions from it on are another kernel's
  };
  using enum Name;
  constexpr std::uint32_t kSkipped = 13;
  const Way ways[] = {
      {kTiles, "tiles of columns", k::AttentionMode::kTiles, 512, false, false},
      {kNarrowTiles, "narrow tiles of columns", k::AttentionMode::kTiles, 512, true, false},
      {kTogether, "a workgroup of subgroups", k::AttentionMode::kTogether, 16, false, false},
      {kEntryParts, "workgroups that share entries", k::AttentionMode::kTogether, 1, false, false, 0,
       1024},
      {kManyTogether, "workgroups of a few subgroups", k::AttentionMode::kTogether, 64, false, false},
      {kInRounds, "in rounds, none of them spread", k::AttentionMode::kTogether, 1, false, true},
      {kSpread, "spread over some workgroups", k::AttentionMode::kSpread, 1, false, false},
      {kTilesFrom, "tiles of columns", k::AttentionMode::kTiles, 512, false, false, 62},
      {kSpreadTilesFrom, "spread tiles of columns", k::AttentionMode::kSpreadTiles, 1, false, false,
       62},
      {kTogetherFrom, "a workgroup of subgroups", k::AttentionMode::kTogether, 16, false, false,
       64},
      {kSpreadFrom, "spread over some workgroups", k::AttentionMode::kSpread, 1, false, false, 64},
      // Tiles begin elsewhere, at other columns of a sequence.
      {kLastInTiles, "tiles of the last columns", k::AttentionMode::kTiles, 512, false, false, 0,
       kSkipped},
      {kTilesInSteps, "tiles in steps", k::AttentionMode::kTiles, 512, false, false, 0, 0, 16},
      {kTogetherInSteps, "a step for each", k::AttentionMode::kTogether, 16, false, false, 0, 0, 1},
  };
  for (const Way& way : ways) {
    if (!every_way() && std::ranges::find(some, way.name) == some.end()) continue;
    const bool tiles =
        way.mode == k::AttentionMode::kTiles || way.mode == k::AttentionMode::kSpreadTiles;
    // A CPU's compiler takes ten seconds for this kernel, and with one subgroup there are rounds in
    // any case.
    if (!real_ && way.mode == k::AttentionMode::kTogether && way.rounds) continue;
    if (!real_ && way.mode == k::AttentionMode::kSpreadTiles && each.head > 64) continue;
    if (way.narrow && each.heads / each.kv_heads > 8) continue;
    const k::AttentionRange range{.units = true, .from = way.from, .until = way.until};
    std::memset(out.mapped().data(), 0xff, out.mapped().size());
    k::UnitAttention sharing = k::unit_attention(s.mapping, s.shape, range, way.mode, way.columns);
    if (way.narrow) {
      sharing.through_shared = false;
      sharing.query_tiles = 1;
    }
    const std::uint32_t step = way.step == 0 ? count : way.step;
    for (std::uint32_t first = way.skips; first < count; first += step) {
      const std::uint32_t columns = std::min(step, count - first);
      const gpu::Buffer of_step = parameters(columns, std::span(s.columns).subspan(first, columns));
      push.parameters = of_step.address();
      push.q = queries.address() + std::uint64_t{first} * each.heads * s.shape.head_padded() * 4;
      push.out_address = out.address() + s.at(first - way.skips, 0) * 2;
      launch(k::units_attention(s.mapping, s.shape, range, sharing, way.columns, seen, false),
             way.rounds, columns);
      if (tiles) launch(k::attention_alone(s.mapping, s.shape, range, columns), false, columns);
    }
    const auto made = read<std::uint16_t>(out, halves);
    for (std::uint32_t column = way.skips; column < count; ++column) {
      const bool left_out = s.columns[column].position < way.from;
      for (std::uint32_t i = 0; i < push.padded_width; ++i) {
        ASSERT_EQ(made[s.at(column - way.skips, i)], left_out ? 0xffff : wanted[s.at(column, i)])
            << name << ": " << way.what << " from position " << way.from
            << " on makes other bits, column " << column << " entry " << i;
      }
    }
    ASSERT_EQ(read<std::uint32_t>(done, zeros.size()), zeros)
        << name << ": counts that are not zero again";
  }
}

const std::vector<Stretch> kMixed = {{5, 1},    {30, 9},  {63, 1}, {64, 1},
                                     {120, 20}, {300, 1}, {0, 2}};

TEST_F(AttentionUnits, AgreesWithDoubleHoweverItIsShared) {
  using enum Name;
  // The ways of each case where units are emulated. A workgroup of several subgroups leaves positions out in the same
  // way as one that spreads its splits.
  const std::pair<Case, std::vector<Name>> cases[] = {
      {{64, 8, 2, 64, 4}, {kNarrowTiles, kTogether, kTogetherInSteps, kEntryParts, kSpread}},
      {{48, 6, 1, 64, 64}, {kTilesFrom, kSpreadTilesFrom}},
      {{128, 7, 1, 64, 2}, {kTiles, kSpreadFrom}},
      {{32, 4, 4, 128, 2}, {}},
      {{256, 2, 1, 64, 4}, {}},
      {{80, 10, 1, 64, 64}, {}},
  };
  for (const auto& [each, some] : cases) {
    if (!real_ && some.empty()) break;  // compiling is what takes the time
    check(each, kMixed, some);
    if (HasFatalFailure()) return;
  }
}

// Heads of 48 and 80 entries are padded to more entries than in pages of halves.
TEST_F(AttentionUnits, AgreesWithDoubleOnPagesOfBytes) {
  using enum Name;
  constexpr k::KvFormat kQ8 = k::KvFormat::kQ8;
  const std::pair<Case, std::vector<Name>> cases[] = {
      {{64, 8, 2, 64, 4, 0, 0, false, kQ8}, {kNarrowTiles, kTogether, kTogetherInSteps, kSpread}},
      {{48, 6, 1, 64, 64, 0, 0, false, kQ8}, {kTilesFrom, kSpreadTilesFrom}},
      {{80, 10, 2, 64, 2, 0, 0, false, kQ8}, {kTiles}},
      {{128, 7, 1, 64, 2, 0, 0, false, kQ8}, {}},
      {{32, 4, 4, 128, 2, 0, 0, false, kQ8}, {}},
      {{96, 8, 4, 64, 4, 0, 0, false, kQ8}, {}},
      {{256, 2, 1, 64, 4, 0, 0, false, kQ8}, {}},
  };
  for (const auto& [each, some] : cases) {
    if (!real_ && some.empty()) break;
    check(each, kMixed, some);
    if (HasFatalFailure()) return;
  }
}

// The columns lie around the borders of blocks, pages and splits, around the first positions where their windows hide
// others, and around a position from which splits of wide windows are larger (if there are at most four).
std::vector<Stretch> around_window(std::uint32_t window) {
  return {{window - 2, 5},   {0, 2},           {31, 1}, {window + 30, 1}, {window + 31, 1},
          {window + 60, 40}, {window + 63, 1}, {64, 1}, {170, 12}};
}

TEST_F(AttentionUnits, AgreesWithDoubleInWindowsWithCapsAndSinks) {
  using enum Name;
  const std::pair<Case, std::vector<Name>> cases[] = {
      {{64, 8, 1, 64, 4, 100, 3, true},
       {kTiles, kLastInTiles, kTogether, kSpread, kSpreadTilesFrom}},
      {{64, 4, 2, 64, 4, 32, 0, true}, {kTiles, kSpread}},
      {{128, 7, 1, 64, 2, 128, 2, false}, {kTiles}},
      {{64, 3, 1, 64, 4, 512, 0, false}, {}},
      {{64, 8, 2, 64, 64, 0, 3, true}, {}},
      {{128, 2, 2, 64, 64, 100, 3, true}, {}},
      {{48, 8, 1, 64, 4, 100, 3, true, k::KvFormat::kQ8}, {kTiles, kSpread}},
      {{256, 4, 2, 64, 4, 128, 0, true}, {}},
      {{80, 10, 1, 64, 64, 32, 3, false}, {}},
  };
  for (const auto& [each, some] : cases) {
    if (!every_way() && some.empty()) break;
    check(each, around_window(each.window == 0 ? 128 : each.window), some);
    if (HasFatalFailure()) return;
  }
  // a window that hides nothing
  if (every_way()) check({64, 8, 2, 64, 4, 1000, 0, true}, around_window(128), {});
  if (HasFatalFailure()) return;
  // Some columns see more positions than a workgroup's subgroups compute at once.
  if (real_) check({64, 16, 2, 64, 64, 1100, 0, true}, around_window(1100), {});
}

// A column's position and the shape decide whether matrix units compute it, whatever the step.
TEST(AttentionRanges, DependOnTheSettingAndTheShape) {
  using enum k::UnitsAttention;
  k::Mapping mapping;
  mapping.units = true;
  const auto by_units = [&](k::UnitsAttention setting, const k::AttentionShape& shape) {
    mapping.units_attention = setting;
    std::string made;
    for (const std::uint32_t columns : {1U, 16U, 512U}) {
      std::string of_step;
      for (const std::uint32_t position : {0U, 1023U, 1024U, 30000U}) {
        for (const k::AttentionRange& range : k::attention_ranges(mapping, shape, columns)) {
          if (position >= range.from && position < range.until) of_step += range.units ? 'u' : 'l';
        }
      }
      EXPECT_TRUE(made.empty() || made == of_step) << columns << " columns";
      made = of_step;
    }
    return made;
  };
  const k::AttentionShape plain{128, 8, 8, k::KvFormat::kF16, true},
      window{64, 8, 8, k::KvFormat::kF16, true, 128, 30, true},
      large{256, 8, 8, k::KvFormat::kF16, true}, large_window{256, 8, 8, k::KvFormat::kF16, true, 512};
  for (const k::AttentionShape& shape : {plain, window, large, large_window}) {
    EXPECT_EQ(by_units(kNowhere, shape), "llll");
    EXPECT_EQ(by_units(kEverywhere, shape), "uuuu");
  }
  EXPECT_EQ(by_units(kWhereFaster, plain), "uuuu");
  EXPECT_EQ(by_units(kWhereFaster, window), "uuuu");
  EXPECT_EQ(by_units(kWhereFaster, large), "lluu");
  EXPECT_EQ(by_units(kWhereFaster, large_window), "llll");
  k::AttentionShape both_ways = window;
  both_ways.both_ways = true;
  EXPECT_EQ(by_units(kEverywhere, both_ways), "llll");
}

// In a step that only reads a prompt, workgroups of several subgroups have all their columns.
TEST_F(AttentionUnits, TakesAPromptInTiles) {
  // Has as many splits as above, so that some kernels are compiled already.
  for (const k::KvFormat kv : {k::KvFormat::kF16, k::KvFormat::kQ8}) {
    check({64, 8, 2, 64, 4, 0, 0, false, kv}, {{33, 75}},
          {Name::kTiles, Name::kTilesInSteps, Name::kNarrowTiles});
    if (real_ && !HasFatalFailure())
      check({128, 32, 8, 64, 64, 0, 0, false, kv}, {{1000, 512}}, {});
    if (HasFatalFailure()) return;
  }
}

// The kernels have no branch for floats, and rows of latents are too long for them.
TEST_F(AttentionUnits, TakesPagesOfHalvesAndOfBytes) {
  k::Mapping mapping;
  mapping.units = true;
  for (const auto& [kv, taken] :
       {std::pair{k::KvFormat::kF16, true}, {k::KvFormat::kQ8, true}, {k::KvFormat::kF32, false}}) {
    EXPECT_EQ(k::units_attend(mapping, {128, 32, 8, kv, false}), taken);
    EXPECT_EQ(k::units_attend(mapping, {256, 16, 8, kv, false}), taken);
    EXPECT_FALSE(k::units_attend(mapping, {264, 16, 8, kv, false}));
  }
}

}  // namespace
}  // namespace bulkhead::forward
