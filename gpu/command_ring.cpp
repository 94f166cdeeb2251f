#include "gpu/command_ring.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <unordered_map>
#include <utility>

#include "config/base/elapsed.hpp"
#include "config/base/log.hpp"
#include "gpu/fault_injection.hpp"
#include "gpu/kernel_marks.hpp"
#include "gpu/profile.hpp"
#include "gpu/recorders.hpp"
#include "gpu/stamps.hpp"
#include "gpu/submission.hpp"

namespace bulkhead::gpu {
namespace {

// What both forms share: the timeline, waiting, profiling.
class RingBase : public CommandRing {
 public:
  RingBase(Device& device, const config::CommandBufferRingSettings& settings,
           std::uint32_t timeout_ms)
      : device_(device), settings_(settings), timeout_ms_(timeout_ms) {}

  ~RingBase() override {
    if (timeline_.handle() != VK_NULL_HANDLE && RingBase::drain())
      settle_queues(device_, timeout_ms_);
  }

  Status init() {
    BULKHEAD_RETURN_IF_ERROR(timeline_.init(device_));
    BULKHEAD_RETURN_IF_ERROR(stamps_.init(device_, settings_.track_statistics));
    BULKHEAD_RETURN_IF_ERROR(marks_.init(device_, settings_.mark_kernels));
    return pool_.init(device_, device_.compute_family());
  }

  Status wait(Ticket ticket) override {
    if (ticket > submitted_) return never_submitted(ticket);
    if (!settings_.track_statistics && !settings_.log_wait_events) {
      return named(reach(ticket, timeout_ms_), ticket);
    }
    const auto start = std::chrono::steady_clock::now();
    const Status status = named(reach(ticket, timeout_ms_), ticket);
    const auto end = std::chrono::steady_clock::now();
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(end - start).count();
    if (status.ok()) stamps_.collect(ticket);
    if (device_.activity().tracing()) {
      device_.activity().host_ran("wait for submission", start, end, ticket);
      if (!status.ok()) device_.activity().flush_trace();  // the process will end soon
    }
    if (settings_.track_statistics) {
      ++stats_.waits;
      stats_.wait_microseconds += static_cast<std::uint64_t>(took);
    }
    if (settings_.log_wait_events) {
      spdlog::debug("command ring: waited {} us for submission {}{}", took, ticket,
                    status.ok() ? "" : ": failed");
    }
    return status;
  }

  Result<bool> finished(Ticket ticket, std::uint32_t wait_ms) override {
    if (ticket > submitted_) return never_submitted(ticket);
    const auto start = std::chrono::steady_clock::now();
    const Status status = reach(ticket, wait_ms);
    const auto took = std::chrono::steady_clock::now() - start;
    // The wait() that follows counts the wait.
    count(&CommandRingStats::wait_microseconds,
          static_cast<std::uint64_t>(
              std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
    if (status.ok()) {
      stamps_.collect(ticket);
      return true;
    }
    if (status.error().code() == ErrorCode::kDeadlineExceeded) return false;
    return named(status, ticket).error();
  }

  bool drain() override {
    return !device_.abandoned() &&
           drained(device_, timeline_.handle(), submitted_, timeout_ms_, "command ring");
  }

  VkSemaphore timeline() const override { return timeline_.handle(); }
  CommandRingStats stats() const override { return stats_; }

 protected:
  virtual Status reach(Ticket ticket, std::uint32_t timeout_ms) {
    return timeline_.wait(ticket, timeout_ms, kWaiting);
  }

  Result<std::vector<KernelTime>> profile_build(const Build& build) {
    auto times = profile_once(pool_, timeout_ms_, build);
    if (times.ok()) count(&CommandRingStats::submissions);
    return times;
  }

  void count(std::uint64_t CommandRingStats::*counter, std::uint64_t n = 1) {
    if (settings_.track_statistics) stats_.*counter += n;
  }

  // Adds the lifetime of this object to a figure.
  class Timed {
   public:
    Timed(RingBase& ring, std::uint64_t CommandRingStats::*figure)
        : figure_(ring.settings_.track_statistics ? &(ring.stats_.*figure) : nullptr),
          start_(figure_ != nullptr ? Clock::now() : Clock::time_point()) {}
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;
    ~Timed() {
      if (figure_ == nullptr) return;
      *figure_ += nanoseconds_since(start_);
    }

   private:
    using Clock = std::chrono::steady_clock;
    std::uint64_t* const figure_;
    const Clock::time_point start_;
  };

  // Records a whole command buffer.
  Status record_commands(VkCommandBuffer commands, VkCommandBufferUsageFlags usage,
                         const Build& build) {
    BULKHEAD_RETURN_IF_ERROR(begin_commands(commands, usage));
    stamps_.begin(commands);
    full_barrier(commands);  // the submissions before
    marks_.begin(commands);
    OneBufferRecorder recorder(device_, commands, marks_);
    build(recorder);
    marks_.end(commands);
    host_barrier(commands);
    stamps_.end(commands);
    const Status ended = end_commands(commands);
    return recorder.status().ok() ? ended : recorder.status();
  }

  void free_commands(VkCommandBuffer commands) {
    stamps_.forget(commands);
    marks_.forget(commands);
    pool_.free(commands);
  }

  // Adds what the failed wait was for, and how far the device had got. A lost device may no longer report
  // that.
  Status named(const Status& status, Ticket ticket) const {
    if (status.ok()) return status;
    std::string words = fmt::format("submission {} of {}", ticket, submitted_);
    if (const Result<std::uint64_t> reached = timeline_.reached(); reached.ok())
      words += fmt::format(" ({} had ended)", *reached);
    if (const std::string place = marks_.place(); !place.empty())
      words += fmt::format(", the device stopped {}", place);
    return status.error().within(words);
  }

  Error never_submitted(Ticket ticket) const {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("waiting for submission {}, but only {} were made", ticket, submitted_));
  }

  Device& device_;
  const config::CommandBufferRingSettings settings_;
  const std::uint32_t timeout_ms_;
  static constexpr const char* kWaiting = "waiting for GPU work";

  Timeline timeline_;
  CommandPool pool_;
  Stamps stamps_;
  KernelMarks marks_;
  Ticket submitted_ = 0;
  CommandRingStats stats_;
};

Error unknown_recording(CommandRing::RecordingId id) {
  return Error(ErrorCode::kNotFound,
               fmt::format("the command ring has no recording {} (any more)", id));
}

class RecordedRing final : public RingBase {
 public:
  using RingBase::RingBase;

  Result<RecordingId> record_variants(std::vector<Build> variants, Keep keep) override {
    BULKHEAD_RETURN_IF_ERROR(reclaim());
    if (keep == Keep::kInRing) BULKHEAD_RETURN_IF_ERROR(make_room());
    Recording recording;
    recording.keep = keep;
    recording.last_use = submitted_;
    for (Build& build : variants) {
      auto commands = idle_commands();
      const Status recorded =
          commands.ok() ? record_into(*commands, build) : Status(commands.error());
      if (commands.ok()) recording.variants.push_back({*commands, std::move(build), 0});
      if (recorded.ok()) continue;
      for (const Variant& made : recording.variants)
        free_commands(made.commands);
      return recorded.error();
    }
    const RecordingId id = ++last_id_;
    count(&CommandRingStats::recordings, recording.variants.size());
    recordings_.emplace(id, std::move(recording));
    return id;
  }

  bool known(RecordingId id) const override { return recordings_.contains(id); }

  void drop(RecordingId id) override {
    const auto found = recordings_.find(id);
    if (found == recordings_.end()) return;
    for (const Variant& variant : found->second.variants)
      retired_.push_back({variant.commands, variant.last_ticket});
    recordings_.erase(found);
  }

  void drop_all() override {
    while (!recordings_.empty())
      drop(recordings_.begin()->first);
  }

  Status submit_batches(std::span<Batch> batches) override {
    for (std::vector<VkCommandBuffer>& commands : commands_)
      commands.clear();
    std::array<Submission, kMostBatches> submissions;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      BULKHEAD_RETURN_IF_ERROR(gather(batches[i], commands_[i]));
      submissions[i].commands = commands_[i];
      submissions[i].after = batches[i].after;
      submissions[i].signal = timeline_.handle();
      submissions[i].value = submitted_ + 1 + i;
    }
    {
      const Timed timed(*this, &CommandRingStats::submit_nanoseconds);
      BULKHEAD_RETURN_IF_ERROR(submit_commands(device_.compute_queue(),
                                               std::span(submissions).first(batches.size()),
                                               "submitting GPU work"));
    }
    for (Batch& batch : batches)
      note(batch);
    return {};
  }

  Result<std::vector<KernelTime>> profile(RecordingId id, std::uint32_t variant) override {
    const auto found = recordings_.find(id);
    if (found == recordings_.end() || variant >= found->second.variants.size())
      return unknown_recording(id);
    return profile_build(found->second.variants[variant].build);
  }

  bool enabled() const override { return true; }

 private:
  struct Variant {
    VkCommandBuffer commands = VK_NULL_HANDLE;
    Build build;             // for profile()
    Ticket last_ticket = 0;  // 0: never submitted
  };
  struct Recording {
    std::vector<Variant> variants;
    Keep keep = Keep::kInRing;
    Ticket last_use = 0;  // the ring's count of submissions when it was last submitted or made
  };
  struct Retired {
    VkCommandBuffer commands;
    Ticket last_ticket;
  };

  // Appends the command buffers of a batch's recordings.
  Status gather(const Batch& batch, std::vector<VkCommandBuffer>& commands) {
    for (const RecordingId id : batch.ids) {
      const auto found = recordings_.find(id);
      if (found == recordings_.end() || batch.variant >= found->second.variants.size())
        return unknown_recording(id);
      const Variant& chosen = found->second.variants[batch.variant];
      if (!stamps_.may_run(chosen.commands)) BULKHEAD_RETURN_IF_ERROR(wait(chosen.last_ticket));
      commands.push_back(chosen.commands);
    }
    return {};
  }

  // Counts a batch that was submitted, and sets its ticket.
  void note(Batch& batch) {
    batch.ticket = ++submitted_;
    count(&CommandRingStats::submissions);
    bool replay = true;
    for (const RecordingId id : batch.ids) {
      Recording& recording = recordings_.find(id)->second;
      Variant& chosen = recording.variants[batch.variant];
      stamps_.submitted(chosen.commands, submitted_);
      replay = replay && chosen.last_ticket != 0;
      chosen.last_ticket = submitted_;
      recording.last_use = submitted_;
    }
    if (replay) count(&CommandRingStats::replays);
  }

  Result<VkCommandBuffer> idle_commands() {
    if (idle_.empty()) return pool_.allocate();
    const VkCommandBuffer commands = idle_.back();
    idle_.pop_back();
    return commands;
  }

  Status record_into(VkCommandBuffer commands, const Build& build) {
    const Timed timed(*this, &CommandRingStats::recording_nanoseconds);
    // Simultaneous use: the next step may be queued after this one while this one runs.
    return record_commands(commands, VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT, build);
  }

  // Command buffers whose last run is over can be recorded again.
  Status reclaim() {
    if (retired_.empty()) return {};
    BULKHEAD_TRY(const std::uint64_t reached, timeline_.reached());
    std::erase_if(retired_, [&](const Retired& retired) {
      if (retired.last_ticket > reached) return false;
      idle_.push_back(retired.commands);
      return true;
    });
    return {};
  }

  Status make_room() {
    const std::size_t limit = std::max<std::size_t>(settings_.ring_size, 1);
    std::size_t in_ring = 0;
    auto oldest = recordings_.end();
    for (auto it = recordings_.begin(); it != recordings_.end(); ++it) {
      if (it->second.keep == Keep::kAlways) continue;
      ++in_ring;
      // Ids rise, so of recordings with the same last_use this finds the one that was made first.
      if (oldest == recordings_.end() || it->second.last_use < oldest->second.last_use) oldest = it;
    }
    if (in_ring < limit) return {};
    BULKHEAD_TRY(const std::uint64_t reached, timeline_.reached());
    for (const Variant& variant : oldest->second.variants) {
      if (variant.last_ticket > reached) BULKHEAD_RETURN_IF_ERROR(wait(variant.last_ticket));
    }
    for (const Variant& variant : oldest->second.variants)
      idle_.push_back(variant.commands);
    recordings_.erase(oldest);
    return {};
  }

  RecordingId last_id_ = 0;
  std::map<RecordingId, Recording> recordings_;
  std::array<std::vector<VkCommandBuffer>, kMostBatches>
      commands_;  // of the batches that are submitted
  std::vector<Retired> retired_;
  std::vector<VkCommandBuffer> idle_;
};

// The baseline: it keeps only the builders. Each submit waits for the one before, records its commands again and
// submits them once, with a fence.
class PlainRing final : public RingBase {
 public:
  using RingBase::RingBase;

  ~PlainRing() override {
    if (fence_ == VK_NULL_HANDLE || !RingBase::drain() || !settle_queues(device_, timeout_ms_))
      return;
    vkDestroyFence(device_.handle(), fence_, nullptr);
  }

  Result<RecordingId> record_variants(std::vector<Build> variants, Keep) override {
    builds_.emplace(++last_id_, std::move(variants));
    return last_id_;
  }

  bool known(RecordingId id) const override { return builds_.contains(id); }
  void drop(RecordingId id) override { builds_.erase(id); }
  void drop_all() override { builds_.clear(); }

  Status submit_batches(std::span<Batch> batches) override {
    for (const Batch& batch : batches) {
      for (const RecordingId id : batch.ids) {
        const auto found = builds_.find(id);
        if (found == builds_.end() || batch.variant >= found->second.size())
          return unknown_recording(id);
      }
    }
    for (Batch& batch : batches)
      BULKHEAD_RETURN_IF_ERROR(submit_recordings(batch));
    return {};
  }
  Result<std::vector<KernelTime>> profile(RecordingId id, std::uint32_t variant) override {
    const auto found = builds_.find(id);
    if (found == builds_.end() || variant >= found->second.size()) return unknown_recording(id);
    return profile_build(found->second[variant]);
  }

  bool enabled() const override { return false; }

 protected:
  Status reach(Ticket ticket, std::uint32_t timeout_ms) override {
    if (ticket == 0 || ticket != fence_ticket_) return RingBase::reach(ticket, timeout_ms);
    poll(device_, fence_);
    return waited(
        fault::wait_fence(device_.handle(), fence_, timeout_ms * kNanosecondsPerMillisecond),
        timeout_ms, kWaiting);
  }

 private:
  Status make_idle() {
    if (submitted_ > 0) BULKHEAD_RETURN_IF_ERROR(wait(submitted_));
    if (fence_ == VK_NULL_HANDLE) {
      const VkFenceCreateInfo info{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO, nullptr, 0};
      const VkResult made = vkCreateFence(device_.handle(), &info, nullptr, &fence_);
      if (made != VK_SUCCESS) return Device::vulkan_error(made, "creating a fence");
    }
    if (commands_ == VK_NULL_HANDLE) {
      BULKHEAD_TRY(commands_, pool_.allocate());
    }
    return {};
  }

  Status submit_alone(const Build& build, std::span<const After> after) {
    BULKHEAD_RETURN_IF_ERROR(make_idle());
    const Status submitted = record_and_submit(commands_, build, after);
    if (!submitted.ok()) {
      free_commands(std::exchange(commands_, VK_NULL_HANDLE));
      return submitted;
    }
    count(&CommandRingStats::recordings);
    count(&CommandRingStats::submissions);
    stamps_.submitted(commands_, fence_ticket_ = ++submitted_);
    return {};
  }

  // Each recording is a submission of its own.
  Status submit_recordings(Batch& batch) {
    for (std::size_t i = 0; i < batch.ids.size(); ++i) {
      BULKHEAD_RETURN_IF_ERROR(submit_alone(builds_.find(batch.ids[i])->second[batch.variant],
                                            i == 0 ? batch.after : std::span<const After>()));
    }
    batch.ticket = submitted_;
    return {};
  }

  Status record_and_submit(VkCommandBuffer commands, const Build& build,
                           std::span<const After> after) {
    BULKHEAD_RETURN_IF_ERROR(record_once(commands, build));
    const Timed timed(*this, &CommandRingStats::submit_nanoseconds);
    fence_ticket_ = 0;
    const VkResult reset = vkResetFences(device_.handle(), 1, &fence_);
    if (reset != VK_SUCCESS) return Device::vulkan_error(reset, "submitting GPU work");
    Submission submission;
    submission.fence = fence_;
    submission.commands = {&commands, 1};
    submission.after = after;
    submission.signal = timeline_.handle();
    submission.value = submitted_ + 1;
    return submit_commands(device_.compute_queue(), {&submission, 1}, "submitting GPU work");
  }

  Status record_once(VkCommandBuffer commands, const Build& build) {
    const Timed timed(*this, &CommandRingStats::recording_nanoseconds);
    return record_commands(commands, VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, build);
  }

  RecordingId last_id_ = 0;
  std::unordered_map<RecordingId, std::vector<Build>> builds_;
  VkCommandBuffer commands_ = VK_NULL_HANDLE;  // recorded again for each submission
  VkFence fence_ = VK_NULL_HANDLE;
  Ticket fence_ticket_ = 0;  // the submission to which the fence belongs
};

}  // namespace

Result<std::unique_ptr<CommandRing>> CommandRing::create(
    Device& device, const config::CommandBufferRingSettings& settings, bool enabled,
    std::uint32_t timeout_ms) {
  std::unique_ptr<RingBase> ring;
  if (enabled) {
    ring = std::make_unique<RecordedRing>(device, settings, timeout_ms);
  } else {
    ring = std::make_unique<PlainRing>(device, settings, timeout_ms);
  }
  const Status ready = ring->init();
  if (!ready.ok()) return ready.error().within("command ring");
  return std::unique_ptr<CommandRing>(std::move(ring));
}

}  // namespace bulkhead::gpu
