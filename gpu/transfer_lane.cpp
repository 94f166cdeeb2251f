#include "gpu/transfer_lane.hpp"

#include <algorithm>

#include "config/base/elapsed.hpp"
#include "config/base/log.hpp"
#include "gpu/fault_injection.hpp"

namespace bulkhead::gpu {
namespace {

constexpr std::uint32_t kKeptRecordings = 16;

bool same_copy(const TransferLane::Copy& a, const TransferLane::Copy& b) {
  return a.from.buffer == b.from.buffer && a.from.offset == b.from.offset &&
         a.from.bytes == b.from.bytes && a.to.buffer == b.to.buffer && a.to.offset == b.to.offset;
}

}  // namespace

TransferLane::~TransferLane() {
  if (device_ == nullptr) return;
  if (!drain()) return;
  for (const Pending& pending : pending_)
    idle_.push_back(pending.slot);
  for (const Slot& slot : idle_) {
    if (slot.fence != VK_NULL_HANDLE) vkDestroyFence(device_->handle(), slot.fence, nullptr);
  }
  if (queries_ != VK_NULL_HANDLE) vkDestroyQueryPool(device_->handle(), queries_, nullptr);
}

Status TransferLane::init(Device& device, const Options& options) {
  device_ = &device;
  options_ = options;
  options_.max_pending = std::max(options.max_pending, 1u);
  pending_.reserve(options_.max_pending);
  idle_.reserve(options_.max_pending);
  has_compute_ = options.queue == device.compute_queue();
  BULKHEAD_RETURN_IF_ERROR(pool_.init(device, options.family));
  // A copy may end while other work runs, so it is timed only if timestamps can be read at once.
  const std::uint32_t bits =
      device.tells_timestamps_at_once() ? device.transfer_timestamp_bits() : 0;
  // A queue that can only copy can't reset queries; the host can, if the device supports that.
  if (options_.track && bits > 0 && device.has_host_query_reset()) {
    VkQueryPoolCreateInfo info{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
    info.queryType = VK_QUERY_TYPE_TIMESTAMP;
    info.queryCount = options_.max_pending * 2;
    const VkResult made = vkCreateQueryPool(device.handle(), &info, nullptr, &queries_);
    if (made != VK_SUCCESS) return Device::vulkan_error(made, "creating a timestamp pool");
    tick_mask_ = bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
  }
  return options.timeline ? timeline_.init(device) : Status{};
}

Result<std::uint64_t> TransferLane::copy(const Copy& copy,
                                         std::span<const CommandRing::After> after) {
  if (!options_.timeline) {
    for (const CommandRing::After& one : after) {
      BULKHEAD_RETURN_IF_ERROR(wait_for(*device_, one, options_.timeout_ms, options_.name));
    }
    after = {};
  }
  BULKHEAD_TRY(Slot slot, free_slot(copy));
  Status submitted;
  if (!options_.keep_recordings || !same_copy(slot.recorded, copy)) submitted = record(slot, copy);
  if (submitted.ok()) submitted = submit(slot, after);
  if (!submitted.ok()) {
    idle_.push_back(slot);
    return submitted.error();
  }
  pending_.push_back({++submitted_, slot, copy.from.bytes});
  timing_.most_pending = std::max<std::uint64_t>(timing_.most_pending, pending_.size());
  return submitted_;
}

Status TransferLane::record(Slot& slot, const Copy& copy) {
  slot.recorded = {};
  BULKHEAD_RETURN_IF_ERROR(begin_commands(slot.commands, 0));
  if (has_compute_) {
    full_barrier(slot.commands);
  } else {
    transfer_barrier(slot.commands);
  }
  if (queries_ != VK_NULL_HANDLE) {
    // After the waits of the submission, not before, because those belong to the copy's stage.
    vkCmdWriteTimestamp2(slot.commands, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, queries_, slot.query);
  }
  const VkBufferCopy region{copy.from.offset, copy.to.offset, copy.from.bytes};
  vkCmdCopyBuffer(slot.commands, copy.from.buffer, copy.to.buffer, 1, &region);
  if (queries_ != VK_NULL_HANDLE) {
    vkCmdWriteTimestamp2(slot.commands, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, queries_,
                         slot.query + 1);
  }
  transfer_to_host_barrier(slot.commands);
  BULKHEAD_RETURN_IF_ERROR(end_commands(slot.commands));
  slot.recorded = copy;
  return {};
}

Status TransferLane::submit(const Slot& slot, std::span<const CommandRing::After> after) {
  if (queries_ != VK_NULL_HANDLE) vkResetQueryPool(device_->handle(), queries_, slot.query, 2);
  Submission submission;
  submission.commands = {&slot.commands, 1};
  submission.after = after;
  if (options_.timeline) {
    submission.signal = timeline_.handle();
    submission.value = submitted_ + 1;
  } else {
    const VkResult reset = vkResetFences(device_->handle(), 1, &slot.fence);
    if (reset != VK_SUCCESS) return Device::vulkan_error(reset, options_.name);
    submission.fence = slot.fence;
  }
  return submit_commands(options_.queue, {&submission, 1}, options_.name);
}

Result<TransferLane::Slot> TransferLane::free_slot(const Copy& copy) {
  const auto recorded = [&] {
    return std::find_if(idle_.begin(), idle_.end(),
                        [&](const Slot& slot) { return same_copy(slot.recorded, copy); });
  };
  auto chosen = recorded();
  if (chosen == idle_.end()) {
    BULKHEAD_TRY([[maybe_unused]] const std::uint64_t now, reached());
    chosen = recorded();
  }
  // Some more slots than necessary, so that the slots of repeated copies are kept. The first idle slot is the one
  // that was used longest ago.
  if (chosen == idle_.end() && slots_ >= std::min(kKeptRecordings, options_.max_pending)) {
    if (idle_.empty() && pending_.size() >= options_.max_pending)
      BULKHEAD_RETURN_IF_ERROR(wait_oldest());
    chosen = idle_.begin();
  }
  Slot slot;
  if (chosen != idle_.end()) {
    slot = *chosen;
    idle_.erase(chosen);
    return slot;
  }
  if (!options_.timeline) {
    VkFenceCreateInfo info{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    const VkResult result = vkCreateFence(device_->handle(), &info, nullptr, &slot.fence);
    if (result != VK_SUCCESS) return Device::vulkan_error(result, "creating a fence");
  }
  const auto commands = pool_.allocate();
  if (!commands.ok()) {
    if (slot.fence != VK_NULL_HANDLE) vkDestroyFence(device_->handle(), slot.fence, nullptr);
    return commands.error();
  }
  slot.commands = *commands;
  slot.query = 2 * slots_++;
  return slot;
}

Result<std::uint64_t> TransferLane::reached() {
  if (pending_.empty()) return done_;
  if (options_.timeline) {
    BULKHEAD_TRY(const std::uint64_t value, timeline_.reached());
    retire_until(value);
    return done_;
  }
  while (!pending_.empty()) {
    const VkResult status = vkGetFenceStatus(device_->handle(), pending_.front().slot.fence);
    if (status == VK_NOT_READY) break;
    if (status != VK_SUCCESS) return Device::vulkan_error(status, options_.name);
    retire_until(pending_.front().number);
  }
  return done_;
}

Status TransferLane::wait(std::uint64_t number) {
  if (number <= done_) return {};
  if (!options_.track) return wait_untimed(number);
  const auto start = std::chrono::steady_clock::now();
  const Status status = wait_untimed(number);
  ++timing_.waits;
  const auto end = std::chrono::steady_clock::now();
  timing_.wait_ns += nanoseconds_between(start, end);
  if (device_->activity().tracing())
    device_->activity().host_ran("wait for transfer", start, end, number);
  return status;
}

Status TransferLane::wait_untimed(std::uint64_t number) {
  const auto named = [&](const Status& failed) {
    return failed.error().within(fmt::format("transfer {} of {}", number, submitted_));
  };
  if (options_.timeline) {
    const Status status = timeline_.wait(number, options_.timeout_ms, options_.name);
    if (!status.ok()) return named(status);
    retire_until(number);
    return {};
  }
  while (done_ < number) {
    if (options_.polls) poll(*device_, pending_.front().slot.fence);
    const VkResult result = fault::wait_fence(device_->handle(), pending_.front().slot.fence,
                                              options_.timeout_ms * kNanosecondsPerMillisecond);
    if (result != VK_SUCCESS) return named(waited(result, options_.timeout_ms, options_.name));
    retire_until(pending_.front().number);
  }
  return {};
}

Status TransferLane::wait_oldest() {
  if (pending_.empty())
    return Error(ErrorCode::kInternal, std::string(options_.name) + ": no transfer to wait for");
  ++stalls_;
  return wait(pending_.front().number);
}

void TransferLane::retire_until(std::uint64_t number) {
  while (!pending_.empty() && pending_.front().number <= number) {
    if (options_.track) note_done(pending_.front());
    idle_.push_back(pending_.front().slot);
    pending_.erase(pending_.begin());
  }
  done_ = std::max(done_, number);
}

void TransferLane::note_done(const Pending& pending) {
  std::uint64_t ticks[2] = {};
  if (queries_ == VK_NULL_HANDLE ||
      vkGetQueryPoolResults(device_->handle(), queries_, pending.slot.query, 2, sizeof ticks, ticks,
                            sizeof ticks[0], VK_QUERY_RESULT_64_BIT) != VK_SUCCESS)
    return;
  ++timing_.copies;
  const double period = device_->info().timestamp_period_ns;
  const auto begin =
      static_cast<std::uint64_t>(static_cast<double>(ticks[0] & tick_mask_) * period);
  const auto took =
      static_cast<std::uint64_t>(static_cast<double>((ticks[1] - ticks[0]) & tick_mask_) * period);
  timing_.copy_ns += took;
  device_->activity().device_ran(options_.lane, options_.name, begin, begin + took, pending.number,
                                 pending.bytes);
}

bool TransferLane::drain() {
  if (device_ == nullptr) return true;  // init() was not called
  if (device_->abandoned()) return false;
  if (pending_.empty()) return true;
  if (options_.timeline) {
    return drained(*device_, timeline_.handle(), submitted_, options_.timeout_ms, options_.name);
  }
  // Fences of one queue are signalled in order.
  return drained(*device_, pending_.back().slot.fence, options_.timeout_ms, options_.name);
}

}  // namespace bulkhead::gpu
