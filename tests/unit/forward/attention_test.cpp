// Rotation, KV pages and attention against float64: several columns of sequences whose pages are
// scattered, lengths around the borders of pages, blocks and splits, grouped heads, both page
// types; and that the two attention modes agree to the last bit.
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
  bool halves, kv_float, bias, norm;
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

void Attention::check(const char* name, const k::Mapping& mapping, const Case& each) {
  const k::AttentionShape shape{each.head, each.heads, each.kv_heads, each.kv_float, each.halves};
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
  const gpu::Buffer whole = empty(std::uint64_t{columns} * stride * 4),
                    combined = empty(std::uint64_t{columns} * stride * 4),
                    partials = empty(std::uint64_t{columns} * each.heads * k::kMaximumSplits *
                                     k::partial_floats(shape) * 4);
  k::AttentionPush push{};
  push.q = q_out.address();
  push.keys = rope.keys;
  push.values = rope.values;
  push.parameters = counts.address();
  push.pages = page_table.address();
  push.out = whole.address();
  push.out_stride = stride;
  push.padded_width = (attended + 31) / 32 * 32;
  const auto one = k::attention(mapping, shape, k::AttentionMode::kWhole);
  run(one.spec, push, columns, each.heads / one.heads_per_workgroup);
  push.out = partials.address();
  const auto two = k::attention(mapping, shape, k::AttentionMode::kPartial);
  run(two.spec, push, columns, each.heads / two.heads_per_workgroup, k::kMaximumSplits);
  run(k::attention_combine(mapping, shape),
      k::AttentionCombinePush{partials.address(), counts.address(), combined.address(), stride,
                              push.padded_width},
      columns, each.heads);

  if (mapping.attention_together) {
    const gpu::Buffer together = empty(std::uint64_t{columns} * stride * 4);
    push.out = together.address();
    run(k::attention(mapping, shape, k::AttentionMode::kTogether).spec, push, columns, each.heads);
    const auto made = read<float>(together, std::size_t{columns} * stride);
    const auto wanted = read<float>(whole, std::size_t{columns} * stride);
    ASSERT_EQ(std::memcmp(made.data(), wanted.data(), made.size() * 4), 0)
        << name << ": a workgroup of subgroups makes other bits than one subgroup";
  }

  // Keys and values of every position in double, then the columns worth checking.
  const auto part = [&](std::uint32_t column, std::uint32_t head) {
    const auto from = qkv.begin() + static_cast<std::ptrdiff_t>(column * width + head * each.head);
    return std::vector<double>(from, from + each.head);
  };
  const auto got = read<float>(whole, std::size_t{columns} * stride);
  const auto other = read<float>(combined, std::size_t{columns} * stride);
  const auto at = [&](std::uint32_t i) {
    return mapping.rows ? i : i / 1024 * 1024 + (i / 4 % 8) * 128 + (i / 32 % 32) * 4 + i % 4;
  };
  for (const std::uint32_t column : {0U, columns / 3, columns - 1}) {
    for (std::uint32_t head = 0; head < each.heads; ++head) {
      const std::uint32_t kv_head = head / (each.heads / each.kv_heads);
      const auto q = turned(each, part(column, head), &bias[head * each.head], q_gain, column);
      std::vector<double> scores;
      double largest = -1e300, sum = 0;
      for (std::uint32_t p = 0; p <= column; ++p) {
        const std::uint32_t h = each.heads + kv_head;
        const auto key = turned(each, part(p, h), &bias[h * each.head], k_gain, p);
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
        const std::uint32_t h = each.heads + each.kv_heads + kv_head;
        for (std::uint32_t i = 0; i < each.head; ++i) {
          result[i] += weight * (part(p, h)[i] + (each.bias ? bias[h * each.head + i] : 0));
        }
      }
      const double tolerance = each.kv_float ? 2e-5 : 6e-3;
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

TEST_F(Attention, AgreesWithDouble) {
  const Case cases[] = {
      {32, 8, 2, 32, false, false, false, false, 70},
      {64, 4, 2, 64, true, true, true, false, 33},
      {48, 6, 2, 48, true, true, false, true, 140},
      {6, 3, 1, 4, false, true, true, true, 9},
      {128, 2, 2, 64, true, false, false, false, 40},
      {16, 2, 1, 16, false, true, false, false, 1100},
      {256, 1, 1, 256, true, false, false, false, 5},
      {10, 5, 1, 10, true, false, false, true, 65},
  };
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const Case& each : cases)
      check(name, mapping, each);
  }
}

}  // namespace
}  // namespace bulkhead::forward
