#include "gpu/command_ring.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <unordered_map>

#include "config/base/log.hpp"
#include "gpu/stamps.hpp"
#include "gpu/submission.hpp"

namespace bulkhead::gpu {
namespace {

// The checks that every recording goes through; the first thing wrong is kept and the rest of the
// recording ignored.
class CheckedRecorder : public Recorder {
 public:
  explicit CheckedRecorder(const Device& device) : device_(device) {}

  void dispatch(const Kernel& kernel, std::span<const std::byte> push, std::uint32_t x,
                std::uint32_t y, std::uint32_t z, std::uint64_t bytes_moved) final {
    if (!check_kernel(kernel, push)) return;
    const std::uint32_t groups[] = {x, y, z};
    for (int i = 0; i < 3; ++i) {
      if (groups[i] > device_.max_groups(i)) {
        return fail(fmt::format("kernel {}: {} workgroups in dimension {}, the device allows {}",
                                kernel.name, groups[i], i, device_.max_groups(i)));
      }
    }
    if (x == 0 || y == 0 || z == 0) return;
    operation(kernel.name, bytes_moved, [&](VkCommandBuffer commands) {
      bind(commands, kernel, push);
      vkCmdDispatch(commands, x, y, z);
    });
  }

  void dispatch_indirect(const Kernel& kernel, std::span<const std::byte> push,
                         const BufferSlice& counts, std::uint64_t bytes_moved) final {
    if (!check_kernel(kernel, push)) return;
    if (counts.buffer == VK_NULL_HANDLE || counts.bytes < sizeof(VkDispatchIndirectCommand) ||
        counts.offset % 4 != 0) {
      return fail(fmt::format(
          "kernel {}: its group counts need 12 bytes, 4-byte aligned; got {} bytes at {}",
          kernel.name, counts.bytes, counts.offset));
    }
    operation(kernel.name, bytes_moved, [&](VkCommandBuffer commands) {
      bind(commands, kernel, push);
      vkCmdDispatchIndirect(commands, counts.buffer, counts.offset);
    });
  }

  void copy(const BufferSlice& from, const BufferSlice& to) final {
    if (from.bytes == 0) return;
    if (from.buffer == VK_NULL_HANDLE || to.buffer == VK_NULL_HANDLE || to.bytes < from.bytes) {
      return fail(fmt::format("copy: {} bytes do not fit into {}", from.bytes, to.bytes));
    }
    operation("(copy)", 2 * from.bytes, [&](VkCommandBuffer commands) {
      const VkBufferCopy region{from.offset, to.offset, from.bytes};
      vkCmdCopyBuffer(commands, from.buffer, to.buffer, 1, &region);
    });
  }

  void fill(const BufferSlice& to, std::uint32_t word) final {
    if (to.bytes == 0) return;
    if (to.buffer == VK_NULL_HANDLE || to.offset % 4 != 0 || to.bytes % 4 != 0) {
      return fail(
          fmt::format("fill: {} bytes at {} are not whole 4-byte words", to.bytes, to.offset));
    }
    operation("(fill)", to.bytes, [&](VkCommandBuffer commands) {
      vkCmdFillBuffer(commands, to.buffer, to.offset, to.bytes, word);
    });
  }

  const Status& status() const { return status_; }

 protected:
  virtual VkCommandBuffer commands() = 0;  // null: operations are not recorded
  virtual void recorded(const char* name, std::uint64_t bytes_moved) = 0;

  bool failed() const { return !status_.ok(); }
  void fail(const Error& error) {
    if (status_.ok()) status_ = error;
  }

 private:
  template <typename Record>
  void operation(const char* name, std::uint64_t bytes_moved, const Record& record) {
    if (failed()) return;
    if (const VkCommandBuffer to = commands(); to != VK_NULL_HANDLE) record(to);
    recorded(name, bytes_moved);
  }

  void fail(const std::string& message) {
    fail(Error(ErrorCode::kInvalidArgument, "recording: " + message));
  }

  bool check_kernel(const Kernel& kernel, std::span<const std::byte> push) {
    if (kernel.pipeline == VK_NULL_HANDLE) {
      fail(fmt::format("kernel '{}' was never made", kernel.name));
    } else if (push.size() != kernel.push_bytes) {
      fail(fmt::format("kernel {}: {} bytes of push constants given, it takes {}", kernel.name,
                       push.size(), kernel.push_bytes));
    }
    return !failed();
  }

