#include "worker/forward/weight_pipeline.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "config/base/elapsed.hpp"

namespace bulkhead::forward {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kKib = 1 << 10, kMib = 1 << 20;
constexpr std::chrono::milliseconds kAliveInterval{100};
constexpr std::chrono::seconds kLongestStandstill{30};  // for example of a disk
constexpr std::uint32_t kMostThreads = 16;
// Smaller pieces cost more submissions; larger ones leave threads without work at a matrix's end.
constexpr std::uint64_t kSmallestPiece = 64 * kKib, kLargestPiece = 4 * kMib;
constexpr std::uint64_t kWorthAThread = 4 * kMib;
constexpr std::uint64_t kReadAtOnce = 8 * kMib;

// Returns the whole pages around, or within, a part of a mapping.
std::span<const std::byte> whole_pages(std::span<const std::byte> part, bool around) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<std::uintptr_t>(part.data());
  std::uintptr_t end = begin + part.size();
  begin = (around ? begin : begin + page - 1) / page * page;
  end = (around ? end + page - 1 : end) / page * page;
  if (end <= begin) return {};
  return {reinterpret_cast<const std::byte*>(begin), end - begin};
}

// Brings a part of the file's mapping into memory and its pages into the page table, many at a time. Kernels older
// than 5.14 do not know this request; packing then brings them in one by one.
void read_pages(std::span<const std::byte> part) {
  const auto pages = whole_pages(part, true);
#ifdef MADV_POPULATE_READ
  constexpr int kPopulate = MADV_POPULATE_READ;
#else
  constexpr int kPopulate = 22;
#endif
  if (!pages.empty())
    (void)::madvise(const_cast<std::byte*>(pages.data()), pages.size(), kPopulate);
}

}  // namespace

struct WeightPipeline::Impl {
  gpu::Device& device;
  gpu::BlitQueue& blit;
  std::vector<PipelineJob> jobs;
  std::vector<PipelineBlock> blocks;
  Forget forget;
  const Clock::time_point start = Clock::now();
  std::uint64_t total_bytes = 0;
  std::uint32_t packer_count = 1;
  std::uint64_t piece_bytes = 0;
  std::size_t most_in_hand = 0;  // pieces that are reserved but not sent yet

  struct Task {
    enum Kind { kRead, kPack, kForget } kind = kPack;
    std::size_t job = 0;
    std::uint64_t offset = 0;         // kPack: in the buffer
    gpu::BlitQueue::Piece piece;      // kPack
    std::span<const std::byte> part;  // kRead, kForget
  };

  std::mutex mutex;                  // guards everything down to `failed`
  std::condition_variable work;      // for packers: tasks, or the end
  std::condition_variable progress;  // wakes the sender and the owner for everything else
  std::deque<Task> tasks;
  std::deque<Task> filled;
  std::vector<std::uint64_t> unpacked;  // bytes of each job that are not packed yet
  std::vector<gpu::Buffer> buffers;
  std::vector<gpu::BufferSlice> targets;  // of buffers, which may be the caller's already
  std::size_t busy = 0;                   // tasks that packers are working on
  bool over = false;                      // everything is sent and done, or something failed
  bool stop = false;
  Status failed;

  std::atomic<std::uint64_t> packed_bytes = 0, read_ns = 0, pack_ns = 0;
  // Only the writer uses these until it is joined.
  std::uint64_t allocate_ns = 0, upload_ns = 0, send_ns = 0, starved_ns = 0, total_ns = 0;

  std::jthread allocator, sender;
  std::vector<std::jthread> packers;

