// Finds out which way of dividing attention's work is fastest on a device with matrix units, and shows what the
// device's compiler says about each way's registers. Attention without units is shown for comparison. Every way with
// units computes the same bits (gpu/kernels/README.md); the hash of the results after each time shows that.
//
//   bench-attention [--device SELECTOR] [--columns 1,4,16,512] [--depths 512,8192] [--shapes SUBSTRING] [--all]
//                   [--lanes] [--own] [--kv-type TYPE]
//
// Up to 64 columns each belong to their own sequence, which is `depth` positions long. More columns are one
// sequence's prompt, after `depth` positions.
//
// --lanes instead times the ways of dividing attention without matrix units, for columns that each belong to their own
// sequence. --own times the ways with matrix units for such columns, which have no neighbour in their step.
//
// --kv-type gives keys and values another type of engine.kv_type. If matrix units cannot compute a shape's attention
// with this type, the program times only the way without them.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/program.hpp"
#include "config/base/fnv1a.hpp"
#include "config/base/program_options.hpp"
#include "config/config.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"
#include "gpu/kernels/attention_constants.hpp"
#include "worker/forward/kernel_compiler.hpp"
#include "worker/forward/memory_need.hpp"

namespace {

using namespace bulkhead;  // NOLINT: a program
namespace k = gpu::kernels;

struct Shape {
  const char* name;
  std::uint32_t head, heads, kv_heads;
  std::uint32_t value_entries = 0;  // as in AttentionShape, like those that follow
  std::uint32_t window = 0;
  bool sinks = false;
};
constexpr Shape kShapes[] = {{"1B", 64, 32, 8},
                             {"8B", 128, 32, 8},
                             {"Qwen 7B", 128, 28, 4},
                             {"Qwen3 30B", 128, 32, 4},
                             {"phi-4", 128, 40, 10},
                             {"gemma-3", 256, 16, 8},
                             {"gemma-3 window", 256, 16, 8, 0, 1024},
                             {"gpt-oss", 64, 64, 8, 0, 0, true},
                             {"gpt-oss window", 64, 64, 8, 0, 128, true},
                             {"DeepSeek", 576, 16, 1, 512},
                             {"GLM Flash", 576, 20, 1, 512}};

struct Plan {
  std::string device = "auto", shapes, kv_type = "f16";
  std::vector<std::uint32_t> columns{1, 4, 16, 512}, depths{512, 8192};
  bool all = false, lanes = false, own = false;
};

struct Way {
  std::string label;
  k::AttentionVariant variant;
};

// Returns the range of a step's columns that see `context` positions, if matrix units compute all positions.
k::AttentionRange range_of(k::Mapping mapping, const k::AttentionShape& shape,
                           std::uint32_t columns, std::uint32_t context) {
  mapping.units_attention = k::UnitsAttention::kEverywhere;
  for (const k::AttentionRange& range : k::attention_ranges(mapping, shape, columns)) {
    if (context <= range.until) return range;
  }
  return {.units = true};
}

// Returns ways for columns that have no neighbour. The second one is what steps with room for prompts choose.
std::vector<Way> ways_of_own(const k::Mapping& mapping, const k::AttentionShape& shape,
                             std::uint32_t columns, std::uint32_t context, bool all) {
  std::vector<Way> ways;
  const k::AttentionMode before = k::attention_mode(mapping, shape, {}, columns, context);
  ways.push_back({"without units", k::attention(mapping, shape, {}, before, columns, context)});
  if (!k::units_attend(mapping, shape)) return ways;
  const k::AttentionRange range{.units = true};
  ways.push_back({"*", k::attention_alone(mapping, shape, range, columns)});
  for (const auto mode : {k::AttentionMode::kWhole, k::AttentionMode::kTogether}) {
    for (const std::uint32_t subgroups : {2U, 4U, 8U, 12U}) {
      if (mode == k::AttentionMode::kWhole && subgroups != 4) continue;
      for (const std::uint32_t words : {32U, 64U, 128U}) {
        for (const std::uint32_t ahead : {0U, 1U, 2U}) {
          k::UnitAttention sharing =
              k::unit_attention(mapping, shape, range, k::AttentionMode::kWhole, columns);
          sharing.mode = mode;
          sharing.alone = true;
          sharing.spreads = false;
          sharing.subgroups = subgroups;
          sharing.heads_together = sharing.heads;
          sharing.key_words = words;
          sharing.values_ahead = ahead;
          if (!all || k::units_shared_bytes(mapping, shape, sharing) > mapping.shared_bytes) continue;
          const bool whole = mode == k::AttentionMode::kWhole;
          ways.push_back(
              {(whole ? "whole/s" : "together/s") + std::to_string(subgroups) + "/k" +
                   std::to_string(words) + "/v" + std::to_string(ahead),
               k::units_attention(mapping, shape, range, sharing, columns, context, false)});
        }
      }
    }
  }
  return ways;
}

std::vector<Way> ways_of(const k::Mapping& mapping, const k::AttentionShape& shape,
                         std::uint32_t columns, std::uint32_t context, bool all) {
  context = k::positions_seen(shape, context);
  std::vector<Way> ways;
  const k::AttentionMode before = k::attention_mode(mapping, shape, {}, columns, context);
  ways.push_back({"without units", k::attention(mapping, shape, {}, before, columns, context)});
  if (!k::units_attend(mapping, shape)) return ways;
  const k::AttentionRange by_units = range_of(mapping, shape, columns, context);
  const k::AttentionMode mode = k::attention_mode(mapping, shape, by_units, columns, context);
  const auto add = [&](const k::UnitAttention& sharing, const std::string& mark) {
    ways.push_back(
        {mark + "s" + std::to_string(sharing.subgroups) + "/h" +
             std::to_string(mode == k::AttentionMode::kTogether ? sharing.heads_together
                                                                : sharing.heads) +
             "/n" + std::to_string(sharing.query_tiles) + "/k" + std::to_string(sharing.key_words) +
             "/v" + std::to_string(sharing.values_ahead) + (sharing.early_keys ? "/early" : "") +
             (sharing.through_shared ? "/shared" : ""),
         k::units_attention(mapping, shape, by_units, sharing, columns, context, false)});
  };
  const k::UnitAttention usual = k::unit_attention(mapping, shape, by_units, mode, columns);
  add(usual, "*");
  if (all && usual.entry_parts > 1) {
    // Half as many parts: of whole cells if pages hold bytes, and not so large that their workgroups have no room.
    k::UnitAttention sharing = usual;
    sharing.entry_parts /= 2;
    const std::uint32_t sets = (shape.head_padded() + 63) / 64;
    if (sharing.entry_parts % sets == 0 &&
        k::units_shared_bytes(mapping, shape, sharing) <= mapping.shared_bytes)
      add(sharing, std::to_string(sharing.entry_parts) + " parts, ");
  }
  if (!all) return ways;
  const bool tiles = mode == k::AttentionMode::kTiles;
  if (usual.through_shared) {
    for (const std::uint32_t subgroups : {4U, 8U}) {
      k::UnitAttention sharing = usual;
      sharing.subgroups = subgroups;
      add(sharing, "");
    }
  }
  const std::uint32_t group = shape.heads / shape.kv_heads;
  for (const std::uint32_t subgroups :
       tiles ? std::vector<std::uint32_t>{2, 4, 8} : std::vector<std::uint32_t>{8, 12, 16}) {
    for (const std::uint32_t heads : {1U, 2U, (group + 1) / 2, group}) {
      if (tiles ? heads != group : heads > 8) continue;
      for (const std::uint32_t words : {16U, 32U, 64U, 128U}) {
        for (const std::uint32_t ahead : {0U, 1U, 2U, 4U}) {
          for (const bool early : {false, true}) {
            if (early != tiles && early) continue;
            if (!tiles && (ahead == 1 || words == 16)) continue;
            k::UnitAttention sharing = usual;
            sharing.subgroups = subgroups;
            sharing.through_shared = false;
            (mode == k::AttentionMode::kTogether ? sharing.heads_together : sharing.heads) = heads;
            sharing.key_words = words;
            sharing.values_ahead = ahead;
            sharing.early_keys = early;
            if (k::units_shared_bytes(mapping, shape, sharing) <= mapping.shared_bytes)
              add(sharing, "");
          }
        }
      }
    }
  }
  return ways;
}

// Every way of dividing attention without matrix units. The first two are the way that is chosen for these columns,
// and the best way in the other of the two modes.
std::vector<Way> ways_of_lanes(const k::Mapping& mapping, const k::AttentionShape& shape,
                               std::uint32_t columns, std::uint32_t context, bool all) {
  context = k::positions_seen(shape, context);
  std::vector<Way> ways;
  const auto add = [&](const k::LanesAttention& sharing, const std::string& mark) {
    const char* mode = sharing.mode == k::AttentionMode::kSpread     ? "spread"
                       : sharing.mode == k::AttentionMode::kTogether ? "together"
                                                                     : "whole";
    ways.push_back({mark + mode + "/s" + std::to_string(sharing.subgroups) + "/h" +
                        std::to_string(sharing.heads) + "/a" + std::to_string(sharing.ahead),
                    k::lanes_variant(mapping, shape, {}, sharing, columns, context, false)});
  };
  const k::AttentionMode chosen = k::attention_mode(mapping, shape, {}, columns, context);
  add(k::lanes_attention(mapping, shape, chosen, columns), "*");
  const k::AttentionMode other =
      chosen == k::AttentionMode::kSpread ? k::AttentionMode::kWhole : k::AttentionMode::kSpread;
  add(k::lanes_attention(mapping, shape, other, columns), "");
  if (!all) return ways;
  const std::uint32_t group = shape.heads / shape.kv_heads;
  for (const auto mode : {k::AttentionMode::kWhole, k::AttentionMode::kSpread}) {
    for (const std::uint32_t parts : {10U, 8U, 5U, 4U, 3U, 2U, 1U}) {
      const std::uint32_t heads = (group + parts - 1) / parts;
      if (heads < 2 || heads > 8) continue;
      for (const std::uint32_t subgroups : {1U, 2U, 4U, 8U, 16U}) {
        if (k::lanes_shared_bytes(mapping, shape, mode, heads, subgroups) > mapping.shared_bytes)
          continue;
        for (const std::uint32_t ahead : {2U, 4U, 8U})
          add({mode, subgroups, heads, ahead}, "");
      }
    }
  }
  return ways;
}

class Bench {
 public:
  Bench(gpu::Device& device, const Plan& plan, k::KvFormat kv)
      : device_(device), plan_(plan), kv_(kv), mapping_(k::mapping_for(device)) {}

  Status run() {
    if (!mapping_.units)
      return Error(ErrorCode::kUnsupported,
                   "this device has no matrix units that the kernels support");
    BULKHEAD_TRY(ring_, gpu::CommandRing::create(device_, {}, true, 60000));
    BULKHEAD_TRY(keys_, device_.allocate(kPool, gpu::Memory::kDeviceLocal, "keys"));
    BULKHEAD_TRY(values_, device_.allocate(kPool, gpu::Memory::kDeviceLocal, "values"));
    BULKHEAD_TRY(queries_, device_.allocate(kScratch, gpu::Memory::kDeviceLocal, "queries"));
    BULKHEAD_TRY(out_, device_.allocate(kScratch, gpu::Memory::kDeviceLocal, "out"));
    BULKHEAD_TRY(partials_,
                 device_.allocate(std::uint64_t{1} << 30, gpu::Memory::kDeviceLocal, "partials"));
    BULKHEAD_TRY(counts_,
                 device_.allocate(std::uint64_t{4} << 20, gpu::Memory::kDeviceLocal, "counts"));
    BULKHEAD_TRY(parameters_, device_.allocate(1 << 20, gpu::Memory::kUpload, "parameters"));
    BULKHEAD_TRY(read_, device_.allocate(kScratch, gpu::Memory::kReadback, "read"));
    BULKHEAD_RETURN_IF_ERROR(fill());
    std::printf("%s\n", device_.info().name.c_str());
    for (const Shape& shape : kShapes) {
      if (std::string(shape.name).find(plan_.shapes) == std::string::npos) continue;
      for (const std::uint32_t columns : plan_.columns) {
        for (const std::uint32_t depth : plan_.depths)
          BULKHEAD_RETURN_IF_ERROR(measure(shape, columns, depth));
      }
    }
    return {};
  }

 private:
  static constexpr std::uint64_t kPool = std::uint64_t{2} << 30, kScratch = std::uint64_t{64} << 20;

  Status submit(const gpu::CommandRing::Build& build) {
    BULKHEAD_TRY(const auto id, ring_->record(build));
    BULKHEAD_TRY(const auto submitted, ring_->submit(id));
    BULKHEAD_RETURN_IF_ERROR(ring_->wait(submitted));
    ring_->drop(id);
    return {};
  }

  // Fills keys and values with random half-precision numbers between 2^-7 and 2 in magnitude, and queries with small
  // random floats. In pages of bytes, such a number times 2^-7 is a scale, or gives two bytes.
  Status fill() {
    BULKHEAD_TRY(auto upload, device_.allocate(kScratch, gpu::Memory::kUpload, "upload"));
    auto* words = reinterpret_cast<std::uint32_t*>(upload.mapped().data());
    std::mt19937 random(7);
    const std::uint32_t least = kv_ == k::KvFormat::kQ8 ? 1 : 8;
    const auto half = [least](std::uint32_t bits) {
      return (bits & 0x83ffU) | ((least + (bits >> 10 & 7U)) << 10);
    };
    for (std::uint64_t i = 0; i < kScratch / 4; ++i) {
      const auto bits = static_cast<std::uint32_t>(random());
      words[i] = half(bits & 0xffffU) | half(bits >> 16) << 16;
    }
    BULKHEAD_RETURN_IF_ERROR(submit([&](gpu::Recorder& recorder) {
      for (std::uint64_t at = 0; at < kPool; at += kScratch) {
        for (const gpu::Buffer* each : {&keys_, &values_})
          recorder.copy(gpu::slice(upload), gpu::slice(*each, at, kScratch));
      }
      recorder.fill(gpu::slice(counts_), 0);
      recorder.fill(gpu::slice(out_), 0xffffffffU);
    }));
    for (std::uint64_t i = 0; i < kScratch / 4; ++i) {
      const float value = static_cast<float>(random() % 2048U) / 4096.0F - 0.25F;
      words[i] = std::bit_cast<std::uint32_t>(value);
    }
    return submit(
        [&](gpu::Recorder& recorder) { recorder.copy(gpu::slice(upload), gpu::slice(queries_)); });
  }

  // Hashes the first bytes of the results.
  Result<std::uint64_t> hash_of_results(std::uint64_t bytes) {
    BULKHEAD_RETURN_IF_ERROR(submit([&](gpu::Recorder& recorder) {
      recorder.copy(gpu::slice(out_, 0, bytes), gpu::slice(read_, 0, bytes));
      recorder.barrier();
      recorder.fill(gpu::slice(out_), 0xffffffffU);
    }));
    return fnv1a_long_words(std::as_bytes(read_.mapped()).first(bytes));
  }

  Status measure(const Shape& named, std::uint32_t columns, std::uint32_t depth) {
    k::AttentionShape shape{named.head, named.heads, named.kv_heads, kv_, true};
    shape.value_entries = named.value_entries;
    shape.window = named.window;
    shape.sinks = named.sinks;
    const bool latents = shape.value_entries != 0;
    const std::uint32_t width = latents ? shape.value_entries : shape.heads * shape.head;
    const std::uint32_t rows = latents ? columns * shape.heads : columns;
    const bool prompt = columns > 64 && !plan_.lanes && !plan_.own;
    const std::uint32_t context = depth + (prompt ? columns : 1);
    const std::uint32_t pages = (context + 31) / 32, sequences = prompt ? 1 : columns;
    const std::uint64_t bytes = std::uint64_t{sequences} * pages * shape.page_bytes();
    if (bytes > kPool) return {};
    auto* words = reinterpret_cast<std::uint32_t*>(parameters_.mapped().data());
    std::memset(words, 0, 64);
    words[0] = columns;
    for (std::uint32_t i = 0; i < columns; ++i) {
      const k::ColumnEntry entry{0, depth + (prompt ? i : 0), prompt ? 0 : i * pages, 0};
      std::memcpy(words + 16 + i * 4, &entry, sizeof entry);
    }
    const std::uint32_t table_at = 16 + columns * 4;
    for (std::uint32_t i = 0; i < sequences * pages; ++i)
      words[table_at + i] = i;
    const auto ways_here = plan_.lanes ? ways_of_lanes : plan_.own ? ways_of_own : ways_of;
    const std::vector<Way> ways = ways_here(mapping_, shape, columns, context, plan_.all);
    std::vector<gpu::KernelSpec> specs;
    for (const Way& way : ways)
      specs.push_back(way.variant.spec);
    BULKHEAD_RETURN_IF_ERROR(forward::KernelCompiler(device_, std::move(specs)).finish({}));
    std::vector<std::pair<double, std::string>> times;
    for (const Way& way : ways) {
      BULKHEAD_TRY(const gpu::Kernel kernel, device_.make_kernel(way.variant.spec));
      k::AttentionPush push{};
      push.q = queries_.address();
      push.parameters = parameters_.address();
      push.pages = parameters_.address() + table_at * 4;
      push.out_address = out_.address();
      push.out_stride = k::input_stride(mapping_, width);
      push.padded_width = width;
      push.partials = partials_.address();
      push.counts = counts_.address();
      push.sinks = queries_.address();
      push.most_splits = k::attention_splits(mapping_, context);
      // Each dispatch reads other keys than the one before, as each layer does.
      const std::uint64_t copies = std::clamp<std::uint64_t>(kPool / bytes, 1, 16);
      BULKHEAD_TRY(const auto id, ring_->record([&](gpu::Recorder& recorder) {
        for (std::uint64_t i = 0; i < 16; ++i) {
          push.keys = keys_.address() + i % copies * bytes;
          push.values = latents ? push.keys : values_.address() + i % copies * bytes;
          recorder.dispatch(kernel, gpu::push_bytes(push), way.variant.x, way.variant.y,
                            way.variant.z);
          recorder.compute_barrier();
        }
      }));
      double best = 1e30;
      for (int pass = 0; pass < 4; ++pass) {
        BULKHEAD_TRY(const auto made, ring_->profile(id));
        double sum = 0;
        for (const gpu::KernelTime& each : made)
          sum += each.microseconds;
        if (pass > 0) best = std::min(best, sum / 16);
      }
      ring_->drop(id);
      BULKHEAD_TRY(const std::uint64_t hash,
                   hash_of_results(std::uint64_t{(rows + 7) / 8 * 8} * push.out_stride * 2));
      char shown[20];
      std::snprintf(shown, sizeof shown, "%016llx", static_cast<unsigned long long>(hash));
      times.emplace_back(
          best, std::string(shown) + "  " + way.label + "   [" + device_.statistics(kernel) + "]");
    }
    std::printf("%s, %u columns, %u deep (%.1f MB of keys and values):\n", named.name, columns,
                depth, static_cast<double>(bytes) * 2 / 1e6);
    const auto fixed = std::min<std::size_t>(times.size(), 2);  // without units, and what is chosen
    std::sort(times.begin() + static_cast<std::ptrdiff_t>(fixed), times.end());
    for (std::size_t i = 0; i < std::min<std::size_t>(times.size(), plan_.all ? 12 : 8); ++i)
      std::printf("  %9.2f us  %s\n", times[i].first, times[i].second.c_str());
    std::fflush(stdout);
    return {};
  }

  gpu::Device& device_;
  const Plan& plan_;
  k::KvFormat kv_;
  k::Mapping mapping_;
  std::unique_ptr<gpu::CommandRing> ring_;
  gpu::Buffer keys_, values_, queries_, out_, partials_, counts_, parameters_, read_;
};

Status run(const Plan& plan) {
  config::Settings settings;
  BULKHEAD_RETURN_IF_ERROR(config::assign(settings, "engine.kv_type=" + plan.kv_type));
  gpu::DeviceOptions options;
  options.selector = plan.device;
  options.statistics = true;
  BULKHEAD_TRY(const auto device, gpu::Device::open(options));
  return Bench(*device, plan, forward::kv_format(settings.engine.kv_type)).run();
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  ProgramOptions options{"Times ways of sharing attention by matrix units"};
  options.add("--device", plan.device, "auto, an index or part of a device's name");
  options.add("--columns", plan.columns, "columns of a step, one run for each number")
      .comma_separated()
      .within(1, 2048);
  options.add("--depths", plan.depths, "positions before the step's own")
      .comma_separated()
      .within(0, 131072);
  options.add("--shapes", plan.shapes, "only shapes whose name has this in it");
  options.flag("--lanes", plan.lanes,
               "ways without matrix units, for columns of as many sequences");
  options.flag("--own", plan.own, "ways with matrix units, for columns of as many sequences");
  options.add("--kv-type", plan.kv_type, "f16, f32 or q8_0").show_default();
  options.flag("--all", plan.all, "every way of sharing, not only the one that is chosen");
  if (const auto code = options.parse(argc, argv)) return *code;
  return bench::run_program("bench-attention", [&] { return run(plan); });
}
