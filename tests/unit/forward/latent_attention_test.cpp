// Compares attention over latents with float64: the cache's rows and the queries, attention whose values
// are the first entries of its keys, and products of heads that have a matrix each. The bits must be the
// same however the work is shared.
#include <cmath>
#include <cstring>
#include <numeric>

#include "emulated_experts.hpp"
#include "kernel_harness.hpp"
#include "reference.hpp"
#include "worker/forward/rope_table.hpp"
#include "worker/forward/weight_packing.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

constexpr double kLog2E = 1.4426950408889634;

constexpr std::uint32_t kTemperatureSpan = 16;

struct LatentShape {
  std::uint32_t heads, latent, turn, plain;
  k::KvFormat kv;
  std::uint32_t length;
  float temperature = 0;  // with a span of 16 positions
};

class LatentAttention : public KernelTest {
 protected:
  LatentAttention() : KernelTest(31) {}

  struct Trial;
  void store(Trial& t);
  std::vector<float> attend(Trial& t, k::AttentionMode mode, std::uint32_t columns);
  void compare(const Trial& t, const std::vector<float>& made);
};

struct LatentAttention::Trial {
  const char* name;
  k::Mapping mapping;
  LatentShape each;
  k::AttentionShape shape = shape_of(each);
  std::vector<float> q{}, absorbed{}, rows{}, gain{};
  gpu::Buffer counts{}, pages{}, keys{}, q_out{};

  static k::AttentionShape shape_of(const LatentShape& each) {
    k::AttentionShape made{each.latent + each.turn, each.heads, 1, each.kv, false};
    made.value_entries = each.latent;
    return made;
  }
  std::uint32_t stride() const { return k::input_stride(mapping, each.latent); }
  std::uint32_t padded() const { return k::input_padded(mapping, each.latent); }
  std::size_t results() const { return std::size_t{each.length} * each.heads * stride(); }
  double score_scale() const { return 1 / std::sqrt(each.plain + each.turn); }
};

void LatentAttention::store(Trial& t) {
  const LatentShape& each = t.each;
  t.q = random_floats(std::size_t{each.length} * each.heads * (each.plain + each.turn));
  t.absorbed = random_floats(std::size_t{each.length} * each.heads * each.latent);
  t.rows = random_floats(std::size_t{each.length} * (each.latent + each.turn));
  t.gain = random_floats(each.latent);
  model::Rope rotation;
  for (std::uint32_t i = 0; i < each.turn / 2; ++i)
    rotation.frequencies.push_back(std::pow(10000.0, -2.0 * i / each.turn));
  const RopeTable table = make_rope_table(rotation, each.length);
  const std::uint32_t page_count = (each.length + 31) / 32;
  std::vector<std::uint32_t> pages(page_count + 3, 0xffffffffU);
  for (std::uint32_t i = 0; i < page_count; ++i)
    pages[3 + i] = page_count - 1 - i;
  std::vector<k::ColumnEntry> entries;
  for (std::uint32_t i = 0; i < each.length; ++i)
    entries.push_back({0, i, 3, 0});
  t.counts = parameters(each.length, entries);
  t.pages = buffer(std::span<const std::uint32_t>(pages));
  t.keys = empty(page_count * t.shape.page_bytes());
  t.q_out = empty(std::uint64_t{each.length} * each.heads * t.shape.head_padded() * 4);
  const gpu::Buffer q = upload(t.q), absorbed = upload(t.absorbed), rows = upload(t.rows),
                    gain = upload(t.gain), fine = upload(table.fine), coarse = upload(table.coarse);
  k::RopeLatentPush push{};
  push.q = q.address();
  push.absorbed = absorbed.address();
  push.row = rows.address();
  push.gain = gain.address();
  push.fine = fine.address();
  push.coarse = coarse.address();
  push.parameters = t.counts.address();
  push.pages = t.pages.address();
  push.keys = t.keys.address();
  push.q_out = t.q_out.address();
  push.q_head = each.plain + each.turn;
  push.row_stride = each.latent + each.turn;
  push.rope_pairs = each.turn / 2;
  push.epsilon = 1e-6F;
  push.q_scale = static_cast<float>(kLog2E * t.score_scale());
  run(k::rope_latent(t.mapping, t.shape, each.temperature, kTemperatureSpan), push, each.length + 2,
      each.heads + 1);
}