  Impl(gpu::Device& the_device, gpu::BlitQueue& the_blit, std::vector<PipelineJob> the_jobs,
       Forget the_forget, std::vector<PipelineBlock> the_blocks)
      : device(the_device),
        blit(the_blit),
        jobs(std::move(the_jobs)),
        blocks(std::move(the_blocks)),
        forget(std::move(the_forget)) {
    if (blocks.empty()) {
      for (PipelineJob& job : jobs) {
        job.block = static_cast<std::uint32_t>(blocks.size());
        job.offset = 0;
        blocks.push_back({job.bytes, gpu::Memory::kDeviceLocal});
      }
    }
    for (const PipelineJob& job : jobs) {
      total_bytes += job.bytes;
      unpacked.push_back(job.bytes);
    }
    packer_count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
        total_bytes / kWorthAThread, 1,
        std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads)));
    // While each thread fills one piece, as many pieces are being transferred.
    most_in_hand = packer_count + 2;
    const std::uint64_t staging = blit.largest_piece() * 4;
    piece_bytes = std::clamp(staging / (2 * packer_count + 2), kSmallestPiece, kLargestPiece);
    piece_bytes = std::min(piece_bytes, blit.largest_piece()) / kKib * kKib;
  }

  void fail(const Status& status) {
    const std::lock_guard lock(mutex);
    if (failed.ok()) failed = status;
    stop = true;
    work.notify_all();
    progress.notify_all();
  }

  void allocate_all() {
    for (std::uint32_t block = 0; block < blocks.size(); ++block) {
      const Clock::time_point begin = Clock::now();
      const auto first = std::ranges::find(jobs, block, &PipelineJob::block);
      auto made = device.allocate(blocks[block].bytes, blocks[block].memory,
                                  first != jobs.end() ? first->name.c_str() : "weights");
      allocate_ns += nanoseconds_since(begin);
      if (!made.ok()) return fail(made.error());
      const std::lock_guard lock(mutex);
      for (auto job = first; job != jobs.end() && job->block == block; ++job)
        targets.push_back(gpu::slice(*made, job->offset, job->bytes));
      buffers.push_back(*std::move(made));
      progress.notify_all();
      if (stop) return;
    }
  }

  void pack_until_over() {
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return stop || over || !tasks.empty(); });
      if (stop || (over && tasks.empty())) return;
      Task task = tasks.front();
      tasks.pop_front();
      ++busy;
      lock.unlock();
      run(task);
      lock.lock();
      --busy;
      if (task.kind == Task::kPack) {
        filled.push_back(task);
        std::uint64_t& left = unpacked[task.job];
        left -= task.piece.bytes.size();
        if (left == 0 && forget) {
          for (const auto part : jobs[task.job].sources)
            tasks.push_back({Task::kForget, task.job, 0, {}, part});
          work.notify_one();
        }
      }
      progress.notify_all();
    }
  }

  void run(const Task& task) {
    const Clock::time_point begin = Clock::now();
    switch (task.kind) {
      case Task::kRead:
        read_pages(task.part);
        read_ns += nanoseconds_since(begin);
        break;
      case Task::kForget:
        // The pages at its ends are left alone, because a neighbour may need them.
        if (const auto pages = whole_pages(task.part, false); !pages.empty()) forget(pages);
        read_ns += nanoseconds_since(begin);
        break;
      case Task::kPack:
        try {
          jobs[task.job].fill(task.offset, task.piece.bytes);
        } catch (const std::exception& failure) {  // out of memory
          fail(Error(ErrorCode::kResourceExhausted,
                     jobs[task.job].name + ": packing it failed: " + failure.what()));
        }
        pack_ns += nanoseconds_since(begin);
        packed_bytes += task.piece.bytes.size();
        break;
    }
  }

  void queue_reads(std::size_t job) {
    if (job >= jobs.size()) return;
    const std::lock_guard lock(mutex);
    for (const auto source : jobs[job].sources) {
      for (std::uint64_t at = 0; at < source.size(); at += kReadAtOnce) {
        tasks.push_back(
            {Task::kRead,
             job,
             0,
             {},
             source.subspan(at, std::min<std::uint64_t>(kReadAtOnce, source.size() - at))});
      }
    }
    work.notify_all();
  }

  // Sends the pieces that are filled, without waiting.
  Status send_filled(std::size_t& in_hand) {
    for (;;) {
      Task task;
      {
        const std::lock_guard lock(mutex);
        if (!failed.ok() || filled.empty()) return failed;
        task = filled.front();
        filled.pop_front();
      }
      --in_hand;
      gpu::BufferSlice to = targets[task.job];
      to.offset += task.offset;
      to.address += task.offset;
      to.bytes = task.piece.bytes.size();
      const Clock::time_point begin = Clock::now();
      BULKHEAD_RETURN_IF_ERROR(blit.send(task.piece, to));
      send_ns += nanoseconds_since(begin);
    }
  }

  void wait_for_filled() {
    const Clock::time_point begin = Clock::now();
    std::unique_lock lock(mutex);
    progress.wait(lock, [&] { return stop || !filled.empty(); });
    starved_ns += nanoseconds_since(begin);
  }

  // Returns staging memory for the next piece, and sends filled pieces meanwhile. Returns nothing if the pipeline
  // has been stopped.
  Result<std::optional<gpu::BlitQueue::Piece>> room_for(std::uint64_t bytes, std::size_t& in_hand) {
    for (;;) {
      BULKHEAD_RETURN_IF_ERROR(send_filled(in_hand));
      if (told_to_stop()) return std::optional<gpu::BlitQueue::Piece>();
      if (in_hand < most_in_hand) {
        BULKHEAD_TRY(auto piece, blit.reserve(bytes));
        if (piece) return piece;
        if (in_hand == 0) {
          BULKHEAD_RETURN_IF_ERROR(blit.wait_for_room());
          continue;
        }
      }
      wait_for_filled();
    }
  }

  bool told_to_stop() {
    const std::lock_guard lock(mutex);
    return stop;
  }

  Status send_all() {
    std::size_t in_hand = 0;
    queue_reads(0);
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      queue_reads(job + 1);
      {
        std::unique_lock lock(mutex);
        progress.wait(lock, [&] { return stop || targets.size() > job; });
        if (stop) return failed;
      }
      const std::uint64_t grain = std::max<std::uint64_t>(jobs[job].grain, 1);
      const std::uint64_t whole = piece_bytes >= grain ? piece_bytes / grain * grain : piece_bytes;
      for (std::uint64_t offset = 0; offset < jobs[job].bytes;) {
        const std::uint64_t bytes = std::min(jobs[job].bytes - offset, whole);
        BULKHEAD_TRY(const auto piece, room_for(bytes, in_hand));
        if (!piece) return {};
        ++in_hand;
        const std::lock_guard lock(mutex);
        tasks.push_back({Task::kPack, job, offset, *piece, {}});
        work.notify_one();
        offset += bytes;
      }
    }
    while (in_hand > 0) {
      wait_for_filled();
      BULKHEAD_RETURN_IF_ERROR(send_filled(in_hand));
      if (told_to_stop()) return {};
    }
    return blit.finish_uploads();
  }

  void send_until_over() {
    const std::uint64_t before = blit.stats().upload_nanoseconds;
    if (const Status sent = send_all(); !sent.ok()) return fail(sent);
    upload_ns = blit.stats().upload_nanoseconds - before;
    total_ns = nanoseconds_since(start);
    const std::lock_guard lock(mutex);
    over = true;
    work.notify_all();
    progress.notify_all();
  }

  void launch() {
    targets.reserve(jobs.size());
    try {
      allocator = std::jthread([this] { allocate_all(); });
      sender = std::jthread([this] { send_until_over(); });
      for (std::uint32_t i = 0; i < packer_count; ++i)
        packers.emplace_back([this] { pack_until_over(); });
    } catch (const std::exception& refused) {
      // The threads that there are end now, else their destructors would wait for ever.
      fail(Error(ErrorCode::kResourceExhausted,
                 std::string("no thread to load weights with: ") + refused.what()));
    }
  }

  void join() {
    if (allocator.joinable()) allocator.join();
    if (sender.joinable()) sender.join();
    packers.clear();
  }

  // Waits until `done` returns true; calls it under the lock.
  template <typename Done>
  Status wait_until(const Alive& alive, const Done& done) {
    std::unique_lock lock(mutex);
    // Without progress this gives no signs of life, and the daemon then ends this process.
    std::uint64_t seen = packed_bytes + targets.size();
    Clock::time_point moved = Clock::now();
    while (!progress.wait_for(lock, kAliveInterval, [&] { return done() || !failed.ok(); })) {
      const std::uint64_t now = packed_bytes + targets.size();
      if (now != seen) moved = Clock::now();
      seen = now;
      lock.unlock();
      if (alive && Clock::now() - moved < kLongestStandstill) alive(packed_bytes, total_bytes);
      lock.lock();
    }
    return failed;
  }
};

