// Rotation, KV pages and attention against float64: several columns of sequences whose pages are
// scattered, lengths around the borders of pages, blocks and splits, grouped heads, every page
// type; and that all ways of sharing the work agree to the last bit.
#include <cmath>
#include <random>

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
};

class Attention : public KernelTest {
 protected:
  std::vector<double> random_doubles(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<double> values(count);
    for (double& value : values)
      value = static_cast<double>(normal(random_));
    return values;
  }
  static std::vector<float> to_float(const std::vector<double>& from) {
    return {from.begin(), from.end()};
  }

  void check(const char* name, const k::Mapping& mapping, const Case& each);

  std::mt19937 random_{99};
};

// Bias, norm and rotation of one head in double.
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

// What a page of bytes says of a position, and how that goes with rounding in double: entries that are one step off, and
// whether no entry is further.
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
    // A half's eleven bits.
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

void Attention::check(const char* name, const k::Mapping& mapping, const Case& each) {
  const k::AttentionShape shape{each.head, each.heads, each.kv_heads, each.kv, each.halves};
  const std::uint32_t columns = each.length, width = (each.heads + 2 * each.kv_heads) * each.head;
  const auto qkv = random_doubles(std::size_t{columns} * width), bias = random_doubles(width),
             q_gain = random_doubles(each.head), k_gain = random_doubles(each.head);

  model::ModelConfig config;
  config.rope_dimensions = each.rope_dimensions;
  const RopeTable table = make_rope_table(config, {}, columns);
  const std::uint32_t page_count = (columns + 31) / 32;
  std::vector<std::uint32_t> pages(page_count + 3, 0xffffffffU);
  for (std::uint32_t i = 0; i < page_count; ++i)
    pages[3 + i] = page_count - 1 - i;
  std::vector<k::ColumnEntry> entries;
  for (std::uint32_t i = 0; i < columns; ++i)
    entries.push_back({0, i, 3, 0});

  const auto upload = [this](const std::vector<float>& v) {
    return buffer(std::span<const float>(v));
  };
  const gpu::Buffer qkv_in = upload(to_float(qkv)), biases = upload(to_float(bias)),
                    qg = upload(to_float(q_gain)), kg = upload(to_float(k_gain)),
                    fine = upload(table.fine), coarse = upload(table.coarse),
                    counts = parameters(columns, entries),
                    page_table = buffer(std::span<const std::uint32_t>(pages)),
                    kv = empty(page_count * shape.page_bytes() * 2),
                    q_out = empty(std::uint64_t{columns} * each.heads * shape.head_padded() * 4);
  k::RopeKvPush rope{};
  rope.qkv = qkv_in.address();
  rope.bias = each.bias ? biases.address() : 0;
  rope.q_gain = each.norm ? qg.address() : 0;
  rope.k_gain = each.norm ? kg.address() : 0;
  rope.fine = fine.address();
  rope.coarse = coarse.address();
  rope.parameters = counts.address();
  rope.pages = page_table.address();
  rope.keys = kv.address();
  rope.values = kv.address() + page_count * shape.page_bytes();
  rope.q_out = q_out.address();
  rope.in_stride = width;
  rope.rope_pairs = table.pairs;
  rope.epsilon = 1e-6F;
  rope.q_scale = static_cast<float>(1.4426950408889634 / std::sqrt(each.head));
  run(k::rope_kv(mapping, shape), rope, columns + 2, each.heads + 2 * each.kv_heads);

  const std::uint32_t attended = each.heads * each.head,
                      stride = k::input_stride(mapping, attended);
  const auto at = [&](std::uint32_t i) {
    return mapping.rows ? i : i / 1024 * 1024 + (i / 4 % 8) * 128 + (i / 32 % 32) * 4 + i % 4;
  };
  const gpu::Buffer arrivals = empty(2 * k::kChainCountBytes);
  const gpu::Buffer whole = empty(std::uint64_t{columns} * stride * 4),
                    combined = empty(std::uint64_t{columns} * stride * 4);
  // A context that allows for more splits than there are.
  const std::uint32_t context = columns + 200, splits = mapping.rows
                                                            ? mapping.attention_splits
                                                            : k::attention_splits(mapping, context);
  const gpu::Buffer partials =
      empty(std::uint64_t{columns} * each.heads * splits * k::partial_floats(shape) * 4);
  const std::vector<std::uint32_t> zeros(std::size_t{columns} * each.heads *
                                         k::kAttentionCountBytes / 4);
  const gpu::Buffer done = buffer(std::span<const std::uint32_t>(zeros));
  k::AttentionPush push{};
  push.q = q_out.address();
  push.keys = rope.keys;
  push.values = rope.values;
  push.parameters = counts.address();
  push.pages = page_table.address();
  push.out = whole.address();
  push.out_stride = stride;
  push.padded_width = (attended + 31) / 32 * 32;
  push.partials = partials.address();
  push.counts = done.address();
  push.most_splits = splits;
  const auto one = k::attention(mapping, shape, k::AttentionMode::kWhole, columns, context);
  run(one.spec, push, one.x, one.y, one.z);
  if (mapping.rows) {
    push.out = partials.address();
    const auto two = k::attention(mapping, shape, k::AttentionMode::kPartial, columns, context);
    run(two.spec, push, two.x, two.y, two.z);
    run(k::attention_combine(mapping, shape),
        k::AttentionCombinePush{partials.address(), counts.address(), combined.address(), stride,
                                push.padded_width},
        columns, each.heads);
  } else {
    push.out = combined.address();
    const auto wanted = read<float>(whole, std::size_t{columns} * stride);
    struct Way {
      const char* what;
      k::AttentionMode mode;
      bool in_rounds, chained;
      std::uint32_t columns;  // that it is made for
    };
    const Way ways[] = {
        {"spread over some workgroups", k::AttentionMode::kSpread, false, false, 1},
        {"spread over one", k::AttentionMode::kSpread, false, false, 512},
        {"a workgroup of subgroups", k::AttentionMode::kTogether, false, false, 16},
        {"in rounds, as in the persistent kernel", k::AttentionMode::kTogether, true, false, 1},
        {"a link of a chain", k::AttentionMode::kTogether, false, true, 1},
    };
    for (const Way& way : ways) {
      // llvmpipe (Mesa 22.3) drops invocations of this module in the loops of columns that are spread.
      if (way.chained && device().info().kind == gpu::DeviceKind::kCpu) continue;
      // It takes seconds to compile a kernel, too.
      const bool short_splits = mapping.attention_split < 64;
      if (way.in_rounds && !short_splits) continue;
      if (way.mode == k::AttentionMode::kTogether && !short_splits && each.length < 64) continue;
      auto variant = k::attention(mapping, shape, way.mode, way.columns, context, way.chained);
      if (way.in_rounds) variant.spec.constants.back() = 0xffffffffU;  // none are spread
      std::memset(combined.mapped().data(), 0xff, combined.mapped().size());
      if (way.chained) {
        struct {
          k::AttentionPush push;
          k::ChainPush link;
        } linked{push, {arrivals.address(), arrivals.address() + k::kChainCountBytes, 0, 0}};
        run(k::chained(variant.spec), linked, columns, variant.y, variant.z);
      } else {
        run(variant.spec, push, columns, variant.y, variant.z);
      }
      const auto made = read<float>(combined, std::size_t{columns} * stride);
      for (std::uint32_t column = 0; column < columns; ++column) {
        for (std::uint32_t i = 0; i < push.padded_width; ++i) {
          const std::size_t where = column * stride + at(i);
          ASSERT_EQ(std::memcmp(&made[where], &wanted[where], 4), 0)
              << name << ", head of " << each.head << ": " << way.what
              << " makes other bits, column " << column << " entry " << i;
        }
      }
      ASSERT_EQ(read<std::uint32_t>(done, zeros.size()), zeros) << "counts that are not zero again";
    }
  }

  // Keys and values of every position in double, as the pages' type has them, then the columns worth checking.
  const auto part = [&](std::uint32_t column, std::uint32_t head) {
    const auto from = qkv.begin() + static_cast<std::ptrdiff_t>(column * width + head * each.head);
    return std::vector<double>(from, from + each.head);
  };
  const auto got = read<float>(whole, std::size_t{columns} * stride);
  const auto other = read<float>(combined, std::size_t{columns} * stride);
  std::vector<std::vector<double>> keys, values;  // [position * kv_heads + kv head]
  for (std::uint32_t p = 0; p < columns; ++p) {
    for (std::uint32_t kv_head = 0; kv_head < each.kv_heads; ++kv_head) {
      const std::uint32_t h = each.heads + kv_head, v = h + each.kv_heads;
      keys.push_back(turned(each, part(p, h), &bias[h * each.head], k_gain, p));
      Case plain = each;  // values are neither normed nor turned
      plain.norm = false;
      plain.rope_dimensions = 0;
      values.push_back(turned(plain, part(p, v), &bias[v * each.head], k_gain, p));
    }
  }
  if (each.kv == k::KvFormat::kQ8) {
    const auto bytes = read<std::uint8_t>(kv, 2 * page_count * shape.page_bytes());
    std::size_t rounded_count = 0, off = 0;
    for (const bool is_value : {false, true}) {
      for (std::uint32_t i = 0; i < columns * each.kv_heads; ++i) {
        const std::uint32_t p = i / each.kv_heads, page = pages[3 + p / 32];
        const std::size_t head_at = (is_value ? page_count * shape.page_bytes() : 0) +
                                    (std::size_t{page} * each.kv_heads + i % each.kv_heads) * 32 *
                                        k::kv_position_bytes(each.head, each.kv);
        auto& exact = (is_value ? values : keys)[i];
        const Rounded rounded = rounded_entries(std::span(bytes).subspan(head_at), exact, p % 32,
                                                shape.head_padded(), is_value);
        ASSERT_TRUE(rounded.near) << name << " position " << p;
        rounded_count += exact.size();
        off += rounded.off;
        exact = rounded.entries;
      }
    }
    // Floats fall on the other side of a half now and then.
    EXPECT_LE(off, 1 + rounded_count / 500);
  }
  for (const std::uint32_t column : {0U, columns / 3, columns - 1}) {
    for (std::uint32_t head = 0; head < each.heads; ++head) {
      const std::uint32_t kv_head = head / (each.heads / each.kv_heads);
      const auto q = turned(each, part(column, head), &bias[head * each.head], q_gain, column);
      std::vector<double> scores;
      double largest = -1e300, sum = 0;
      for (std::uint32_t p = 0; p <= column; ++p) {
        const auto& key = keys[p * each.kv_heads + kv_head];
        double dot = 0;
        for (std::uint32_t i = 0; i < each.head; ++i)
          dot += q[i] * key[i];
        scores.push_back(dot / std::sqrt(each.head));
        largest = std::max(largest, scores.back());
      }
      std::vector<double> result(each.head);
      for (std::uint32_t p = 0; p <= column; ++p) {
        const double weight = std::exp(scores[p] - largest);
        sum += weight;
        for (std::uint32_t i = 0; i < each.head; ++i)
          result[i] += weight * values[p * each.kv_heads + kv_head][i];
      }
      const double tolerance = each.kv == k::KvFormat::kF16 ? 6e-3 : 2e-5;
      for (std::uint32_t i = 0; i < each.head; ++i) {
        const std::size_t where = column * stride + at(head * each.head + i);
        ASSERT_NEAR(got[where], result[i] / sum, tolerance)
            << name << " column " << column << " head " << head << " entry " << i;
      }
    }
    for (std::uint32_t i = 0; i < push.padded_width; ++i) {
      const std::size_t where = column * stride + at(i);
      ASSERT_EQ(std::memcmp(&got[where], &other[where], 4), 0)
          << name << ": modes differ, column " << column << " entry " << i;
      if (i >= attended) {
        ASSERT_EQ(got[where], 0.0F);
      }
    }
  }
}

