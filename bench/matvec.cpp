// Finds out which way of dividing a product among subgroups is fastest on a device. Every variant computes the same
// bits (gpu/kernels/README.md), so the fastest may be chosen by shape and columns. On a device with matrix units
// these are variants of their product, unless --lanes asks for the other product.
//
//   bench-matvec [--device SELECTOR] [--columns 1,16] [--shapes SUBSTRING] [--tilings SUBSTRING]
//                [--lanes] [--splits] [--registers] [--json FILE]
//
// --registers shows all variants, each with a hash of its results, which is the same for all, and with what the
// compiler says about it.
#include "gpu/kernels/matvec.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/matvec_variants.hpp"
#include "bench/program.hpp"
#include "bench/report.hpp"
#include "config/base/program_options.hpp"
#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"
#include "gpu/kernels/kernels.hpp"
#include "gpu/kernels/units.hpp"
#include "worker/forward/kernel_compiler.hpp"

namespace {

using namespace bulkhead;  // NOLINT: a program
namespace k = gpu::kernels;

struct Shape {
  const char* name;
  k::WeightType type;
  k::Epilogue epilogue;
  std::uint32_t rows;  // rows of a result
  std::uint32_t width;
};

constexpr std::uint32_t kMostColumns = 2048;

// The matrices of a 1B, an 8B, a 7B, a 14B and a gemma-3-12b, and the values' matrices of files in which their type
// differs from that of q and k.
constexpr Shape kShapes[] = {
    {"1B qkv F16", k::WeightType::kF16, k::Epilogue::kStore, 3072, 2048},
    {"1B out F16", k::WeightType::kF16, k::Epilogue::kAdd, 2048, 2048},
    {"1B gate-up F16", k::WeightType::kF16, k::Epilogue::kGated, 8192, 2048},
    {"1B down F16", k::WeightType::kF16, k::Epilogue::kAdd, 2048, 8192},
    {"1B logits F16", k::WeightType::kF16, k::Epilogue::kStore, 128256, 2048},
    {"8B qkv F16", k::WeightType::kF16, k::Epilogue::kStore, 6144, 4096},
    {"8B out F16", k::WeightType::kF16, k::Epilogue::kAdd, 4096, 4096},
    {"8B gate-up F16", k::WeightType::kF16, k::Epilogue::kGated, 14336, 4096},
    {"8B down F16", k::WeightType::kF16, k::Epilogue::kAdd, 4096, 14336},
    {"8B logits F16", k::WeightType::kF16, k::Epilogue::kStore, 128256, 4096},
    {"7B qkv Q4_K", k::WeightType::kQ4_K, k::Epilogue::kStore, 4608, 3584},
    {"7B out Q4_K", k::WeightType::kQ4_K, k::Epilogue::kAdd, 3584, 3584},
    {"7B gate-up Q4_K", k::WeightType::kQ4_K, k::Epilogue::kGated, 18944, 3584},
    {"7B down Q4_K", k::WeightType::kQ4_K, k::Epilogue::kAdd, 3584, 18944},
    {"7B down Q6_K", k::WeightType::kQ6_K, k::Epilogue::kAdd, 3584, 18944},
    {"7B logits Q6_K", k::WeightType::kQ6_K, k::Epilogue::kStore, 152064, 3584},
    {"7B gate-up Q4_0", k::WeightType::kQ4_0, k::Epilogue::kGated, 18944, 3584},
    {"7B down Q4_0", k::WeightType::kQ4_0, k::Epilogue::kAdd, 3584, 18944},
    {"7B qkv Q8_0", k::WeightType::kQ8_0, k::Epilogue::kStore, 4608, 3584},
    {"7B out Q8_0", k::WeightType::kQ8_0, k::Epilogue::kAdd, 3584, 3584},
    {"7B gate-up Q8_0", k::WeightType::kQ8_0, k::Epilogue::kGated, 18944, 3584},
    {"7B down Q8_0", k::WeightType::kQ8_0, k::Epilogue::kAdd, 3584, 18944},
    {"7B logits Q8_0", k::WeightType::kQ8_0, k::Epilogue::kStore, 152064, 3584},
    {"14B qkv Q4_K", k::WeightType::kQ4_K, k::Epilogue::kStore, 7680, 5120},
    {"14B out Q4_K", k::WeightType::kQ4_K, k::Epilogue::kAdd, 5120, 5120},
    {"14B gate-up Q4_K", k::WeightType::kQ4_K, k::Epilogue::kGated, 17920, 5120},
    {"14B down Q4_K", k::WeightType::kQ4_K, k::Epilogue::kAdd, 5120, 17920},
    {"14B down Q6_K", k::WeightType::kQ6_K, k::Epilogue::kAdd, 5120, 17920},
    {"14B logits Q4_K", k::WeightType::kQ4_K, k::Epilogue::kStore, 100352, 5120},
    {"gemma qkv Q4_K", k::WeightType::kQ4_K, k::Epilogue::kStore, 8192, 3840},
    {"gemma out Q4_K", k::WeightType::kQ4_K, k::Epilogue::kAdd, 3840, 4096},
    {"gemma gate-up Q4_K", k::WeightType::kQ4_K, k::Epilogue::kGated, 15360, 3840},
    {"gemma down Q4_K", k::WeightType::kQ4_K, k::Epilogue::kAdd, 3840, 15360},
    {"gemma down Q6_K", k::WeightType::kQ6_K, k::Epilogue::kAdd, 3840, 15360},
    {"7B v Q6_K", k::WeightType::kQ6_K, k::Epilogue::kStore, 512, 3584},
    {"8B v Q6_K", k::WeightType::kQ6_K, k::Epilogue::kStore, 1024, 4096},
    {"30B-A3B v Q6_K", k::WeightType::kQ6_K, k::Epilogue::kStore, 512, 2048},
    {"gemma v Q6_K", k::WeightType::kQ6_K, k::Epilogue::kStore, 2048, 3840},
};

struct Plan {
  std::string device = "auto", shapes, tilings, json_path;
  std::vector<std::uint32_t> columns{1, 16};
  bool splits = false, lanes = false, registers = false;
};

class Bench {
 public:
  Bench(gpu::Device& device, const Plan& plan)
      : device_(device),
        plan_(plan),
        mapping_(plan.lanes ? k::mapping_for(device.info()) : k::mapping_for(device)) {}