// Returns [column][head][stride], computed by the kernel for steps of this many columns.
std::vector<float> LatentAttention::attend(Trial& t, k::AttentionMode mode, std::uint32_t columns) {
  const LatentShape& each = t.each;
  const std::uint32_t context = each.length + 200;
  const std::uint32_t splits =
      t.mapping.rows ? t.mapping.attention_splits : k::attention_splits(t.mapping, context);
  const gpu::Buffer out = empty(t.results() * 4);
  const gpu::Buffer partials =
      empty(std::uint64_t{each.length} * each.heads * splits * k::partial_floats(t.shape) * 4);
  const std::vector<std::uint32_t> zeros(std::size_t{each.length} * each.heads *
                                         k::kAttentionCountBytes / 4);
  const gpu::Buffer done = buffer(std::span<const std::uint32_t>(zeros));
  k::AttentionPush push{};
  push.q = t.q_out.address();
  push.keys = push.values = t.keys.address();
  push.parameters = t.counts.address();
  push.pages = t.pages.address();
  push.out_address = mode == k::AttentionMode::kPartial ? partials.address() : out.address();
  push.out_stride = t.stride();
  push.padded_width = t.padded();
  push.partials = partials.address();
  push.counts = done.address();
  push.most_splits = splits;
  const auto variant = k::attention(t.mapping, t.shape, {}, mode, columns, context);
  const bool shared_columns = mode == k::AttentionMode::kWhole && !t.mapping.rows;
  const std::uint32_t x = shared_columns ? variant.x : each.length;
  run(variant.spec, push, x, variant.y, variant.z);
  if (mode == k::AttentionMode::kPartial)
    run(k::attention_combine(t.mapping, t.shape),
        k::AttentionCombinePush{partials.address(), t.counts.address(), out.address(), t.stride(),
                                t.padded(), 0},
        each.length, each.heads);
  EXPECT_EQ(read<std::uint32_t>(done, zeros.size()), zeros) << "counts that are not zero again";
  return read<float>(out, t.results());
}

std::vector<double> turned_row(std::vector<double> v, std::uint32_t first, std::uint32_t turn,
                               std::uint32_t position) {
  for (std::uint32_t i = 0; i < turn / 2; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / turn);
    double& a = v[first + 2 * i];
    double& b = v[first + 2 * i + 1];
    const double x = a, y = b;
    a = x * std::cos(angle) - y * std::sin(angle);
    b = y * std::cos(angle) + x * std::sin(angle);
  }
  return v;
}

void LatentAttention::compare(const Trial& t, const std::vector<float>& made) {
  const LatentShape& each = t.each;
  const std::uint32_t row = each.latent + each.turn, q_head = each.plain + each.turn;
  std::vector<std::vector<double>> cache;
  for (std::uint32_t p = 0; p < each.length; ++p) {
    std::vector<double> own(t.rows.begin() + p * row, t.rows.begin() + (p + 1) * row);
    double squares = 0;
    for (std::uint32_t i = 0; i < each.latent; ++i)
      squares += own[i] * own[i];
    for (std::uint32_t i = 0; i < each.latent; ++i)
      own[i] *= static_cast<double>(t.gain[i]) / std::sqrt(squares / each.latent + 1e-6);
    cache.push_back(turned_row(std::move(own), each.latent, each.turn, p));
  }
  for (const std::uint32_t column : {0U, each.length / 3, each.length - 1}) {
    for (std::uint32_t head = 0; head < each.heads; ++head) {
      const std::size_t pair = std::size_t{column} * each.heads + head;
      const auto latent = t.absorbed.begin() + static_cast<std::ptrdiff_t>(pair * each.latent);
      const auto turning = t.q.begin() + static_cast<std::ptrdiff_t>(pair * q_head + each.plain);
      std::vector<double> q(latent, latent + each.latent);
      q.insert(q.end(), turning, turning + each.turn);
      q = turned_row(std::move(q), each.latent, each.turn, column);
      std::vector<double> scores;
      const double growth =
          1 + static_cast<double>(each.temperature) * std::log(1.0 + column / kTemperatureSpan);
      for (std::uint32_t p = 0; p <= column; ++p)
        scores.push_back(t.score_scale() * growth *
                         std::inner_product(q.begin(), q.end(), cache[p].begin(), 0.0));
      const double largest = *std::max_element(scores.begin(), scores.end());
      std::vector<double> result(each.latent);
      double sum = 0;
      for (std::uint32_t p = 0; p <= column; ++p) {
        const double weight = std::exp(scores[p] - largest);
        sum += weight;
        for (std::uint32_t i = 0; i < each.latent; ++i)
          result[i] += weight * cache[p][i];
      }
      // Scores are as large as sqrt(latent / head), so rounding to halves and bytes changes them
      // more.
      const double tolerance = each.kv == k::KvFormat::kF32   ? 1e-4
                               : each.kv == k::KvFormat::kF16 ? 2e-2
                                                              : 0.15;
      for (std::uint32_t i = 0; i < t.padded(); ++i) {
        const float got = made[pair * t.stride() + place_in_input(t.mapping, i)];
        if (i < each.latent) {
          ASSERT_NEAR(got, result[i] / sum, tolerance)
              << t.name << " column " << column << " head " << head << " entry " << i;
        } else {
          ASSERT_EQ(got, 0.0F) << t.name << " entry " << i;
        }
      }
    }
  }
}

