// Compares rotation, KV pages and attention with float64: several columns of sequences whose pages are scattered,
// lengths around the borders of pages, blocks and splits, grouped heads, every page type. All ways of sharing the work
// must agree to the last bit. If every_way() is false, the first cases run in all ways, and each other case runs in one
// way, in turn.
#include <cmath>
#include <optional>
#include <random>

#include "gpu/kernels/constants.hpp"
#include "kernel_harness.hpp"
#include "reference.hpp"
#include "worker/forward/rope_table.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

struct Case {
  std::uint32_t head, heads, kv_heads, rope_dimensions;
  bool halves;
  k::KvFormat kv;
  bool bias, norm;
  std::uint32_t length;  // positions already there
  std::uint32_t window = 0;
  float soft_cap = 0;
  bool sinks = false;
  // For rotation: q grows with the position by `temperature`; `value_norm` says whether values are
  // normed.
  float temperature = 0;
  bool value_norm = false;
};

class Attention : public KernelTest {
 protected:
  Attention() : KernelTest(99) {}

  std::vector<double> random_doubles(std::size_t count) {
    const std::vector<float> values = random_floats(count);
    return {values.begin(), values.end()};
  }
  static std::vector<float> to_float(const std::vector<double>& from) {
    return {from.begin(), from.end()};
  }

  // The number of the way in which a case runs; empty: it runs in all ways.
  using Turn = std::optional<std::size_t>;
  void check(const char* name, const k::Mapping& mapping, const Case& each, Turn turn);

  struct Trial;
  struct Way;
  void rotate_and_store(Trial& t);
  void make_room(Trial& t);
  void attend_by_rows(Trial& t, bool in_splits);
  std::vector<Way> ways_of(const Trial& t, Turn turn);
  void attend(Trial& t, const Way& way);
  void expect_same_bits(const Trial& t, const char* what, std::uint32_t until = k::kNoPosition);
  void find_exact_pages(Trial& t);
  void compare_with_exact(const Trial& t);
  // Returns one count for each head of a column, all zero.
  static std::vector<std::uint32_t> zero_counts(const Trial& t);
};

// Computes bias, norm and rotation of one head in double.
std::vector<double> turned(const Case& each, std::vector<double> v, const double* bias,
                           const std::vector<double>& gain, std::uint32_t position) {
  for (std::uint32_t i = 0; i < each.head; ++i)
    v[i] += each.bias ? bias[i] : 0;
  if (each.norm) {
    double squares = 0;
    for (const double x : v)
      squares += x * x;
    const double scale = 1 / std::sqrt(squares / each.head + 1e-6);
    for (std::uint32_t i = 0; i < each.head; ++i)
      v[i] *= scale * gain[i];
  }
  const std::uint32_t pairs = each.rope_dimensions / 2;
  for (std::uint32_t i = 0; i < pairs; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / each.rope_dimensions);
    double& a = v[each.halves ? i : 2 * i];
    double& b = v[each.halves ? i + pairs : 2 * i + 1];
    const double x = a, y = b;
    a = x * std::cos(angle) - y * std::sin(angle);
    b = y * std::cos(angle) + x * std::sin(angle);
  }
  return v;
}

// Compares a position in a page of bytes with rounding in double: `off` counts the entries that are one step off,
// and `near` says that no entry is further off.
struct Rounded {
  std::vector<double> entries;
  std::size_t off = 0;
  bool near = true;
};

