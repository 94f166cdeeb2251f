#include "tools/cli/model_fit.hpp"

#include <algorithm>
#include <vector>

#include "config/base/clean_text.hpp"
#include "config/settings.hpp"
#include "worker/forward/cache_size.hpp"
#include "worker/forward/layer_split.hpp"
#include "worker/forward/memory_need.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::cli {
namespace {

// A device must hold the keys and values of this many tokens beside the weights: loading needs two pages.
constexpr std::uint64_t kLeastTokens = 128;

std::string whole_mib(std::uint64_t bytes) {
  return std::to_string((bytes + (1U << 20) - 1) >> 20) + " MiB";
}

// Returns the length of the longest sequence whose keys and values fit in `bytes`.
std::uint64_t tokens_in(const forward::KvNeed& kv, std::uint64_t bytes) {
  std::uint64_t tokens = 0;
  for (std::uint64_t more = std::uint64_t{1} << 31; more > 0; more /= 2) {
    if (kv.bytes(tokens + more) <= bytes) tokens += more;
  }
  return tokens;
}

// GPUs on which the model does not fit, and what they have free together.
struct TooSmall {
  std::vector<std::string> devices;
  std::uint64_t free = 0;
};

std::string list_of(const std::vector<std::string>& numbers) {
  std::string list;
  for (const std::string& number : numbers)
    list += (list.empty() ? "" : ", ") + number;
  return list;
}

// Returns what a split over all GPUs would do for a model that fits on none.
std::string tell_split(const model::ModelGraph& graph, const TooSmall& gpus, std::uint64_t bytes) {
  const std::vector<std::string> obstacles = forward::obstacles(graph);
  const auto cuts = static_cast<std::size_t>(std::ranges::count(obstacles, ""));
  if (gpus.devices.size() < 2 || bytes > gpus.free || cuts + 1 < gpus.devices.size())
    return "  No device has room for all of it, and there are no devices to share its layers out "
           "to.\n";
  return "  split             models[].devices: [" + list_of(gpus.devices) +
         "] with models[].split: layers shares its layers out to these, which have " +
         whole_mib(gpus.free) + " free together\n";
}

}  // namespace

Result<ModelFit> model_fit(const std::string& file, std::span<const gpu::DeviceInfo> devices) {
  BULKHEAD_TRY(const auto opened, model::GgufFile::open(file));
  const Result<model::ModelGraph> read = model::read_model(*opened);
  if (!read.ok()) return read.error().within(file);
  BULKHEAD_TRY(ModelFit fit, model_fit(*opened, *read, devices));
  fit.text = "Model " + cleaned(file) + ", by what is free now\n" + fit.text;
  return fit;
}

Result<ModelFit> model_fit(const model::GgufFile& file, const model::ModelGraph& graph,
                           std::span<const gpu::DeviceInfo> devices) {
  ModelFit fit;
  std::vector<std::string> good;
  TooSmall small;
  std::uint64_t most = 0;  // bytes that the model takes at least on some device
  for (const gpu::DeviceInfo& device : devices) {
    if (!device.missing.empty()) continue;
    const bool cpu = device.kind == gpu::DeviceKind::kCpu;
    const config::EngineSettings engine =
        forward::with_sizes({}, file, graph, forward::size_of(device));
    // Only an open device shows whether it has matrix units, with which weights may take more memory.
    BULKHEAD_TRY(const forward::MemoryNeed need, forward::memory_need(file, graph, engine, !cpu));
    const std::uint64_t fixed = need.weights + need.transient + need.states;
    const std::uint64_t least = need.kv.bytes(kLeastTokens);
    const std::uint64_t free = device.free_memory_bytes;
    const std::string number = std::to_string(device.index);
    fit.text +=
        "  device " + number + std::string(number.size() < 11 ? 11 - number.size() : 1, ' ');
    most = std::max(most, fixed + least);
    if (fixed + least > free) {
      if (!cpu) {
        small.devices.push_back(number);
        small.free += free;
      }
      fit.text += "does not fit: it takes " + whole_mib(fixed) + " and " + whole_mib(least) +
                  " of keys and values at least, and " + whole_mib(free) + " are free\n";
      continue;
    }
    const std::uint64_t tokens = tokens_in(need.kv, free - fixed);
    fit.text += "fits: it takes " + whole_mib(fixed) + " (weights " + whole_mib(need.weights) +
                "), and " + whole_mib(free - fixed) +
                " are left, which hold the keys and values of " + std::to_string(tokens) +
                " tokens; the longest context is " +
                std::to_string(std::min<std::uint64_t>(tokens, graph.context)) + " of " +
                std::to_string(graph.context) + "\n";
    fit.fits = true;
    if (!cpu) good.push_back(number);
  }
  if (good.size() > 1) {
    fit.text +=
        "  replicas          models[].devices: [" + list_of(good) + "] puts one on each of these\n";
  }
  if (!fit.fits) fit.text += tell_split(graph, small, most);
  return fit;
}

}  // namespace bulkhead::cli