TEST_F(LatentAttention, AgreesWithDoubleHoweverItIsShared) {
  using enum k::KvFormat;
  const LatentShape shapes[] = {{4, 128, 32, 48, kF32, 140}, {4, 64, 32, 64, kF16, 300},
                                {5, 64, 16, 32, kQ8, 129},   {3, 512, 64, 128, kF16, 40},
                                {1, 20, 6, 10, kF32, 67},    {2, 64, 16, 32, kF32, 90, 0.5F}};
  for (const auto& [name, mapping] : test_mappings(device())) {
    for (const LatentShape& each : shapes) {
      SCOPED_TRACE(testing::Message() << name << ", latents of " << each.latent);
      // For each type of pages, one shape runs in all ways.
      const bool all = every_way() || &each < shapes + 3;
      Trial trial{name, mapping, each};
      // A short sequence then has many splits.
      trial.mapping.attention_split = 16;
      trial.mapping.attention_splits = 16;
      store(trial);
      // The other shapes run whole or in shares, in turn.
      const bool shared_out = !all && (&each - shapes) % 2 != 0;
      const auto mode = !shared_out    ? k::AttentionMode::kWhole
                        : mapping.rows ? k::AttentionMode::kPartial
                                       : k::AttentionMode::kSpread;
      const auto whole = attend(trial, mode, shared_out ? 1 : each.length);
      ASSERT_NO_FATAL_FAILURE(compare(trial, whole));
      if (!all) continue;
      const auto expect_same = [&](const std::vector<float>& other, const char* how) {
        for (std::size_t pair = 0; pair < std::size_t{each.length} * each.heads; ++pair) {
          for (std::uint32_t i = 0; i < trial.padded(); ++i) {
            const std::size_t at = pair * trial.stride() + place_in_input(mapping, i);
            ASSERT_EQ(std::memcmp(&whole[at], &other[at], 4), 0) << how << ", entry " << i;
          }
        }
      };
      if (mapping.rows) {
        expect_same(attend(trial, k::AttentionMode::kPartial, each.length), "in splits");
        expect_same(attend(trial, k::AttentionMode::kWhole, 1), "as a narrow step has it");
      } else {
        expect_same(attend(trial, k::AttentionMode::kSpread, 1), "spread over some workgroups");
        expect_same(attend(trial, k::AttentionMode::kSpread, 512), "spread over one");
      }
      if (HasFatalFailure()) return;
    }
  }
}

// Matrices of heads: slices of a tensor, each with inputs of its own.
struct HeadMatrices {
  model::TensorType type;
  std::uint32_t slices, rows, width;
  std::vector<std::byte> data{};
  std::vector<model::TensorInfo> tensors{};
  std::vector<float> x{};  // [pair of a column and a slice][width]

