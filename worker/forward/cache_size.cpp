#include "worker/forward/cache_size.hpp"

#include <algorithm>
#include <string>

#include "gpu/kernels/kv_layout.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

// Mapping and unmapping memory is most of what a death costs on a GPU (22 ms for each GiB, NVIDIA
// H200): who has not asked for more gets what is plenty.
constexpr std::uint64_t kMostUnasked = std::uint64_t{8} << 30;
constexpr std::uint64_t kFullContexts = 4;
// Of as many sequences as may run, so many have their whole context, or all of them a few pages: more
// is computed again now and then (engine/scheduler.hpp).
constexpr std::uint64_t kWholeSequences = 16, kPagesOfEach = 512 / k::kPageTokens;

std::string mib(std::uint64_t bytes) {
  return std::to_string((bytes + (1U << 20) - 1) >> 20) + " MiB";
}

}  // namespace

Result<CacheSize> plan_cache(const gpu::Device& device, const model::ModelGraph& graph,
                             const config::EngineSettings& engine, std::uint32_t asked_context,
                             const MemoryNeed& need) {
  const std::uint64_t page_bytes = need.kv_per_token * k::kPageTokens;
  const std::uint64_t free = device.free_memory_bytes();
  // These devices compute in the host's memory.
  const gpu::DeviceKind kind = device.info().kind;
  const bool of_host = kind == gpu::DeviceKind::kCpu || kind == gpu::DeviceKind::kIntegrated;
  const std::uint64_t logits = of_host ? need.host_logits : 0;
  const std::uint64_t fixed = need.weights + need.transient + need.states + logits;
  const std::string sizes =
      "the weights need " + mib(need.weights) + ", one step's activations up to " +
      mib(need.transient) + (need.states > 0 ? ", sequences' states " + mib(need.states) : "") +
      ", the KV cache " + mib(page_bytes) + " for each " + std::to_string(k::kPageTokens) +
      " tokens; " + mib(free) + " are free on " + device.info().name;
  if (asked_context > graph.context) {
    return Error(ErrorCode::kInvalidArgument,
                 "a context of " + std::to_string(asked_context) +
                     " tokens was asked for, but the model's own limit is " +
                     std::to_string(graph.context) + "; set a lower one");
  }
  if (fixed + page_bytes * 2 > free) {
    return Error(ErrorCode::kResourceExhausted,
                 "the model does not fit: " + sizes +
                     "; choose a smaller model or quantisation, or another device");
  }
  const std::uint32_t wanted_context = asked_context != 0 ? asked_context : graph.context;
  const std::uint64_t full = (std::uint64_t{wanted_context} + k::kPageTokens - 1) / k::kPageTokens;

  std::uint64_t pages = 0;
  if (engine.kv_cache_mb != 0) {
    const std::uint64_t asked = std::uint64_t{engine.kv_cache_mb} << 20;
    if (fixed + asked > free) {
      return Error(ErrorCode::kResourceExhausted, "engine.kv_cache_mb asks for " + mib(asked) +
                                                      ", which does not fit: " + sizes +
                                                      "; set it lower");
    }
    pages = asked / page_bytes;
    pages = pages > 0 ? pages - 1 : 0;
  } else {
    // A GPU's memory has little else to do; a CPU device's is the machine's.
    const bool cpu = device.info().kind == gpu::DeviceKind::kCpu;
    const std::uint64_t batch = engine.max_batch;
    const std::uint64_t wanted = cpu ? std::max<std::uint64_t>(batch / 4, 1) * full
                                     : std::max(std::min(batch, kWholeSequences) * full,
                                                batch * std::min(full, kPagesOfEach));
    std::uint64_t budget = cpu ? std::min<std::uint64_t>((free - fixed) / 2, std::uint64_t{1} << 30)
                               : (free - fixed) / 10 * 9;
    budget = std::min(budget, (wanted + 1) * page_bytes);
    budget = std::min(budget, std::max(kMostUnasked, (kFullContexts * full + 1) * page_bytes));
    pages = budget / page_bytes > 0 ? budget / page_bytes - 1 : 0;
  }
  pages = std::min<std::uint64_t>(pages, 0x7fffffffU);
  if (asked_context != 0 && pages < full) {
    return Error(ErrorCode::kResourceExhausted,
                 "a context of " + std::to_string(asked_context) + " tokens needs " +
                     std::to_string(full) + " KV pages of " + mib(page_bytes) + ", but only " +
                     std::to_string(pages) + " fit: " + sizes +
                     "; set a lower context, or a higher engine.kv_cache_mb");
  }
  if (pages == 0) {
    return Error(ErrorCode::kResourceExhausted,
                 "no KV cache fits: " + sizes + "; raise engine.kv_cache_mb");
  }
  CacheSize size;
  size.pages = static_cast<std::uint32_t>(pages);
  size.context =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted_context, pages * k::kPageTokens));
  return size;
}
}  // namespace bulkhead::forward
