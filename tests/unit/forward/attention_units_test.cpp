// Compares attention by matrix units with float64. Its bits must be the same however heads, columns and splits are
// shared out. On a device without such units, invocations emulate their fragments (gpu/kernels/units_emulated.glsl). If
// every_way() is false, each shape runs in some ways, and all shapes together run in every mode.
#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "attention_scene.hpp"
#include "gpu/kernels/attention_constants.hpp"
#include "gpu/kernels/attention_tiles.hpp"
#include "gpu/kernels/attention_tiles_emulated.hpp"
#include "gpu/kernels/attention_units_emulated.hpp"
#include "gpu/kernels/units_check.hpp"
#include "kernel_harness.hpp"
#include "worker/forward/kernel_compiler.hpp"

namespace bulkhead::forward {
namespace {

// The ways of sharing.
enum class WayName {
  kTiles,
  kNarrowTiles,
  kTogether,
  kEntryParts,
  kFewerParts,
  kManyTogether,
  kInRounds,
  kSpread,
  kAlone,
  kManyAlone,
  kTilesFrom,
  kSpreadTilesFrom,
  kTogetherFrom,
  kSpreadFrom,
  kLastInTiles,
  kTilesInSteps,
  kTogetherInSteps,
};

struct SpecialWay {
  std::uint32_t from = 0, until = k::kNoPosition;  // other positions are another kernel's
  std::uint32_t skips = 0;                         // columns that are not in the step
  std::uint32_t step = 0;  // columns of each step: one, or a multiple of eight; 0: all in one
  bool narrow = false, rounds = false, fewer_parts = false;
  bool alone = false;  // attention_alone() makes the kernel
};

// A way has one kernel. Those of tiles leave out columns that have no neighbour, and attention_alone() leaves out all
// others.
struct AttentionWay {
  WayName name;
  const char* what;
  k::AttentionMode mode;
  std::uint32_t columns;  // of the steps for which its kernel is chosen
  SpecialWay special = {};

  bool takes(const AttentionScene& scene, std::uint32_t column) const;
};

constexpr AttentionWay kAttentionWays[] = {
    {WayName::kTiles, "tiles of columns", k::AttentionMode::kTiles, 512},
    {WayName::kNarrowTiles,
     "narrow tiles of columns",
     k::AttentionMode::kTiles,
     512,
     {.narrow = true}},
    {WayName::kTogether, "a workgroup of subgroups", k::AttentionMode::kTogether, 16},
    {WayName::kEntryParts,
     "workgroups that share entries",
     k::AttentionMode::kTogether,
     1,
     {.until = 1024}},
    {WayName::kFewerParts,
     "half as many workgroups that share entries",
     k::AttentionMode::kTogether,
     1,
     {.until = 1024, .fewer_parts = true}},
    {WayName::kManyTogether, "workgroups of a few subgroups", k::AttentionMode::kTogether, 64},
    {WayName::kInRounds,
     "in rounds, none of them spread",
     k::AttentionMode::kTogether,
     1,
     {.rounds = true}},
    {WayName::kSpread, "spread over some workgroups", k::AttentionMode::kSpread, 1},
    {WayName::kAlone, "columns without a neighbour", k::AttentionMode::kTiles, 16, {.alone = true}},
    {WayName::kManyAlone,
     "many columns without a neighbour",
     k::AttentionMode::kTiles,
     4096,
     {.from = 62, .alone = true}},
    {WayName::kTilesFrom, "tiles of columns", k::AttentionMode::kTiles, 512, {.from = 62}},
    {WayName::kSpreadTilesFrom,
     "spread tiles of columns",
     k::AttentionMode::kSpreadTiles,
     1,
     {.from = 62}},
    {WayName::kTogetherFrom,
     "a workgroup of subgroups",
     k::AttentionMode::kTogether,
     16,
     {.from = 64}},
    {WayName::kSpreadFrom,
     "spread over some workgroups",
     k::AttentionMode::kSpread,
     1,
     {.from = 64}},
    // Tiles begin elsewhere, at other columns of a sequence.
    {WayName::kLastInTiles,
     "tiles of the last columns",
     k::AttentionMode::kTiles,
     512,
     {.skips = 13}},
    {WayName::kTilesInSteps, "tiles in steps", k::AttentionMode::kTiles, 512, {.step = 16}},
    {WayName::kTogetherInSteps, "a step for each", k::AttentionMode::kTogether, 16, {.step = 1}},
};

bool AttentionWay::takes(const AttentionScene& scene, std::uint32_t column) const {
  const auto count = static_cast<std::uint32_t>(scene.columns.size());
  const std::uint32_t position = scene.columns[column].position;
  if (position < special.from || position >= special.until) return false;
  if (mode != k::AttentionMode::kTiles && mode != k::AttentionMode::kSpreadTiles) return true;
  const std::uint32_t step = special.step == 0 ? count : special.step;
  const std::uint32_t first = special.skips + (column - special.skips) / step * step;
  return scene.has_neighbour(column, first, std::min(first + step, count)) != special.alone;
}

// Each case with its ways where units are emulated.
using AttentionCases = std::vector<std::pair<AttentionCase, std::vector<WayName>>>;

// A scene on the device, and room for the results.
struct OnDevice {
  gpu::Buffer counts, page_table, keys, values, queries, sinks, out, partials, done;
  k::AttentionPush push{};
  std::size_t halves = 0, done_words = 0;  // of results; of counters
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