WeightPipeline::WeightPipeline(gpu::Device& device, gpu::BlitQueue& blit,
                               std::vector<PipelineJob> jobs, Forget forget,
                               std::vector<PipelineBlock> blocks)
    : impl_(std::make_unique<Impl>(device, blit, std::move(jobs), std::move(forget),
                                   std::move(blocks))) {
  impl_->launch();
}

WeightPipeline::~WeightPipeline() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
    impl_->work.notify_all();
    impl_->progress.notify_all();
  }
  impl_->join();
  for (const auto* unsent : {&impl_->tasks, &impl_->filled}) {
    for (const Impl::Task& task : *unsent) {
      if (task.kind == Impl::Task::kPack) impl_->blit.give_up(task.piece);
    }
  }
  impl_->blit.drain();
}

Result<std::vector<gpu::Buffer>> WeightPipeline::buffers(const Alive& alive) {
  BULKHEAD_RETURN_IF_ERROR(
      impl_->wait_until(alive, [&] { return impl_->buffers.size() == impl_->blocks.size(); }));
  const std::lock_guard lock(impl_->mutex);
  return std::move(impl_->buffers);
}

Status WeightPipeline::finish(const Alive& alive) {
  BULKHEAD_RETURN_IF_ERROR(impl_->wait_until(alive, [&] { return impl_->over; }));
  impl_->join();
  if (alive) alive(impl_->total_bytes, impl_->total_bytes);
  return {};
}

PipelineTimes WeightPipeline::times() const {
  PipelineTimes times;
  times.read = impl_->read_ns;
  times.pack = impl_->pack_ns;
  times.allocate = impl_->allocate_ns;
  times.upload = impl_->upload_ns;
  times.send = impl_->send_ns;
  times.starved = impl_->starved_ns;
  times.total = impl_->total_ns;
  times.threads = impl_->packer_count;
  return times;
}

}  // namespace bulkhead::forward