Rounded rounded_entries(std::span<const std::uint8_t> head, const std::vector<double>& exact,
                        std::uint32_t slot, std::uint32_t padded, bool is_value) {
  Rounded made;
  const std::uint32_t blocks = padded / 32;
  for (std::uint32_t block = 0; block < blocks; ++block) {
    const std::size_t scale_at =
        std::size_t{32} * padded + (is_value ? slot * blocks + block : block * 32 + slot) * 2;
    const double scale =
        reference::half(static_cast<std::uint16_t>(head[scale_at] | head[scale_at + 1] << 8));
    double largest = 0;
    for (std::uint32_t i = block * 32; i < std::min<std::size_t>(block * 32 + 32, exact.size());
         ++i)
      largest = std::max(largest, std::abs(exact[i]));
    // A half has eleven bits.
    made.near = made.near && std::abs(scale - largest / 127) <= largest / 127 * 0x1p-11 + 1e-7;
    for (std::uint32_t i = block * 32; i < block * 32 + 32; ++i) {
      const std::size_t at = is_value ? slot * padded + i : (i / 8 * 32 + slot) * 8 + i % 8;
      const int step = head[at] - 128;
      const double value = i < exact.size() ? exact[i] : 0;
      const int wanted =
          scale == 0 ? 0 : std::clamp(static_cast<int>(std::nearbyint(value / scale)), -127, 127);
      made.near = made.near && std::abs(step - wanted) <= 1;
      made.off += step != wanted ? 1 : 0;
      if (i < exact.size()) made.entries.push_back(step * scale);
    }
  }
  return made;
}

// One case with one mapping, from its random numbers to the results of its kernels.
struct Attention::Trial {
  Trial(const char* called, const k::Mapping& by, const Case& tried)
      : name(called), mapping(by), each(tried) {}

  const char* name;
  const k::Mapping& mapping;
  const Case& each;
  const k::AttentionShape shape{each.head,   each.heads,  each.kv_heads, each.kv,
                                each.halves, each.window, each.soft_cap, each.sinks};
  const std::uint32_t columns = each.length;
  const std::uint32_t width = (each.heads + 2 * each.kv_heads) * each.head;  // of q, k and v
  const std::uint32_t attended = each.heads * each.head;
  const std::uint32_t stride = k::input_stride(mapping, attended);
  const std::uint32_t context = columns + 200;  // has room for more splits than there are
  const std::uint32_t splits =
      mapping.rows ? mapping.attention_splits : k::attention_splits(mapping, context);

  std::vector<double> qkv, bias, q_gain, k_gain;
  std::vector<std::uint32_t> pages;  // the sequence's from the fourth on, scattered
  gpu::Buffer counts, page_table, kv, q_out;
  gpu::Buffer whole, combined;  // results: [column][stride]
  gpu::Buffer partials, done;
  std::vector<double> sinks;  // [head]
  gpu::Buffer device_sinks;   // times log2(e)
  k::AttentionPush push{};
  std::vector<std::vector<double>> keys, values;  // [position * kv_heads + kv head]

  std::uint32_t page_count() const { return (columns + 31) / 32; }
  std::uint64_t values_at() const { return page_count() * shape.page_bytes(); }  // in kv
  std::size_t results() const { return std::size_t{columns} * stride; }
  // Returns the place of a result's entry among those of its column.
  std::uint32_t at(std::uint32_t i) const {
    return mapping.rows ? i : i / 1024 * 1024 + (i / 4 % 8) * 128 + (i / 32 % 32) * 4 + i % 4;
  }
  // Returns one head of a column; heads are numbered through q, k and v.
  std::vector<double> part(std::uint32_t column, std::uint32_t head) const {
    const auto from = qkv.begin() + static_cast<std::ptrdiff_t>(column * width + head * each.head);
    return {from, from + each.head};
  }
};

std::vector<std::uint32_t> Attention::zero_counts(const Trial& t) {
  return std::vector<std::uint32_t>(std::size_t{t.columns} * t.each.heads *
                                    k::kAttentionCountBytes / 4);
}

// Writes queries to q_out, and keys and values to their pages.
void Attention::rotate_and_store(Trial& t) {
  const Case& each = t.each;
  t.qkv = random_doubles(std::size_t{t.columns} * t.width);
  t.bias = random_doubles(t.width);
  t.q_gain = random_doubles(each.head);
  t.k_gain = random_doubles(each.head);
  model::Rope rotation;
  for (std::uint32_t i = 0; i < each.rope_dimensions / 2; ++i)
    rotation.frequencies.push_back(std::pow(10000.0, -2.0 * i / each.rope_dimensions));
  const RopeTable table = make_rope_table(rotation, t.columns);
  t.pages.assign(t.page_count() + 3, 0xffffffffU);
  for (std::uint32_t i = 0; i < t.page_count(); ++i)
    t.pages[3 + i] = t.page_count() - 1 - i;
  std::vector<k::ColumnEntry> entries;
  for (std::uint32_t i = 0; i < t.columns; ++i)
    entries.push_back({0, i, 3, 0});

  const gpu::Buffer qkv_in = upload(to_float(t.qkv)), biases = upload(to_float(t.bias)),
                    qg = upload(to_float(t.q_gain)), kg = upload(to_float(t.k_gain)),
                    fine = upload(table.fine), coarse = upload(table.coarse);
  t.counts = parameters(t.columns, entries);
  t.page_table = buffer(std::span<const std::uint32_t>(t.pages));
  t.kv = empty(t.values_at() * 2);
  t.q_out = empty(std::uint64_t{t.columns} * each.heads * t.shape.head_padded() * 4);
  k::RopeKvPush rope{};
  rope.qkv = qkv_in.address();
  rope.bias = each.bias ? biases.address() : 0;
  rope.q_gain = each.norm ? qg.address() : 0;
  rope.k_gain = each.norm ? kg.address() : 0;
  rope.fine = fine.address();
  rope.coarse = coarse.address();
  rope.parameters = t.counts.address();
  rope.pages = t.page_table.address();
  rope.keys = t.kv.address();
  rope.values = t.kv.address() + t.values_at();
  rope.q_out = t.q_out.address();
  rope.in_stride = t.width;
  rope.rope_pairs = rotation.pairs();
  rope.epsilon = 1e-6F;
  rope.q_scale = static_cast<float>(1.4426950408889634 / std::sqrt(each.head));
  k::RopeKvRules rules;
  rules.temperature = each.temperature;
  rules.temperature_span = 20;
  if (each.value_norm) rules.values = k::ValueNorm::kUnit;
  run(k::rope_kv(t.mapping, t.shape, rules), rope, t.columns + 2, each.heads + 2 * each.kv_heads);
}

// Makes the buffers that attention reads and writes. The results are NaN at first.
void Attention::make_room(Trial& t) {
  t.whole = empty(t.results() * 4);
  t.combined = empty(t.results() * 4);
  t.partials =
      empty(std::uint64_t{t.columns} * t.each.heads * t.splits * k::partial_floats(t.shape) * 4);
  const auto zeros = zero_counts(t);
  t.done = buffer(std::span<const std::uint32_t>(zeros));
  t.push.q = t.q_out.address();
  t.push.keys = t.kv.address();
  t.push.values = t.kv.address() + t.values_at();
  t.push.parameters = t.counts.address();
  t.push.pages = t.page_table.address();
  t.push.out_address = t.whole.address();
  t.push.out_stride = t.stride;
  t.push.padded_width = (t.attended + 31) / 32 * 32;
  t.push.partials = t.partials.address();
  t.push.counts = t.done.address();
  t.push.most_splits = t.splits;
  t.sinks = random_doubles(t.each.heads);
  std::vector<float> in_powers_of_two;
  for (const double sink : t.sinks)
    in_powers_of_two.push_back(static_cast<float>(sink * 1.4426950408889634));
  t.device_sinks = buffer(std::span<const float>(in_powers_of_two));
  if (t.each.sinks) t.push.sinks = t.device_sinks.address();
}

// The two ways of a CPU: whole columns, and splits, which a second kernel puts together in
// `combined`.
void Attention::attend_by_rows(Trial& t, bool in_splits) {
  const auto one =
      k::attention(t.mapping, t.shape, {}, k::AttentionMode::kWhole, t.columns, t.context);
  run(one.spec, t.push, one.x, one.y, one.z);
  if (!in_splits) return;
  t.push.out_address = t.partials.address();
  const auto two =
      k::attention(t.mapping, t.shape, {}, k::AttentionMode::kPartial, t.columns, t.context);
  run(two.spec, t.push, two.x, two.y, two.z);
  run(k::attention_combine(t.mapping, t.shape),
      k::AttentionCombinePush{t.partials.address(), t.counts.address(), t.combined.address(),
                              t.stride, t.push.padded_width, t.push.sinks},
      t.columns, t.each.heads);
  expect_same_bits(t, "in splits");
}

