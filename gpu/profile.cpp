#include "gpu/profile.hpp"

#include <map>
#include <string>

#include "gpu/recorders.hpp"

namespace bulkhead::gpu {
namespace {

class QueryPool {
 public:
  QueryPool() = default;
  QueryPool(const QueryPool&) = delete;
  QueryPool& operator=(const QueryPool&) = delete;
  ~QueryPool() {
    if (pool_ == VK_NULL_HANDLE || device_->abandoned()) return;
    vkDestroyQueryPool(device_->handle(), pool_, nullptr);
  }
  Status init(const Device& device, std::uint32_t count) {
    device_ = &device;
    VkQueryPoolCreateInfo info{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
    info.queryType = VK_QUERY_TYPE_TIMESTAMP;
    info.queryCount = count;
    const VkResult result = vkCreateQueryPool(device.handle(), &info, nullptr, &pool_);
    if (result != VK_SUCCESS) return Device::vulkan_error(result, "creating a timestamp pool");
    return {};
  }
  VkQueryPool handle() const { return pool_; }

 private:
  const Device* device_ = nullptr;
  VkQueryPool pool_ = VK_NULL_HANDLE;
};

}  // namespace

Result<std::vector<KernelTime>> profile_once(CommandPool& pool, std::uint32_t timeout_ms,
                                             const CommandRing::Build& build) {
  Device& device = pool.device();
  const std::uint32_t bits = device.timestamp_bits();
  if (bits == 0) {
    return Error(ErrorCode::kUnsupported,
                 device.info().name + " has no timestamps on its compute queue");
  }
  CountingRecorder counter(device);
  build(counter);
  if (!counter.status().ok()) return counter.status().error();
  const std::uint32_t query_count = counter.count() + 1;
  QueryPool queries;
  BULKHEAD_RETURN_IF_ERROR(queries.init(device, query_count));

  std::vector<OneBufferRecorder::Operation> operations;
  Status recorded;
  const Status ran = run_once(
      pool, device.compute_queue(), timeout_ms, "profiling", [&](VkCommandBuffer commands) {
        vkCmdResetQueryPool(commands, queries.handle(), 0, query_count);
        full_barrier(commands);
        OneBufferRecorder recorder(device, commands, queries.handle(), query_count);
        build(recorder);
        host_barrier(commands);
        operations = recorder.operations();
        recorded = recorder.status();
      });
  if (!ran.ok()) return ran.error();
  if (!recorded.ok()) return recorded.error();
  if (operations.size() + 1 != query_count) {
    return Error(ErrorCode::kInternal, "profiling: the recording is not the same each time");
  }

  std::vector<std::uint64_t> ticks(query_count);
  const VkResult got = vkGetQueryPoolResults(device.handle(), queries.handle(), 0, query_count,
                                             query_count * sizeof(std::uint64_t), ticks.data(),
                                             sizeof(std::uint64_t), VK_QUERY_RESULT_64_BIT);
  if (got != VK_SUCCESS) return Device::vulkan_error(got, "reading timestamps");

  const std::uint64_t mask = bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
  std::vector<KernelTime> times;
  std::map<std::string, std::size_t> index_of;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const auto [entry, is_new] = index_of.emplace(operations[i].name, times.size());
    if (is_new) times.push_back({operations[i].name, 0, 0, 0});
    KernelTime& time = times[entry->second];
    ++time.calls;
    time.microseconds += static_cast<double>((ticks[i + 1] - ticks[i]) & mask) *
                         device.info().timestamp_period_ns / 1000;
    time.bytes_moved += operations[i].bytes_moved;
  }
  return times;
}

}  // namespace bulkhead::gpu