  std::size_t row_bytes() const { return data.size() / (std::size_t{slices} * rows); }
  std::vector<const model::TensorInfo*> views() {
    tensors.resize(slices);
    std::vector<const model::TensorInfo*> all;
    for (std::uint32_t s = 0; s < slices; ++s) {
      tensors[s].type = type;
      tensors[s].ne = {width, rows, 1, 1};
      tensors[s].dimensions = 2;
      tensors[s].data = std::span(data).subspan(s * rows * row_bytes(), rows * row_bytes());
      all.push_back(&tensors[s]);
    }
    return all;
  }
  // Writes the inputs in the form that the mapping's products read.
  void fill(std::byte* to, const k::Mapping& mapping, std::uint32_t pairs) const {
    const std::uint32_t stride = k::input_stride(mapping, width);
    for (std::uint32_t pair = 0; pair < pairs; ++pair) {
      for (std::uint32_t i = 0; i < k::input_padded(mapping, width); ++i) {
        const float value = i < width ? x[pair * width + i] : 0.0F;
        if (mapping.units) {
          const std::uint16_t bits = k::types::to_half(value);
          std::memcpy(to + ((pair / 8 * (stride / 32) + i / 32) * 256 + pair % 8 * 32 + i % 32) * 2,
                      &bits, 2);
        } else {
          std::memcpy(to + (pair * stride + place_in_input(mapping, i)) * 4, &value, 4);
        }
      }
    }
  }
  // `error`: the allowed error in relation to the sum of the terms' magnitudes.
  void expect_near(const std::vector<float>& made, double error) const {
    for (std::uint32_t at = 0; at < made.size(); ++at) {
      const std::uint32_t pair = at / rows, slice = pair % slices;
      const auto row = reference::dequantize(
          type, std::span(data).subspan((slice * rows + at % rows) * row_bytes(), row_bytes()),
          width);
      double sum = 0, magnitude = 0;
      for (std::uint32_t i = 0; i < width; ++i) {
        const double term = row[i] * static_cast<double>(x[pair * width + i]);
        sum += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(made[at], sum, error * magnitude + 1e-6) << "pair " << pair;
    }
  }
};

class HeadProducts : public LatentAttention {
 protected:
  std::vector<float> multiply(const HeadMatrices& each, const k::Mapping& mapping,
                              const PackedMatrix& packed, const gpu::Buffer& memory,
                              std::uint32_t count) {
    const std::uint32_t stride = k::input_stride(mapping, each.width);
    const std::uint32_t pairs = count * each.slices;
    const gpu::Buffer in = empty((pairs + 7) / 8 * 8 * stride * 4);
    each.fill(in.mapped().data(), mapping, pairs);
    k::MatvecShape shape;
    shape.type = packed.type();
    shape.rows = each.rows;
    shape.groups = packed.layout().groups;
    shape.together = each.slices;
    k::SliceProduct product = k::slice_product(mapping, shape, each.slices, count);
    if (mapping.units) emulate_experts(product.variant, shape);
    const gpu::Buffer out = empty(std::size_t{pairs} * each.rows * 4), counts = parameters(count);
    k::ExpertPush push{};
    push.product.quants = memory.address() + packed.layout().quants;
    push.product.high = memory.address() + packed.layout().high;
    push.product.scales = memory.address() + packed.layout().scales;
    push.product.supers = memory.address() + packed.layout().supers;
    push.product.x = in.address();
    push.product.out_address = out.address();
    push.product.parameters = counts.address();
    push.product.rows = push.product.written_rows = push.product.out_stride = each.rows;
    push.product.groups = shape.groups;
    push.product.x_stride = stride;
    run(product.variant.spec, push, product.workgroups,
        (each.rows + product.variant.rows_per_workgroup - 1) / product.variant.rows_per_workgroup);
    return read<float>(out, std::size_t{pairs} * each.rows);
  }
};

TEST_F(HeadProducts, OfMatricesOfTheirOwnKeepTheirBits) {
  using model::TensorType;
  std::vector<NamedMapping> mappings = test_mappings(device());
  k::Mapping units = k::lanes_mapping(device().info());
  units.units = true;
  mappings.push_back({"units, emulated", units});
  for (HeadMatrices each :
       {HeadMatrices{TensorType::kF16, 4, 96, 48}, HeadMatrices{TensorType::kQ8_0, 5, 52, 96},
        HeadMatrices{TensorType::kQ5_0, 3, 64, 64}}) {
    each.data = reference::random_rows(each.type, std::size_t{each.slices} * each.rows, each.width,
                                       random_);
    const std::vector<const model::TensorInfo*> views = each.views();
    each.x = random_floats(std::size_t{33} * each.slices * each.width);
    for (float& value : each.x)
      value = std::round(value * 64) / 64;  // halves hold it
    for (const auto& [name, mapping] : mappings) {
      const PackedMatrix packed(views, {}, mapping.units ? Packing::kUnits : Packing::kPlanes,
                                each.slices);
      const gpu::Buffer memory = empty(packed.layout().bytes);
      packed.fill(0, memory.mapped());
      std::vector<float> first;
      for (const std::uint32_t count : {33U, 16U, 3U, 1U}) {
        // Each type is tested with the most columns, and each other number of columns with one
        // type.
        const TensorType takes = count == 16  ? TensorType::kF16
                                 : count == 3 ? TensorType::kQ8_0
                                              : TensorType::kQ5_0;
        if (!every_way() && count != 33 && takes != each.type) continue;
        SCOPED_TRACE(testing::Message() << name << ' ' << model::traits(each.type)->name << ", "
                                        << count << " columns");
        const std::vector<float> made = multiply(each, mapping, packed, memory, count);
        if (first.empty()) {
          first = made;
          ASSERT_NO_FATAL_FAILURE(each.expect_near(made, mapping.units ? 0x1p-11 : 1e-6));
        }
        ASSERT_EQ(std::memcmp(made.data(), first.data(), made.size() * 4), 0);
      }
    }
  }
}

}  // namespace
}  // namespace bulkhead::forward