// One of the ways of a GPU.
struct Attention::Way {
  const char* what;
  k::AttentionMode mode;
  bool in_rounds, chained;
  std::uint32_t columns;  // that it is made for
  std::uint32_t until = k::kNoPosition;
};

// Returns the ways in which the case runs: all that are possible for it, or the one whose turn it
// is.
std::vector<Attention::Way> Attention::ways_of(const Trial& t, Turn turn) {
  const Way all[] = {
      {"whole", k::AttentionMode::kWhole, false, false, t.columns},
      {"spread over some workgroups", k::AttentionMode::kSpread, false, false, 1},
      {"a workgroup of subgroups", k::AttentionMode::kTogether, false, false, 16},
      {"spread over one", k::AttentionMode::kSpread, false, false, 512},
      {"spread, of columns up to a position", k::AttentionMode::kSpread, false, false, 512, 17},
      {"in rounds, none of them spread", k::AttentionMode::kTogether, true, false, 1},
      {"a link of a chain", k::AttentionMode::kTogether, false, true, 1},
  };
  const bool short_splits = t.mapping.attention_split < 64;
  std::vector<Way> taken;
  for (const Way& way : all) {
    // llvmpipe (Mesa 22.3) drops invocations of this module in the loops of columns that are spread.
    if (way.chained && on_cpu()) continue;
    // For each type of pages, the longest context has the most rounds.
    if (way.in_rounds && (!short_splits || (on_cpu() && t.each.length < 300))) continue;
    if (way.mode == k::AttentionMode::kTogether && !short_splits && t.each.length < 64) continue;
    // This way does not depend on splits.
    if (way.until != k::kNoPosition && short_splits && !every_way()) continue;
    taken.push_back(way);
  }
  if (!turn) return taken;
  const std::size_t modes =
      taken[2].mode == k::AttentionMode::kTogether ? 3 : 2;  // the first have one each
  return {taken[*turn % modes]};
}

// The first way writes to `whole`, and each further one to `combined`, which must be equal to
// `whole` to the last bit.
void Attention::attend(Trial& t, const Way& way) {
  const k::AttentionRange range{.from = 0, .until = way.until};
  auto variant =
      k::attention(t.mapping, t.shape, range, way.mode, way.columns, t.context, way.chained);
  if (way.in_rounds) {
    auto constants = k::read_constants<k::AttentionConstants>(variant.spec);
    constants.spread_from = 0xffffffffU;  // none are spread
    k::write_constants(variant.spec, constants);
  }
  const std::uint32_t x = way.mode == k::AttentionMode::kWhole ? variant.x : t.columns;
  std::memset(t.combined.mapped().data(), 0xff, t.combined.mapped().size());
  if (way.chained) {
    const gpu::Buffer arrivals = empty(2 * k::kChainCountBytes);
    struct {
      k::AttentionPush push;
      k::ChainPush link;
    } linked{t.push, {arrivals.address(), arrivals.address() + k::kChainCountBytes, 0, 0}};
    run(k::chained(variant.spec), linked, x, variant.y, variant.z);
  } else {
    run(variant.spec, t.push, x, variant.y, variant.z);
  }
  const auto zeros = zero_counts(t);
  ASSERT_EQ(read<std::uint32_t>(t.done, zeros.size()), zeros) << "counts that are not zero again";
}

void Attention::expect_same_bits(const Trial& t, const char* what, std::uint32_t until) {
  const auto wanted = read<std::uint32_t>(t.whole, t.results()),
             made = read<std::uint32_t>(t.combined, t.results());
  for (std::uint32_t column = 0; column < t.columns; ++column) {
    for (std::uint32_t i = 0; i < t.push.padded_width; ++i) {
      const std::size_t where = column * t.stride + t.at(i);
      ASSERT_EQ(made[where], column < until ? wanted[where] : 0xffffffffU)
          << t.name << ", head of " << t.each.head << ": " << what << " makes other bits, column "
          << column << " entry " << i;
    }
  }
}