  static void bind(VkCommandBuffer commands, const Kernel& kernel,
                   std::span<const std::byte> push) {
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, kernel.pipeline);
    if (!push.empty()) {
      vkCmdPushConstants(commands, kernel.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                         static_cast<std::uint32_t>(push.size()), push.data());
    }
  }

  const Device& device_;
  Status status_;
};

// Everything into one command buffer; with a query pool, a timestamp before the first operation and
// after each.
class OneBufferRecorder final : public CheckedRecorder {
 public:
  struct Operation {
    const char* name;
    std::uint64_t bytes_moved;
  };

  OneBufferRecorder(const Device& device, VkCommandBuffer commands,
                    VkQueryPool queries = VK_NULL_HANDLE, std::uint32_t query_count = 0)
      : CheckedRecorder(device), commands_(commands), queries_(queries), query_count_(query_count) {
    timestamp(0);
  }

  void barrier() override { full_barrier(commands_); }
  void compute_barrier() override { gpu::compute_barrier(commands_); }
  const std::vector<Operation>& operations() const { return operations_; }

 private:
  VkCommandBuffer commands() override { return commands_; }
  void recorded(const char* name, std::uint64_t bytes_moved) override {
    if (queries_ == VK_NULL_HANDLE) return;
    operations_.push_back({name, bytes_moved});
    timestamp(static_cast<std::uint32_t>(operations_.size()));
  }

  void timestamp(std::uint32_t index) {
    if (index < query_count_) {
      vkCmdWriteTimestamp2(commands_, VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, queries_, index);
    }
  }

  VkCommandBuffer commands_;
  VkQueryPool queries_;
  std::uint32_t query_count_;
  std::vector<Operation> operations_;
};

class CountingRecorder final : public CheckedRecorder {
 public:
  using CheckedRecorder::CheckedRecorder;
  void barrier() override {}
  std::uint32_t count() const { return count_; }

 private:
  VkCommandBuffer commands() override { return VK_NULL_HANDLE; }
  void recorded(const char*, std::uint64_t) override { ++count_; }
  std::uint32_t count_ = 0;
};

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

// What both forms share: the timeline, waiting, profiling.
class RingBase : public CommandRing {
 public:
  RingBase(Device& device, const config::CommandBufferRingSettings& settings,
           std::uint32_t timeout_ms)
      : device_(device), settings_(settings), timeout_ms_(timeout_ms) {}

  ~RingBase() override {
    if (timeline_.handle() != VK_NULL_HANDLE && RingBase::drain()) settle_queues(device_);
  }

  Status init() {
    BULKHEAD_RETURN_IF_ERROR(timeline_.init(device_));
    BULKHEAD_RETURN_IF_ERROR(stamps_.init(device_, settings_.track_statistics));
    return pool_.init(device_, device_.compute_family());
  }

  Status wait(Ticket ticket) override {
    if (ticket > submitted_) return never_submitted(ticket);
    if (!settings_.track_statistics && !settings_.log_wait_events) {
      return named(timeline_.wait(ticket, timeout_ms_, kWaiting), ticket);
    }
    const auto start = std::chrono::steady_clock::now();
    const Status status = named(timeline_.wait(ticket, timeout_ms_, kWaiting), ticket);
    const auto end = std::chrono::steady_clock::now();
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(end - start).count();
    if (status.ok()) stamps_.collect(ticket);
    if (device_.activity().tracing())
      device_.activity().host_ran("wait for submission", start, end, ticket);
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
    const Status status = timeline_.wait(ticket, wait_ms, kWaiting);
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
  Result<std::vector<KernelTime>> profile_build(const Build& build);

  void count(std::uint64_t CommandRingStats::*counter, std::uint64_t n = 1) {
    if (settings_.track_statistics) stats_.*counter += n;
  }

  // Adds the time of its life to a figure.
  class Timed {
   public:
    Timed(RingBase& ring, std::uint64_t CommandRingStats::*figure)
        : figure_(ring.settings_.track_statistics ? &(ring.stats_.*figure) : nullptr),
          start_(figure_ != nullptr ? Clock::now() : Clock::time_point()) {}
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;
    ~Timed() {
      if (figure_ == nullptr) return;
      *figure_ += static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count());
    }

   private:
    using Clock = std::chrono::steady_clock;
    std::uint64_t* const figure_;
    const Clock::time_point start_;
  };