  Status run() {
    if (mapping_.rows) {
      return Error(ErrorCode::kUnsupported,
                   "this device computes whole rows in a lane; there is nothing to choose");
    }
    BULKHEAD_TRY(ring_, gpu::CommandRing::create(device_, {}, true, 60000));
    // This is far more than any cache holds, so that each dispatch reads another matrix.
    const std::uint64_t bytes = std::min({device_.info().max_allocation_bytes,
                                          std::uint64_t{3} << 30, device_.free_memory_bytes() / 4});
    BULKHEAD_TRY(weights_, device_.allocate(bytes, gpu::Memory::kDeviceLocal, "weights"));
    BULKHEAD_TRY(x_, device_.allocate(std::uint64_t{kMostColumns} * 20480 * 4,
                                      gpu::Memory::kDeviceLocal, "x"));
    BULKHEAD_TRY(out_, device_.allocate(std::uint64_t{kMostColumns} * 20480 * 4,
                                        gpu::Memory::kDeviceLocal, "out"));
    BULKHEAD_TRY(parameters_, device_.allocate(4096, gpu::Memory::kUpload, "parameters"));
    BULKHEAD_TRY(const auto fill, ring_->record([&](gpu::Recorder& recorder) {
      recorder.fill(gpu::slice(out_), 0);
    }));
    BULKHEAD_TRY(const auto filled, ring_->submit(fill));
    BULKHEAD_RETURN_IF_ERROR(ring_->wait(filled));
    ring_->drop(fill);
    BULKHEAD_RETURN_IF_ERROR(fill_randomly());

    BULKHEAD_TRY(const gpu::Kernel read, device_.make_kernel(k::read_bandwidth()));
    const k::ReadBandwidthPush read_push{weights_.address(), out_.address(),
                                         static_cast<std::uint32_t>(bytes / 16), 16};
    const auto groups = static_cast<std::uint32_t>(
        bytes / (std::uint64_t{k::kReadBandwidthInvocations} * 16 * read_push.per_invocation));
    BULKHEAD_TRY(reading_, ring_->record([&](gpu::Recorder& recorder) {
      for (int i = 0; i < 200; ++i) {
        recorder.dispatch(read, gpu::push_bytes(read_push), groups);
        recorder.compute_barrier();
      }
    }));
    std::printf("%s\n", device_.info().name.c_str());
    BULKHEAD_RETURN_IF_ERROR(dispatch_costs());
    for (const Shape& shape : kShapes) {
      if (std::string(shape.name).find(plan_.shapes) == std::string::npos) continue;
      for (const std::uint32_t columns : plan_.columns)
        BULKHEAD_RETURN_IF_ERROR(measure(shape, columns));
    }
    return bench::write_report(plan_.json_path, report_);
  }

