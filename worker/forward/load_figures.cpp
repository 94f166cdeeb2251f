#include "worker/forward/load_figures.hpp"

#include <cctype>
#include <string>

#include "config/base/log.hpp"

namespace bulkhead::forward {

void add_load_counters(const LoadTimes& times, std::vector<FigureValue>& all) {
  const auto seconds = [&all](FigureName name, std::uint64_t ns) {
    all.emplace_back(name, static_cast<double>(ns) / 1e9);
  };
  seconds("load_seconds", times.total_ns);
  seconds("load_weights_seconds", times.weights.total);
  seconds("load_allocate_seconds", times.weights.allocate);
  seconds("load_read_thread_seconds", times.weights.read);
  seconds("load_pack_thread_seconds", times.weights.pack);
  seconds("load_copy_seconds", times.weights.upload);
  seconds("load_kernels_seconds", times.kernels_ns);
  seconds("load_warm_up_seconds", times.warm_up_ns);
}

void log_load_times(const LoadTimes& times, std::uint64_t weight_bytes) {
  const PipelineTimes& weights = times.weights;
  const auto ms = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e6; };
  spdlog::debug(
      "loaded in {:.0f} ms: {:.2f} GB of weights in {:.0f} ms (allocating {:.0f}; on {} threads "
      "reading {:.0f} and packing {:.0f}; sending {:.0f}, with nothing to send {:.0f}; copies on "
      "the device {:.0f}), kernels in {:.0f} ms ({:.0f} after the weights), warm-up in {:.0f} ms "
      "(of it {:.0f} keeping kernels)",
      ms(times.total_ns), static_cast<double>(weight_bytes) / 1e9, ms(weights.total),
      ms(weights.allocate), weights.threads, ms(weights.read), ms(weights.pack), ms(weights.send),
      ms(weights.starved), ms(weights.upload), ms(times.kernels_ns), ms(times.after_weights_ns),
      ms(times.warm_up_ns), ms(times.save_ns));
}

std::vector<FigureValue> kernel_counters(std::span<const gpu::KernelTime> times) {
  std::vector<FigureValue> all;
  for (const gpu::KernelTime& time : times) {
    std::string name;
    for (const char c : time.name)
      name += std::isalnum(static_cast<unsigned char>(c)) != 0
                  ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
                  : '_';
    all.push_back(FigureValue::of_kernel(name, "calls", static_cast<double>(time.calls)));
    all.push_back(FigureValue::of_kernel(name, "microseconds", time.microseconds));
    all.push_back(FigureValue::of_kernel(name, "bytes", static_cast<double>(time.bytes_moved)));
  }
  return all;
}

}  // namespace bulkhead::forward