  // A wait that failed, with what it was for.
  Status named(const Status& status, Ticket ticket) const {
    if (status.ok()) return status;
    return status.error().within(fmt::format("submission {} of {}", ticket, submitted_));
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
  Ticket submitted_ = 0;
  CommandRingStats stats_;
};

Result<std::vector<KernelTime>> RingBase::profile_build(const Build& build) {
  const std::uint32_t bits = device_.timestamp_bits();
  if (bits == 0) {
    return Error(ErrorCode::kUnsupported,
                 device_.info().name + " has no timestamps on its compute queue");
  }
  CountingRecorder counter(device_);
  build(counter);
  if (!counter.status().ok()) return counter.status().error();
  const std::uint32_t query_count = counter.count() + 1;
  QueryPool queries;
  BULKHEAD_RETURN_IF_ERROR(queries.init(device_, query_count));

  std::vector<OneBufferRecorder::Operation> operations;
  Status recorded;
  const Status ran = run_once(
      pool_, device_.compute_queue(), timeout_ms_, "profiling", [&](VkCommandBuffer commands) {
        vkCmdResetQueryPool(commands, queries.handle(), 0, query_count);
        full_barrier(commands);
        OneBufferRecorder recorder(device_, commands, queries.handle(), query_count);
        build(recorder);
        host_barrier(commands);
        operations = recorder.operations();
        recorded = recorder.status();
      });
  if (!ran.ok()) return ran.error();
  count(&CommandRingStats::submissions);
  if (!recorded.ok()) return recorded.error();
  if (operations.size() + 1 != query_count) {
    return Error(ErrorCode::kInternal, "profiling: the recording is not the same each time");
  }

  std::vector<std::uint64_t> ticks(query_count);
  const VkResult got = vkGetQueryPoolResults(device_.handle(), queries.handle(), 0, query_count,
                                             query_count * sizeof(std::uint64_t), ticks.data(),
                                             sizeof(std::uint64_t), VK_QUERY_RESULT_64_BIT);
  if (got != VK_SUCCESS) return Device::vulkan_error(got, "reading timestamps");

  // Each operation is charged the time since the one before it ended, so overlapping ones are not
  // counted twice and the sum is the whole submission.
  const std::uint64_t mask = bits >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
  std::vector<KernelTime> times;
  std::map<std::string, std::size_t> index_of;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const auto [entry, is_new] = index_of.emplace(operations[i].name, times.size());
    if (is_new) times.push_back({operations[i].name, 0, 0, 0});
    KernelTime& time = times[entry->second];
    ++time.calls;
    time.microseconds += static_cast<double>((ticks[i + 1] - ticks[i]) & mask) *
                         device_.info().timestamp_period_ns / 1000;
    time.bytes_moved += operations[i].bytes_moved;
  }
  return times;
}

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
      for (const Variant& made : recording.variants) {
        stamps_.forget(made.commands);
        pool_.free(made.commands);
      }
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