 private:
  // Fills the memory with half-precision numbers of either sign, from 2^-6 to 2^-3 in magnitude, two in a word. A
  // device computes faster with equal numbers.
  Status fill_randomly() {
    constexpr std::uint64_t kUpload = 64 << 20;
    BULKHEAD_TRY(const auto upload, device_.allocate(kUpload, gpu::Memory::kUpload, "upload"));
    BULKHEAD_TRY(read_, device_.allocate(x_.bytes(), gpu::Memory::kReadback, "results"));
    std::mt19937 random(7);
    auto* words = reinterpret_cast<std::uint32_t*>(upload.mapped().data());
    for (std::uint64_t i = 0; i < kUpload / 4; ++i)
      words[i] = (static_cast<std::uint32_t>(random()) & 0x8bff8bffU) | 0x24002400U;
    BULKHEAD_TRY(const auto id, ring_->record([&](gpu::Recorder& recorder) {
      for (const gpu::Buffer* each : {&weights_, &x_}) {
        for (std::uint64_t at = 0; at < each->bytes(); at += kUpload) {
          const std::uint64_t bytes = std::min(kUpload, each->bytes() - at);
          recorder.copy(gpu::slice(upload, 0, bytes), gpu::slice(*each, at, bytes));
        }
      }
    }));
    BULKHEAD_TRY(const auto filled, ring_->submit(id));
    BULKHEAD_RETURN_IF_ERROR(ring_->wait(filled));
    ring_->drop(id);
    return {};
  }

  // FNV-1a of the results of one dispatch.
  Result<std::uint64_t> hash_of_results(const gpu::Kernel& kernel, const k::MatvecPush& push,
                                        std::uint32_t x, std::uint32_t y, std::uint64_t bytes) {
    BULKHEAD_TRY(const auto id, ring_->record([&](gpu::Recorder& recorder) {
      recorder.fill(gpu::slice(out_, 0, bytes), 0);
      recorder.barrier();
      recorder.dispatch(kernel, gpu::push_bytes(push), x, y);
      recorder.barrier();
      recorder.copy(gpu::slice(out_, 0, bytes), gpu::slice(read_, 0, bytes));
    }));
    BULKHEAD_TRY(const auto ticket, ring_->submit(id));
    BULKHEAD_RETURN_IF_ERROR(ring_->wait(ticket));
    ring_->drop(id);
    std::uint64_t hash = 14695981039346656037U;
    const auto* words = reinterpret_cast<const std::uint64_t*>(read_.mapped().data());
    for (std::uint64_t i = 0; i < bytes / 8; ++i)
      hash = (hash ^ words[i]) * 1099511628211U;
    return hash;
  }