  // Runs the case in the ways `some`, or in every way if every_way() is true.
  void check(const AttentionCase& each, const std::vector<Stretch>& runs,
             const std::vector<WayName>& some);
  // Leaves out cases without ways, unless every_way() is true.
  void check_all(const AttentionCases& cases,
                 const std::function<std::vector<Stretch>(const AttentionCase&)>& runs_of);

  bool real_ = false;

 private:
  OnDevice upload_scene(const AttentionScene& scene);
  k::AttentionVariant on_these_units(k::AttentionVariant variant);
  k::AttentionVariant kernel_of(const AttentionScene& scene, const AttentionWay& way);
  void launch(const k::AttentionVariant& kernel, const k::AttentionPush& push,
              std::uint32_t columns);
  void run_way(const AttentionScene& scene, const OnDevice& there, const AttentionWay& way,
               const k::AttentionVariant& kernel);
};

OnDevice AttentionUnits::upload_scene(const AttentionScene& s) {
  const auto count = static_cast<std::uint32_t>(s.columns.size());
  const std::uint32_t width = s.shape.heads * s.shape.head;
  const std::uint32_t splits =
      k::units_splits(s.mapping, s.shape, k::positions_seen(s.shape, s.context()));
  OnDevice made;
  made.halves = std::size_t{s.columns_padded()} * s.stride;
  made.done_words = std::size_t{count} * s.shape.heads * k::kAttentionCountBytes / 4;
  made.counts = parameters(count, s.columns);
  made.page_table = buffer(std::span<const std::uint32_t>(s.pages));
  made.keys = buffer(std::span<const std::uint8_t>(s.keys));
  made.values = buffer(std::span<const std::uint8_t>(s.values));
  made.queries = buffer(std::span<const float>(s.queries));
  made.sinks = buffer(std::span<const float>(s.sinks));
  made.out = empty(made.halves * 2);
  made.partials =
      empty(std::uint64_t{count} * s.shape.heads * splits * k::partial_floats(s.shape) * 4);
  const std::vector<std::uint32_t> zeros(made.done_words);
  made.done = buffer(std::span<const std::uint32_t>(zeros));
  made.push.q = made.queries.address();
  made.push.keys = made.keys.address();
  made.push.values = made.values.address();
  made.push.parameters = made.counts.address();
  made.push.pages = made.page_table.address();
  made.push.out_address = made.out.address();
  made.push.out_stride = s.stride;
  made.push.padded_width = k::input_padded(s.mapping, width);
  made.push.partials = made.partials.address();
  made.push.counts = made.done.address();
  made.push.sinks = made.sinks.address();
  made.push.most_splits = splits;
  return made;
}

// Replaces the kernel if the device has no matrix units.
k::AttentionVariant AttentionUnits::on_these_units(k::AttentionVariant variant) {
  if (real_) return variant;
  const bool tiled = variant.spec.spirv.data() == gpu::spirv::attention_tiles.data();
  variant.spec.spirv =
      tiled ? gpu::spirv::attention_tiles_emulated : gpu::spirv::attention_units_emulated;
  variant.spec.required_subgroup_size = 0;
  if (!on_cpu()) {  // only a CPU's driver can emulate several subgroups
    auto constants = k::read_constants<k::AttentionConstants>(variant.spec);
    constants.invocations = 32;
    k::write_constants(variant.spec, constants);
  }
  return variant;
}

k::AttentionVariant AttentionUnits::kernel_of(const AttentionScene& s, const AttentionWay& way) {
  const k::AttentionRange range{
      .units = true, .from = way.special.from, .until = way.special.until};
  if (way.special.alone)
    return on_these_units(k::attention_alone(s.mapping, s.shape, range, way.columns));
  k::UnitAttention sharing = k::unit_attention(s.mapping, s.shape, range, way.mode, way.columns);
  if (way.special.narrow) {
    sharing.through_shared = false;
    sharing.query_tiles = 1;
  }
  const std::uint32_t sets = (s.shape.head_padded() + 63) / 64;  // of four tiles of results
  if (way.special.fewer_parts && sharing.entry_parts >= 2 * sets) sharing.entry_parts /= 2;
  k::AttentionVariant variant = k::units_attention(s.mapping, s.shape, range, sharing, way.columns,
                                                   k::positions_seen(s.shape, s.context()), false);
  if (way.special.rounds) {
    auto constants = k::read_constants<k::AttentionConstants>(variant.spec);
    constants.spread_from = k::kNoPosition;
    k::write_constants(variant.spec, constants);
  }
  return on_these_units(variant);
}

void AttentionUnits::launch(const k::AttentionVariant& kernel, const k::AttentionPush& push,
                            std::uint32_t columns) {
  const auto constants = k::read_constants<k::AttentionConstants>(kernel.spec);
  const bool whole = constants.mode == static_cast<std::uint32_t>(k::AttentionMode::kWhole);
  // Some workgroups more than there are columns, as recorded steps have.
  run(kernel.spec, push, whole ? (columns + 3) / (constants.invocations / 32) + 1 : columns + 2,
      kernel.y, kernel.z);
}

// Computes columns by the way's kernel. The results of other columns are 0xffff.
void AttentionUnits::run_way(const AttentionScene& s, const OnDevice& there,
                             const AttentionWay& way, const k::AttentionVariant& kernel) {
  std::memset(there.out.mapped().data(), 0xff, there.out.mapped().size());
  k::AttentionPush push = there.push;
  const auto count = static_cast<std::uint32_t>(s.columns.size());
  const std::uint32_t step = way.special.step == 0 ? count : way.special.step;
  for (std::uint32_t first = way.special.skips; first < count; first += step) {
    const std::uint32_t columns = std::min(step, count - first);
    const gpu::Buffer of_step = parameters(columns, std::span(s.columns).subspan(first, columns));
    push.parameters = of_step.address();
    push.q = there.push.q + std::uint64_t{first} * s.shape.heads * s.shape.head_padded() * 4;
    push.out_address = there.push.out_address + s.at(first - way.special.skips, 0) * 2;
    launch(kernel, push, columns);
  }
}

void AttentionUnits::check(const AttentionCase& each, const std::vector<Stretch>& runs,
                           const std::vector<WayName>& some) {
  const AttentionScene s = make_scene(each, runs, random_);
  const auto count = static_cast<std::uint32_t>(s.columns.size());
  const std::string name = each.name();
  const k::AttentionVariant whole = on_these_units(k::attention(
      s.mapping, s.shape, {.units = true}, k::AttentionMode::kWhole, count, s.context()));
  std::vector<gpu::KernelSpec> specs{whole.spec};
  std::vector<std::pair<AttentionWay, k::AttentionVariant>> ways;
  for (const AttentionWay& way : kAttentionWays) {
    if (!every_way() && std::ranges::find(some, way.name) == some.end()) continue;
    if (way.special.narrow && each.heads / each.kv_heads > 8) continue;
    specs.push_back(ways.emplace_back(way, kernel_of(s, way)).second.spec);
  }
  // A GPU's driver takes seconds for each kernel, so several threads compile them.
  const Status compiled = KernelCompiler(device(), std::move(specs)).finish({});
  ASSERT_TRUE(compiled.ok()) << name << ": " << compiled.error().message();

  const OnDevice there = upload_scene(s);
  launch(whole, there.push, count);
  const auto wanted = read<std::uint16_t>(there.out, there.halves);
  EXPECT_LE(largest_error(s, wanted), 2e-3) << name;
  const std::vector<std::uint32_t> zeros(there.done_words);
  for (const auto& [way, kernel] : ways) {
    run_way(s, there, way, kernel);
    if (HasFatalFailure()) return;
    const auto made = read<std::uint16_t>(there.out, there.halves);
    for (std::uint32_t column = way.special.skips; column < count; ++column) {
      const bool taken = way.takes(s, column);
      for (std::uint32_t i = 0; i < there.push.padded_width; ++i) {
        ASSERT_EQ(made[s.at(column - way.special.skips, i)],
                  taken ? wanted[s.at(column, i)] : 0xffff)
            << name << ": " << way.what << " from position " << way.special.from
            << " on makes other bits, column " << column << " entry " << i;
      }
    }
    ASSERT_EQ(read<std::uint32_t>(there.done, zeros.size()), zeros)
        << name << ": counts that are not zero again, " << way.what;
  }
}

void AttentionUnits::check_all(
    const AttentionCases& cases,
    const std::function<std::vector<Stretch>(const AttentionCase&)>& runs_of) {
  for (const auto& [each, some] : cases) {
    if (!every_way() && some.empty()) continue;  // compiling is what takes the time
    check(each, runs_of(each), some);
    if (HasFatalFailure()) return;
  }
}

std::vector<Stretch> mixed(const AttentionCase& /*each*/) {
  return {{5, 1}, {30, 9}, {63, 1}, {64, 1}, {120, 20}, {300, 1}, {0, 2}};
}

TEST_F(AttentionUnits, AgreesWithDoubleHoweverItIsShared) {
  using enum WayName;
  check_all({{{64, 8, 2, 64, 4}, {kNarrowTiles, kTogether, kTogetherInSteps, kSpread, kAlone}},
             {{48, 6, 1, 64, 64}, {kTilesFrom, kSpreadTilesFrom}},
             {{128, 7, 1, 64, 2}, {kTiles, kSpreadFrom, kManyAlone}},
             {{32, 4, 4, 128, 2}, {}},
             {{256, 2, 1, 64, 4}, {}},
             {{80, 10, 1, 64, 64}, {}}},
            mixed);
}

// Heads of 48 and 80 entries are padded to more entries than in pages of halves.
TEST_F(AttentionUnits, AgreesWithDoubleOnPagesOfBytes) {
  using enum WayName;
  constexpr k::KvFormat kQ8 = k::KvFormat::kQ8;
  check_all({{{64, 8, 2, 64, 4, 0, 0, false, kQ8}, {kNarrowTiles, kSpread}},
             {{48, 6, 1, 64, 64, 0, 0, false, kQ8}, {kSpreadTilesFrom}},
             {{80, 10, 2, 64, 2, 0, 0, false, kQ8}, {kTiles, kAlone}},
             {{128, 7, 1, 64, 2, 0, 0, false, kQ8}, {}},
             {{32, 4, 4, 128, 2, 0, 0, false, kQ8}, {}},
             {{96, 8, 4, 64, 4, 0, 0, false, kQ8}, {}},
             {{256, 2, 1, 64, 4, 0, 0, false, kQ8}, {}}},
            mixed);
}

// The columns lie around the borders of blocks, pages and splits, around the first positions where their windows hide
// others, and around a position from which splits of wide windows are larger (if there are at most four).
std::vector<Stretch> around(std::uint32_t window) {
  return {{window - 2, 5},   {0, 2},           {31, 1}, {window + 30, 1}, {window + 31, 1},
          {window + 60, 40}, {window + 63, 1}, {64, 1}, {170, 12}};
}
std::vector<Stretch> around_window(const AttentionCase& each) {
  return around(each.window == 0 ? 128 : each.window);
}

TEST_F(AttentionUnits, AgreesWithDoubleInWindowsWithCapsAndSinks) {
  using enum WayName;
  check_all({{{64, 8, 1, 64, 4, 100, 3, true},
              {kTiles, kLastInTiles, kTogether, kFewerParts, kSpread, kSpreadTilesFrom}},
             {{64, 4, 2, 64, 4, 32, 0, true}, {kTiles, kSpread}},
             {{128, 7, 1, 64, 2, 128, 2, false}, {kTiles, kEntryParts}},
             {{64, 3, 1, 64, 4, 512, 0, false}, {}},
             {{64, 8, 2, 64, 64, 0, 3, true}, {}},
             {{128, 2, 2, 64, 64, 100, 3, true}, {}},
             {{48, 8, 1, 64, 4, 100, 3, true, k::KvFormat::kQ8}, {kTiles}},
             {{256, 4, 2, 64, 4, 128, 0, true}, {}},
             {{80, 10, 1, 64, 64, 32, 3, false}, {}}},
            around_window);
  if (HasFatalFailure() || !every_way()) return;
  // a window that hides nothing
  check({64, 8, 2, 64, 4, 1000, 0, true}, around(128), {});
  if (HasFatalFailure() || !real_) return;
  // Some columns see more positions than a workgroup's subgroups compute at once.
  check({64, 16, 2, 64, 64, 1100, 0, true}, around(1100), {});
}

// The splits of columns that see about 1024 positions fill a workgroup of sixteen subgroups, or several rounds of one
// with fewer subgroups.
TEST_F(AttentionUnits, FillsWorkgroupsWithSplits) {
  using enum WayName;
  constexpr k::KvFormat kQ8 = k::KvFormat::kQ8;
  check_all({{{48, 3, 3, 64, 64}, {kEntryParts}},
             {{96, 4, 1, 64, 64}, {kEntryParts, kFewerParts, kManyTogether}},
             {{192, 4, 2, 64, 64, 0, 0, true}, {kEntryParts}},
             {{256, 8, 1, 64, 64, 0, 0, true}, {kFewerParts, kAlone}},
             {{128, 4, 1, 64, 64, 0, 0, true, kQ8}, {kEntryParts}},
             {{192, 2, 1, 64, 64, 1000, 0, false, kQ8}, {}},
             {{64, 16, 16, 64, 64, 0, 3}, {}},
             {{64, 8, 1, 64, 64, 300, 3, true, kQ8}, {}}},
            [](const AttentionCase& /*each*/) {
              return std::vector<Stretch>{{5, 1}, {63, 2}, {300, 1}, {895, 2}, {1022, 4}, {0, 1}};
            });
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
      large{256, 8, 8, k::KvFormat::kF16, true},
      large_window{256, 8, 8, k::KvFormat::kF16, true, 512};
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
          {WayName::kTiles, WayName::kTilesInSteps, WayName::kNarrowTiles});
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