// Computes keys and values of every position in double, as the pages' type stores them.
void Attention::find_exact_pages(Trial& t) {
  const Case& each = t.each;
  for (std::uint32_t p = 0; p < t.columns; ++p) {
    for (std::uint32_t kv_head = 0; kv_head < each.kv_heads; ++kv_head) {
      const std::uint32_t h = each.heads + kv_head, v = h + each.kv_heads;
      t.keys.push_back(turned(each, t.part(p, h), &t.bias[h * each.head], t.k_gain, p));
      Case plain = each;  // values are not turned, nor normed with a gain
      plain.norm = each.value_norm;
      plain.rope_dimensions = 0;
      t.values.push_back(turned(plain, t.part(p, v), &t.bias[v * each.head],
                                std::vector<double>(each.head, 1.0), p));
    }
  }
  if (each.kv != k::KvFormat::kQ8) return;
  const auto bytes = read<std::uint8_t>(t.kv, 2 * t.values_at());
  std::size_t rounded_count = 0, off = 0;
  for (const bool is_value : {false, true}) {
    for (std::uint32_t i = 0; i < t.columns * each.kv_heads; ++i) {
      const std::uint32_t p = i / each.kv_heads, page = t.pages[3 + p / 32];
      const std::size_t head_at =
          (is_value ? t.values_at() : 0) + (std::size_t{page} * each.kv_heads + i % each.kv_heads) *
                                               32 * k::kv_position_bytes(each.head, each.kv);
      auto& exact = (is_value ? t.values : t.keys)[i];
      const Rounded rounded = rounded_entries(std::span(bytes).subspan(head_at), exact, p % 32,
                                              t.shape.head_padded(), is_value);
      ASSERT_TRUE(rounded.near) << t.name << " position " << p;
      rounded_count += exact.size();
      off += rounded.off;
      exact = rounded.entries;
    }
  }
  // Now and then a float is rounded to another step than a double.
  EXPECT_LE(off, 1 + rounded_count / 500);
}

// Compares the columns that are worth checking with float64.
void Attention::compare_with_exact(const Trial& t) {
  const Case& each = t.each;
  const auto got = read<float>(t.whole, t.results());
  for (const std::uint32_t column : {0U, t.columns / 3, t.columns - 1}) {
    for (std::uint32_t head = 0; head < each.heads; ++head) {
      const std::uint32_t kv_head = head / (each.heads / each.kv_heads);
      const auto q =
          turned(each, t.part(column, head), &t.bias[head * each.head], t.q_gain, column);
      std::vector<double> scores;
      double largest = each.sinks ? t.sinks[head] : -1e300;
      const std::uint32_t first =
          each.window != 0 && column >= each.window ? column + 1 - each.window : 0;
      for (std::uint32_t p = first; p <= column; ++p) {
        const auto& key = t.keys[p * each.kv_heads + kv_head];
        double dot = 0;
        for (std::uint32_t i = 0; i < each.head; ++i)
          dot += q[i] * key[i];
        const double grown = 1 + each.temperature * std::log(1.0 + column / 20);
        const double score = dot * grown / std::sqrt(each.head);
        scores.push_back(each.soft_cap != 0 ? each.soft_cap * std::tanh(score / each.soft_cap)
                                            : score);
        largest = std::max(largest, scores.back());
      }
      std::vector<double> result(each.head);
      double sum = each.sinks ? std::exp(t.sinks[head] - largest) : 0;
      for (std::uint32_t p = first; p <= column; ++p) {
        const double weight = std::exp(scores[p - first] - largest);
        sum += weight;
        for (std::uint32_t i = 0; i < each.head; ++i)
          result[i] += weight * t.values[p * each.kv_heads + kv_head][i];
      }
      const double tolerance = each.kv == k::KvFormat::kF16 ? 6e-3 : 2e-5;
      for (std::uint32_t i = 0; i < each.head; ++i) {
        const std::size_t where = column * t.stride + t.at(head * each.head + i);
        ASSERT_NEAR(got[where], result[i] / sum, tolerance)
            << t.name << " column " << column << " head " << head << " entry " << i;
      }
    }
    for (std::uint32_t i = t.attended; i < t.push.padded_width; ++i)
      ASSERT_EQ(got[column * t.stride + t.at(i)], 0.0F);
  }
}