  Status measure(const Shape& shape, std::uint32_t columns) {
    const std::uint32_t matrix_rows = shape.rows * (shape.epilogue == k::Epilogue::kGated ? 2 : 1);
    const k::WeightLayout layout = mapping_.units
                                       ? k::unit_layout(shape.type, matrix_rows, shape.width)
                                       : k::weight_layout(shape.type, matrix_rows, shape.width);
    const std::uint64_t room = std::uint64_t{kMostColumns} * 20480 * 4;
    if (std::uint64_t{columns} * shape.rows * 4 > room || layout.bytes > weights_.bytes())
      return {};
    const k::MatvecShape asked{shape.type, shape.rows, layout.groups, shape.epilogue,
                               shape.epilogue == k::Epilogue::kGated};
    std::vector<bench::ProductVariant> list =
        mapping_.units
            ? bench::unit_variants(asked, columns, plan_.tilings)
            : bench::lanes_variants(mapping_, asked, columns, plan_.splits, device_.max_groups(1));
    BULKHEAD_TRY(const std::vector<gpu::Kernel> made, compile(list));
    // A device that waited for the compiler has lowered its clock, and needs some time to raise it again.
    for (int i = 0; i < 2; ++i) {
      BULKHEAD_TRY(const auto warm, ring_->submit(reading_));
      BULKHEAD_RETURN_IF_ERROR(ring_->wait(warm));
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      const gpu::Kernel& kernel = made[i];
      BULKHEAD_TRY(list[i].microseconds, time(shape, layout, kernel, list[i], columns));
      if (plan_.registers) list[i].registers = device_.statistics(kernel);
    }
    std::sort(list.begin(), list.end(),
              [](const bench::ProductVariant& a, const bench::ProductVariant& b) {
                return a.microseconds < b.microseconds;
              });
    std::printf("%-16s %3u columns:", shape.name, columns);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const bench::ProductVariant& v = list[i];
      report_.push_back({{"shape", shape.name},
                         {"columns", columns},
                         {"variant", v.label},
                         {"standard", v.standard},
                         {"microseconds", v.microseconds}});
      if (i >= 4 && !v.standard) continue;
      std::printf("  %s%s %.1f us", v.standard ? "*" : "", v.label.c_str(), v.microseconds);
      if (i == 0) {
        std::printf(
            " (%.2f TB/s, %.1f TFLOP/s)",
            static_cast<double>(layout.bytes_read()) / v.microseconds / 1e6,
            2.0 * static_cast<double>(layout.rows) * shape.width * columns / v.microseconds / 1e6);
      }
    }
    std::printf("\n");
    if (plan_.registers) {
      for (const bench::ProductVariant& v : list) {
        std::printf(
            "  %9.1f us  %6.1f TFLOP/s  %016llx  %s%s  [%s]\n", v.microseconds,
            2.0 * static_cast<double>(layout.rows) * shape.width * columns / v.microseconds / 1e6,
            static_cast<unsigned long long>(v.hash), v.standard ? "*" : "", v.label.c_str(),
            v.registers.c_str());
      }
    }
    std::fflush(stdout);
    return {};
  }

  Result<std::vector<gpu::Kernel>> compile(const std::vector<bench::ProductVariant>& list) {
    std::vector<gpu::KernelSpec> specs;
    for (const bench::ProductVariant& each : list)
      specs.push_back(each.spec);
    BULKHEAD_RETURN_IF_ERROR(forward::KernelCompiler(device_, std::move(specs)).finish({}));
    std::vector<gpu::Kernel> made;
    for (const bench::ProductVariant& each : list) {
      BULKHEAD_TRY(made.emplace_back(), device_.make_kernel(each.spec));
    }
    return made;
  }

  // Measures the cost of a dispatch that does almost nothing between others, by the host's clock and by timestamps
  // around each.
  Status dispatch_costs() {
    BULKHEAD_TRY(const gpu::Kernel norm, device_.make_kernel(k::rms_norm(mapping_)));
    auto* words = reinterpret_cast<std::uint32_t*>(parameters_.mapped().data());
    words[k::kColumnCountWord] = 1;
    k::RmsNormPush push{};
    push.in_address = x_.address();
    push.gain = x_.address();
    push.out_address = out_.address();
    push.parameters = parameters_.address();
    push.width = push.in_stride = push.out_stride = push.padded_width = 2048;
    constexpr int kMany = 500;
    const char* const names[] = {"no barrier", "compute barrier", "full barrier"};
    for (int kind = 0; kind < 3; ++kind) {
      BULKHEAD_TRY(const auto id, ring_->record([&](gpu::Recorder& recorder) {
        for (int i = 0; i < kMany; ++i) {
          recorder.dispatch(norm, gpu::push_bytes(push), 1);
          if (kind == 1) recorder.compute_barrier();
          if (kind == 2) recorder.barrier();
        }
      }));
      double best = 1e30;
      for (int pass = 0; pass < 30; ++pass) {
        const auto start = std::chrono::steady_clock::now();
        BULKHEAD_TRY(const auto ticket, ring_->submit(id));
        BULKHEAD_RETURN_IF_ERROR(ring_->wait(ticket));
        best = std::min(best, std::chrono::duration<double, std::micro>(
                                  std::chrono::steady_clock::now() - start)
                                  .count());
      }
      BULKHEAD_TRY(const auto times, ring_->profile(id));
      double stamped = 0;
      for (const gpu::KernelTime& each : times)
        stamped += each.microseconds;
      std::printf("a norm of 2048, %s: %.2f us by the host's clock, %.2f us by timestamps\n",
                  names[kind], best / kMany, stamped / kMany);
      ring_->drop(id);
    }
    return {};
  }

  // Returns the time of one product among several that wait for each other, as a step's products do.
  Result<double> time(const Shape& shape, const k::WeightLayout& layout, const gpu::Kernel& kernel,
                      bench::ProductVariant& variant, std::uint32_t columns) {
    auto* words = reinterpret_cast<std::uint32_t*>(parameters_.mapped().data());
    words[k::kColumnCountWord] = columns;
    k::MatvecPush push{};
    push.x = x_.address();
    push.out_address = out_.address();
    push.parameters = parameters_.address();
    push.rows = shape.rows;
    push.groups = layout.groups;
    push.x_stride = k::input_stride(mapping_, shape.width);
    push.out_stride = shape.rows;
    push.written_rows = shape.rows;
    const std::uint64_t copies =
        std::clamp<std::uint64_t>(weights_.bytes() / layout.bytes, 1, columns >= 64 ? 3 : 12);
    BULKHEAD_TRY(const auto id, ring_->record([&](gpu::Recorder& recorder) {
      for (std::uint64_t copy = 0; copy < copies; ++copy) {
        const std::uint64_t base = weights_.address() + copy * layout.bytes;
        push.quants = base + layout.quants;
        push.high = base + layout.high;
        push.scales = base + layout.scales;
        push.supers = base + layout.supers;
        recorder.dispatch(kernel, gpu::push_bytes(push),
                          (columns + variant.columns_each - 1) / variant.columns_each,
                          (shape.rows + variant.rows_each - 1) / variant.rows_each);
        recorder.compute_barrier();
      }
    }));
    if (plan_.registers) {
      BULKHEAD_TRY(
          variant.hash,
          hash_of_results(kernel, push, (columns + variant.columns_each - 1) / variant.columns_each,
                          (shape.rows + variant.rows_each - 1) / variant.rows_each,
                          std::uint64_t{columns} * shape.rows * 4));
    }
    double best = 1e30;
    for (int pass = 0; pass < 4; ++pass) {
      BULKHEAD_TRY(const auto times, ring_->profile(id));
      double sum = 0;
      for (const gpu::KernelTime& each : times)
        sum += each.microseconds;
      if (pass > 0) best = std::min(best, sum / static_cast<double>(copies));
    }
    ring_->drop(id);
    return best;
  }

  gpu::Device& device_;
  const Plan& plan_;
  const k::Mapping mapping_;
  std::unique_ptr<gpu::CommandRing> ring_;
  gpu::CommandRing::RecordingId reading_ = 0;
  gpu::Buffer weights_, x_, out_, parameters_, read_;
  nlohmann::json report_ = nlohmann::json::array();
};

Status run(const Plan& plan) {
  gpu::DeviceOptions options;
  options.selector = plan.device;
  options.statistics = plan.registers;
  BULKHEAD_TRY(const auto device, gpu::Device::open(options));
  return Bench(*device, plan).run();
}

}  // namespace

int main(int argc, char** argv) {
  Plan plan;
  ProgramOptions options{
      "Times every variant of the matrix-vector kernel on matrices of a 1B, an 8B, a 7B and a 14B"};
  options.add("--device", plan.device, "auto, an index or part of a device's name");
  options.add("--columns", plan.columns, "columns of a step, one run for each number")
      .comma_separated()
      .within(1, kMostColumns);
  options.add("--shapes", plan.shapes, "only shapes whose name has this in it");
  options.add("--tilings", plan.tilings,
              "matrix units: only variants whose label has this in it, and the one in use");
  options.flag("--lanes", plan.lanes, "the lanes' product on a device with matrix units, too");
  options.flag("--splits", plan.splits,
               "other splits of a row too: they are another order of additions");
  options.flag("--registers", plan.registers,
               "all variants, with a hash of their results and what the compiler says of each");
  options.add("--json", plan.json_path, "write the figures there, too");
  if (const auto code = options.parse(argc, argv)) return *code;
  return bench::run_program("bench-matvec", [&] { return run(plan); });
}