TEST_F(Attention, AgreesWithDoubleHoweverItIsShared) {
  using enum k::KvFormat;
  const Case cases[] = {
      {32, 8, 2, 32, false, kF16, false, false, 70},
      {64, 4, 2, 64, true, kF32, true, false, 33},
      {48, 6, 2, 48, true, kF32, false, true, 140},
      {6, 3, 1, 4, false, kF32, true, true, 9},
      {128, 2, 2, 64, true, kF16, false, false, 40},
      {16, 2, 1, 16, false, kF32, false, false, 1100},
      {256, 1, 1, 256, true, kF16, false, false, 5},
      {10, 5, 1, 10, true, kF16, false, true, 65},
      {64, 3, 1, 64, true, kF16, false, false, 300},
      {64, 4, 2, 64, true, kQ8, true, false, 129},
      {32, 8, 2, 32, false, kQ8, false, true, 260},
      {48, 6, 3, 48, true, kQ8, false, false, 40},
      {128, 7, 1, 128, false, kQ8, true, false, 34},
      {16, 2, 2, 16, false, kQ8, false, false, 1030},
  };
  std::vector<NamedMapping> mappings = test_mappings(device());
  // Shorter splits, so that there are many, of several sizes, where a CPU need not look far.
  mappings.push_back(mappings.front());
  mappings.back().name = "lanes, short splits";
  mappings.back().mapping.attention_split = 16;
  mappings.back().mapping.attention_splits = 32;
  for (const auto& [name, mapping] : mappings) {
    const bool short_splits = mapping.attention_split == 16;
    for (const Case& each : cases) {
      if (!short_splits || each.length > 128) check(name, mapping, each);
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward
