#include "worker/forward/cache_size.hpp"

#include <algorithm>
#include <span>
#include <string>

#include "gpu/kernels/kernels.hpp"
#include "gpu/kernels/kv_layout.hpp"
#include "worker/forward/cache_growth.hpp"
#include "worker/forward/wanted_pages.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

std::string mib(std::uint64_t bytes) {
  return std::to_string((bytes + (1U << 20) - 1) >> 20) + " MiB";
}

// Returns how many pages of each kind `bytes` hold; the hidden page of each kind takes a part of them.
// `context_first`: a whole context and the windows of one sequence come first, and other window pages
// get what these leave.
CacheSize share_out(std::uint64_t bytes, const Wanted& wanted, bool context_first) {
  constexpr std::uint64_t kLargest = 0x7fffffff;
  const auto pages_in = [](std::uint64_t room, std::uint64_t page_bytes) {
    if (page_bytes == 0) return kLargest;  // a stage of a split model whose layers keep no keys
    const std::uint64_t pages = room / page_bytes;
    return pages - std::min<std::uint64_t>(pages, 1);
  };
  const auto rest = [bytes](std::uint64_t taken) { return bytes - std::min(bytes, taken); };
  const std::uint64_t equal = pages_in(bytes, wanted.full_bytes + wanted.window_bytes);
  std::uint64_t full = equal, windows = 0;
  if (wanted.window_bytes > 0) {
    windows = wanted.most_windows;
    if (context_first) {
      const std::uint64_t left = rest((wanted.full + 1) * wanted.full_bytes);
      windows = std::min(windows, pages_in(left, wanted.window_bytes));
    }
    // More window pages than full pages would be useless.
    windows = std::min(std::max(windows, wanted.least_windows), equal);
    full = pages_in(rest((windows + 1) * wanted.window_bytes), wanted.full_bytes);
  }
  CacheSize size;
  size.pages = static_cast<std::uint32_t>(std::min(full, kLargest));
  size.window_pages = static_cast<std::uint32_t>(std::min(windows, kLargest));
  return size;
}

}  // namespace

CacheRoom room_on(const gpu::Device& device) {
  const gpu::DeviceInfo& info = device.info();
  return {device.free_memory_bytes(), info.kind, info.name, info.device_memory_bytes,
          info.max_allocation_bytes};
}

PageBytes page_bytes_of(const model::ModelGraph& graph, k::KvFormat format,
                        const KvWindows& windows) {
  PageBytes bytes;
  for (std::size_t i = 0; i < graph.kv.size(); ++i) {
    const model::KvStore& store = graph.kv[i];
    const k::AttentionShape shape{store.head_size, store.heads, store.heads, format, false};
    std::uint64_t& common = windows.slides[i] ? bytes.window : bytes.full;
    bytes.equal = bytes.equal && (common == 0 || common == shape.page_bytes());
    common = shape.page_bytes();
  }
  return bytes;
}

std::uint64_t fixed_need(const CacheRoom& room, const MemoryNeed& need) {
  // CPU devices compute in the host's memory.
  const bool of_host =
      room.kind == gpu::DeviceKind::kCpu || room.kind == gpu::DeviceKind::kIntegrated;
  return need.weights + need.transient + need.states + (of_host ? need.host_logits : 0);
}

std::uint64_t growth_reserve(std::uint64_t device_bytes) {
  return std::max(device_bytes / 20, std::uint64_t{512} << 20);
}

