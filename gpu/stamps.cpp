#include "gpu/stamps.hpp"

#include <algorithm>

namespace bulkhead::gpu {

Stamps::~Stamps() {
  if (pool_ == VK_NULL_HANDLE || device_->abandoned()) return;
  vkDestroyQueryPool(device_->handle(), pool_, nullptr);
}

Status Stamps::init(Device& device, bool wanted) {
  device_ = &device;
  const std::uint32_t bits = device.timestamp_bits();
  if (!wanted) return {};
  runs_.reserve(kBuffers);
  by_host_ = bits == 0 || !device.tells_timestamps_at_once();
  if (by_host_) return {};
  host_resets_ = device.has_host_query_reset();
  VkQueryPoolCreateInfo info{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
  info.queryType = VK_QUERY_TYPE_TIMESTAMP;
  info.queryCount = kBuffers * 2;
  const VkResult result = vkCreateQueryPool(device.handle(), &info, nullptr, &pool_);
  if (result != VK_SUCCESS) return Device::vulkan_error(result, "creating a timestamp pool");
  mask_ = bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
  for (std::uint32_t pair = kBuffers; pair-- > 0;)
    free_.push_back(pair);
  return {};
}

void Stamps::begin(VkCommandBuffer commands) {
  if (pool_ == VK_NULL_HANDLE) return;
  auto found = pairs_.find(commands);
  if (found == pairs_.end()) {
    if (free_.empty()) return;
    found = pairs_.emplace(commands, free_.back()).first;
    free_.pop_back();
  }
  const std::uint32_t query = found->second * 2;
  if (host_resets_) {
    forget_runs(found->second);
    vkResetQueryPool(device_->handle(), pool_, query, 2);
  } else {
    vkCmdResetQueryPool(commands, pool_, query, 2);
  }
  // The stamp is written when all earlier work has ended, so that intervals of one queue do not overlap.
  vkCmdWriteTimestamp2(commands, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, pool_, query);
}

void Stamps::end(VkCommandBuffer commands) {
  const auto found = pairs_.find(commands);
  if (found == pairs_.end()) return;
  vkCmdWriteTimestamp2(commands, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, pool_,
                       found->second * 2 + 1);
}

void Stamps::forget(VkCommandBuffer commands) {
  const auto found = pairs_.find(commands);
  if (found == pairs_.end()) return;
  forget_runs(found->second);
  free_.push_back(found->second);
  pairs_.erase(found);
}

void Stamps::forget_runs(std::uint32_t pair) {
  std::erase_if(runs_, [&](const Run& run) { return run.pair == pair; });
}

bool Stamps::may_run(VkCommandBuffer commands) const {
  if (!host_resets_) return true;
  const auto found = pairs_.find(commands);
  return found == pairs_.end() || std::none_of(runs_.begin(), runs_.end(), [&](const Run& run) {
           return run.pair == found->second;
         });
}

void Stamps::submitted(VkCommandBuffer commands, std::uint64_t ticket) {
  if (by_host_) {
    if (runs_.size() == kBuffers) runs_.erase(runs_.begin());
    runs_.push_back({ticket, 0, Clock::now()});
    return;
  }
  const auto found = pairs_.find(commands);
  if (found == pairs_.end()) return;
  // The next run overwrites the last run's timestamps, so that run is not timed.
  forget_runs(found->second);
  runs_.push_back({ticket, found->second, {}});
}

void Stamps::collect(std::uint64_t finished) {
  if (by_host_) return collect_by_host(finished);
  std::size_t over = 0;
  for (; over < runs_.size() && runs_[over].ticket <= finished; ++over) {
    std::uint64_t ticks[2] = {};
    const std::uint32_t query = runs_[over].pair * 2;
    if (vkGetQueryPoolResults(device_->handle(), pool_, query, 2, sizeof ticks, ticks,
                              sizeof ticks[0], VK_QUERY_RESULT_64_BIT) != VK_SUCCESS)
      break;
    if (host_resets_) vkResetQueryPool(device_->handle(), pool_, query, 2);
    const double period = device_->info().timestamp_period_ns;
    const auto begin = static_cast<std::uint64_t>(static_cast<double>(ticks[0] & mask_) * period);
    const auto took =
        static_cast<std::uint64_t>(static_cast<double>((ticks[1] - ticks[0]) & mask_) * period);
    device_->activity().device_ran(DeviceLane::kCompute, "submission", begin, begin + took,
                                   runs_[over].ticket);
  }
  runs_.erase(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(over));
}

void Stamps::collect_by_host(std::uint64_t finished) {
  const auto on_clock = [](Clock::time_point at) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count());
  };
  const std::uint64_t now = on_clock(Clock::now());
  const auto running = std::find_if(runs_.begin(), runs_.end(),
                                    [&](const Run& run) { return run.ticket > finished; });
  for (auto run = runs_.begin(); run != running; ++run) {
    device_->activity().device_ran(DeviceLane::kCompute, "submission", on_clock(run->submitted),
                                   now, run->ticket);
  }
  runs_.erase(runs_.begin(), running);
}

}  // namespace bulkhead::gpu