  Result<Ticket> submit(RecordingId id, std::span<const After> after,
                        std::uint32_t variant) override {
    const auto found = recordings_.find(id);
    if (found == recordings_.end() || variant >= found->second.variants.size())
      return unknown_recording(id);
    Recording& recording = found->second;
    Variant& chosen = recording.variants[variant];
    Submission submission;
    submission.commands = chosen.commands;
    submission.after = after;
    submission.signal = timeline_.handle();
    submission.value = submitted_ + 1;
    {
      const Timed timed(*this, &CommandRingStats::submit_nanoseconds);
      BULKHEAD_RETURN_IF_ERROR(
          submit_commands(device_.compute_queue(), submission, "submitting GPU work"));
    }
    ++submitted_;
    stamps_.submitted(chosen.commands, submitted_);
    count(&CommandRingStats::submissions);
    if (chosen.last_ticket != 0) count(&CommandRingStats::replays);
    chosen.last_ticket = submitted_;
    recording.last_use = submitted_;
    return submitted_;
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

  Result<VkCommandBuffer> idle_commands() {
    if (idle_.empty()) return pool_.allocate();
    const VkCommandBuffer commands = idle_.back();
    idle_.pop_back();
    return commands;
  }

  Status record_into(VkCommandBuffer commands, const Build& build) {
    const Timed timed(*this, &CommandRingStats::recording_nanoseconds);
    // Simultaneous use: the next step may be queued behind this one while this one runs.
    BULKHEAD_RETURN_IF_ERROR(
        begin_commands(commands, VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT));
    stamps_.begin(commands);
    full_barrier(commands);  // the submissions before
    OneBufferRecorder recorder(device_, commands);
    build(recorder);
    host_barrier(commands);
    stamps_.end(commands);
    const Status ended = end_commands(commands);
    return recorder.status().ok() ? ended : recorder.status();
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
      // An id later in the map was made later: at equal last_use the earlier one goes.
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
  std::vector<Retired> retired_;
  std::vector<VkCommandBuffer> idle_;
};

// The baseline: nothing is kept but what to do. Each submit waits for the one before, records a
// command buffer anew and submits it once.
class PlainRing final : public RingBase {
 public:
  using RingBase::RingBase;

  Result<RecordingId> record_variants(std::vector<Build> variants, Keep) override {
    builds_.emplace(++last_id_, std::move(variants));
    return last_id_;
  }

  bool known(RecordingId id) const override { return builds_.contains(id); }
  void drop(RecordingId id) override { builds_.erase(id); }
  void drop_all() override { builds_.clear(); }

  Result<Ticket> submit(RecordingId id, std::span<const After> after,
                        std::uint32_t variant) override {
    const auto found = builds_.find(id);
    if (found == builds_.end() || variant >= found->second.size()) return unknown_recording(id);
    if (commands_ != VK_NULL_HANDLE) {
      BULKHEAD_RETURN_IF_ERROR(wait(submitted_));
      stamps_.forget(commands_);
      pool_.free(std::exchange(commands_, VK_NULL_HANDLE));
    }
    BULKHEAD_TRY(const VkCommandBuffer commands, pool_.allocate());
    const Status submitted = record_and_submit(commands, found->second[variant], after);
    if (!submitted.ok()) {
      stamps_.forget(commands);
      pool_.free(commands);
      return submitted.error();
    }
    commands_ = commands;
    count(&CommandRingStats::recordings);
    count(&CommandRingStats::submissions);
    stamps_.submitted(commands, ++submitted_);
    return submitted_;
  }

  Result<std::vector<KernelTime>> profile(RecordingId id, std::uint32_t variant) override {
    const auto found = builds_.find(id);
    if (found == builds_.end() || variant >= found->second.size()) return unknown_recording(id);
    return profile_build(found->second[variant]);
  }

  bool enabled() const override { return false; }

 private:
  Status record_and_submit(VkCommandBuffer commands, const Build& build,
                           std::span<const After> after) {
    BULKHEAD_RETURN_IF_ERROR(record_once(commands, build));
    const Timed timed(*this, &CommandRingStats::submit_nanoseconds);
    Submission submission;
    submission.commands = commands;
    submission.after = after;
    submission.signal = timeline_.handle();
    submission.value = submitted_ + 1;
    return submit_commands(device_.compute_queue(), submission, "submitting GPU work");
  }

  Status record_once(VkCommandBuffer commands, const Build& build) {
    const Timed timed(*this, &CommandRingStats::recording_nanoseconds);
    BULKHEAD_RETURN_IF_ERROR(begin_commands(commands, VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT));
    stamps_.begin(commands);
    full_barrier(commands);  // the submissions before
    OneBufferRecorder recorder(device_, commands);
    build(recorder);
    host_barrier(commands);
    stamps_.end(commands);
    BULKHEAD_RETURN_IF_ERROR(end_commands(commands));
    return recorder.status();
  }

  RecordingId last_id_ = 0;
  std::unordered_map<RecordingId, std::vector<Build>> builds_;
  VkCommandBuffer commands_ = VK_NULL_HANDLE;  // of the last submission
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