Result<CacheSize> plan_cache(const CacheRoom& room, const model::ModelGraph& graph,
                             const config::EngineSettings& engine, std::uint32_t asked_context,
                             std::uint32_t columns_ahead, const MemoryNeed& need) {
  const std::uint32_t wanted_context = asked_context != 0 ? asked_context : graph.context;
  const Wanted wanted = wanted_pages(need.kv, wanted_context, engine.max_batch, columns_ahead);
  const std::uint64_t page_bytes = wanted.full_bytes + wanted.window_bytes;
  const std::uint64_t free = room.free_bytes;
  const bool cpu = room.kind == gpu::DeviceKind::kCpu;
  const std::uint64_t fixed = fixed_need(room, need);
  const std::uint64_t logits = fixed - need.weights - need.transient - need.states;
  const std::string sizes =
      "the weights need " + mib(need.weights) + ", one step's activations up to " +
      mib(need.transient) + (need.states > 0 ? ", sequences' states " + mib(need.states) : "") +
      (logits > 0 ? ", the host's rows of logits and masks " + mib(logits) : "") +
      ", the KV cache " + mib(wanted.full_bytes) + " for each " + std::to_string(k::kPageTokens) +
      " tokens" +
      (need.kv.window > 0
           ? " and " + mib(wanted.least_windows * wanted.window_bytes) + " for a sequence's windows"
           : "") +
      "; " + mib(free) + " are free on " + room.device;
  if (asked_context > graph.context) {
    return Error(ErrorCode::kInvalidArgument,
                 "a context of " + std::to_string(asked_context) +
                     " tokens was asked for, but the model's own limit is " +
                     std::to_string(graph.context) + "; set a lower one");
  }
  if (fixed + page_bytes * 2 > free) {
    return Error(
        ErrorCode::kResourceExhausted,
        "the model does not fit: " + sizes + "; " +
            (need.states > 0 ? "set engine.state_cache_mb or engine.max_batch lower, or " : "") +
            "choose a smaller model or quantisation, or another device");
  }

  CacheSize size;
  if (engine.kv_cache_mb != 0) {
    const std::uint64_t asked = std::uint64_t{engine.kv_cache_mb} << 20;
    if (fixed + asked > free) {
      return Error(ErrorCode::kResourceExhausted, "engine.kv_cache_mb asks for " + mib(asked) +
                                                      ", which does not fit: " + sizes +
                                                      "; set it lower");
    }
    size = share_out(asked, wanted, asked_context != 0);
  } else {
    // A GPU's memory is hardly used for anything else; a CPU device's memory is the machine's.
    const std::uint64_t batch = engine.max_batch, full = wanted.full;
    std::uint64_t pages = cpu ? std::max<std::uint64_t>(batch / 4, 1) * full
                              : std::max(std::min(batch, kWholeSequences) * full,
                                         batch * std::min(full, kPagesOfEach));
    // A text has pages only while steps with it are in flight or about to be.
    if (is_encoder(graph))
      pages = std::min(pages, std::max(full, pages_for(columns_ahead)) + batch);
    std::uint64_t budget = cpu ? std::min<std::uint64_t>((free - fixed) / 2, std::uint64_t{1} << 30)
                               : (free - fixed) / kPartsOfFree * kPartsTaken;
    budget = std::min(budget, wanted.of_pages(pages));
    budget = std::min(budget, wanted.most_unasked());
    size = share_out(budget, wanted, asked_context != 0);
  }
  if (asked_context != 0 &&
      (size.pages < wanted.full || size.window_pages < wanted.least_windows)) {
    return Error(ErrorCode::kResourceExhausted,
                 "a context of " + std::to_string(asked_context) + " tokens needs " +
                     std::to_string(wanted.full) + " KV pages, " + mib(wanted.of_context()) +
                     ", but only " + std::to_string(size.pages) + " fit: " + sizes +
                     "; set a lower context, or a higher engine.kv_cache_mb");
  }
  if (size.pages == 0 || (need.kv.window > 0 && size.window_pages == 0)) {
    return Error(ErrorCode::kResourceExhausted,
                 "no KV cache fits: " + sizes + "; raise engine.kv_cache_mb");
  }
  size.context = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(wanted_context, std::uint64_t{size.pages} * k::kPageTokens));
  const GrowingPart part{room, &graph, engine, wanted, fixed};
  if (is_whole(graph)) let_grow(std::span(&part, 1), size);
  return size;
}
}  // namespace bulkhead::forward