void Attention::check(const char* name, const k::Mapping& mapping, const Case& each, Turn turn) {
  Trial trial(name, mapping, each);
  rotate_and_store(trial);
  make_room(trial);
  if (mapping.rows) {
    attend_by_rows(trial, !turn || *turn % 3 == 0);
  } else {
    for (const Way& way : ways_of(trial, turn)) {
      attend(trial, way);
      if (trial.push.out_address == trial.combined.address())
        expect_same_bits(trial, way.what, way.until);
      if (HasFatalFailure()) return;
      trial.push.out_address = trial.combined.address();
    }
  }
  if (HasFatalFailure()) return;
  find_exact_pages(trial);
  if (HasFatalFailure()) return;
  compare_with_exact(trial);
}

TEST_F(Attention, AgreesWithDoubleHoweverItIsShared) {
  using enum k::KvFormat;
  // The first cases run in all ways: for each type of pages one with each mapping of lanes below.
  constexpr std::size_t kAllWays = 6;
  const Case cases[] = {
      {32, 8, 2, 32, false, kF16, false, false, 70},
      {6, 3, 1, 4, false, kF32, true, true, 9},
      {48, 6, 3, 48, true, kQ8, false, false, 40},
      {64, 3, 1, 64, true, kF16, false, false, 300},
      {16, 2, 2, 16, false, kQ8, false, false, 1030},
      {16, 4, 2, 16, false, kF32, false, false, 1100, 0, 3, true},
      {48, 6, 2, 48, true, kQ8, false, false, 160, 33, 0, true},
      {64, 4, 2, 64, true, kF32, true, false, 33},
      {48, 6, 2, 48, true, kF32, false, true, 140},
      {128, 2, 2, 64, true, kF16, false, false, 40},
      {16, 2, 1, 16, false, kF32, false, false, 1100},
      {256, 1, 1, 256, true, kF16, false, false, 5},
      {10, 5, 1, 10, true, kF16, false, true, 65},
      {64, 4, 2, 64, true, kQ8, true, false, 129},
      {32, 8, 2, 32, false, kQ8, false, true, 260},
      {128, 7, 1, 128, false, kQ8, true, false, 34},
      {64, 4, 2, 64, true, kF16, false, true, 200, 48, 6},
      {32, 8, 1, 32, true, kF32, true, false, 300, 130, 0, true},
      {8, 2, 1, 8, false, kF32, false, false, 140, 1},
      {16, 2, 1, 16, true, kF32, true, true, 90, 40, 0, false, 0.1F, true},
      // These sizes and groups of heads are no powers of two.
      {80, 5, 1, 80, true, kF16, true, false, 70},
      {80, 3, 1, 20, false, kQ8, false, true, 66},
      {96, 6, 2, 96, true, kF16, false, true, 130, 100},
      {112, 7, 7, 112, false, kF32, false, false, 35},
      {192, 10, 2, 64, true, kF16, false, false, 40, 32, 0, true},
  };
  std::vector<NamedMapping> mappings = test_mappings(device());
  // Short splits: a short context then has many of them, of several sizes, so that a CPU has little
  // to compute.
  mappings.push_back(mappings.front());
  mappings.back().name = "lanes, short splits";
  mappings.back().mapping.attention_split = 16;
  mappings.back().mapping.attention_splits = 32;
  for (const auto& [name, mapping] : mappings) {
    const bool short_splits = mapping.attention_split == 16;
    std::size_t turn = 0;
    for (std::size_t i = 0; i < std::size(cases); ++i) {
      const Case& each = cases[i];
      if (short_splits && each.length <= 128) continue;
      // Short splits already have more positions than a workgroup takes at once, and a CPU takes seconds for long ones.
      if (on_cpu() && !short_splits && !mapping.rows && each.length > (every_way() ? 1000U : 128U))
        continue;
      check(name, mapping, each, every_way() || i < kAllWays ? Turn() : turn++);
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward
