#include "gpu/memory_pool.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "config/base/elapsed.hpp"
#include "config/base/log.hpp"
#include "gpu/buddy_heap.hpp"

namespace bulkhead::gpu {

// Allows the two forms below to make leases.
struct MemoryPoolAccess {
  static MemoryPool::Lease lease(MemoryPool& pool, const BufferSlice& slice, std::uint64_t token) {
    MemoryPool::Lease lease;
    lease.pool_ = &pool;
    lease.slice_ = slice;
    lease.token_ = token;
    return lease;
  }
};

MemoryPool::Lease::Lease(Lease&& other) noexcept {
  *this = std::move(other);
}

MemoryPool::Lease& MemoryPool::Lease::operator=(Lease&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(slice_, other.slice_);
  std::swap(token_, other.token_);
  return *this;
}

MemoryPool::Lease MemoryPool::Lease::view(const BufferSlice& whole, std::uint64_t offset,
                                          std::uint64_t bytes) {
  Lease view;
  view.slice_ = whole;
  view.slice_.offset += offset;
  view.slice_.address += offset;
  view.slice_.bytes = bytes;
  if (whole.mapped != nullptr) view.slice_.mapped += offset;
  return view;
}

MemoryPool::Lease::~Lease() {
  if (pool_ != nullptr) pool_->give_back(slice_, token_);
}

namespace {

constexpr std::uint64_t kMib = 1 << 20;
constexpr std::uint64_t kAlignment = 256;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Error zero_bytes(const char* name) {
  return Error(ErrorCode::kInvalidArgument, fmt::format("memory pool: {} asked for 0 bytes", name));
}

// The statistics that `track_statistics` switches off. Fallback allocations are always counted, because they prove
// that steady decoding allocates nothing.
class Tracker {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Tracker(bool enabled) : enabled_(enabled) {}

  Clock::time_point started() const { return enabled_ ? Clock::now() : Clock::time_point(); }
  void acquired(std::uint64_t block, std::uint64_t asked, bool hit, Clock::time_point started) {
    if (!enabled_) return;
    ++stats_.acquires;
    stats_.hits += hit ? 1 : 0;
    stats_.bytes_in_use += block;
    stats_.bytes_requested += asked;
    stats_.bytes_peak = std::max(stats_.bytes_peak, stats_.bytes_in_use);
    stats_.largest_allocation = std::max(stats_.largest_allocation, asked);
    stats_.nanoseconds += nanoseconds_since(started);
  }
  void released(std::uint64_t block, std::uint64_t asked, Clock::time_point started) {
    if (!enabled_) return;
    stats_.release_nanoseconds += nanoseconds_since(started);
    ++stats_.releases;
    stats_.bytes_in_use -= block;
    stats_.bytes_requested -= asked;
  }
  void reserved(std::uint64_t bytes) {
    if (enabled_) stats_.bytes_reserved += bytes;
  }
  void unreserved(std::uint64_t bytes) {
    if (enabled_) stats_.bytes_reserved -= bytes;
  }
  std::uint64_t fell_back() { return ++stats_.fallback_allocations; }
  bool enabled() const { return enabled_; }
  const MemoryPoolStats& stats() const { return stats_; }

 private:
  bool enabled_;
  MemoryPoolStats stats_;
};

// One allocation for each lease: for the baseline, and for what the pool's heaps can't serve. Tokens are odd.
class Singles {
 public:
  Singles(Device& device, Tracker& tracker) : device_(device), tracker_(tracker) {}

  Result<MemoryPool::Lease> acquire(MemoryPool& pool, std::uint64_t bytes, const char* name) {
    const auto started = tracker_.started();
    BULKHEAD_TRY(Buffer buffer, device_.allocate(aligned(bytes), Memory::kDeviceLocal, name));
    const BufferSlice whole = slice(buffer);
    const std::uint64_t token = next_token_;
    next_token_ += 2;
    buffers_.emplace(token, std::move(buffer));
    tracker_.reserved(whole.bytes);
    tracker_.acquired(whole.bytes, whole.bytes, false, started);
    return MemoryPoolAccess::lease(pool, whole, token);
  }

  void give_back(const BufferSlice& slice, std::uint64_t token) {
    const auto started = tracker_.started();
    buffers_.erase(token);
    tracker_.unreserved(slice.bytes);
    tracker_.released(slice.bytes, slice.bytes, started);
  }

 private:
  Device& device_;
  Tracker& tracker_;
  std::uint64_t next_token_ = 1;
  std::unordered_map<std::uint64_t, Buffer> buffers_;
};

class DirectPool final : public MemoryPool {
 public:
  DirectPool(Device& device, const config::MemoryPoolSettings& settings)
      : tracker_(settings.track_statistics), singles_(device, tracker_) {}

  Result<Lease> acquire(std::uint64_t bytes, const char* name) override {
    if (bytes == 0) return zero_bytes(name);
    const std::lock_guard lock(mutex_);
    BULKHEAD_TRY(Lease lease, singles_.acquire(*this, bytes, name));
    tracker_.fell_back();
    return lease;
  }
  bool enabled() const override { return false; }
  std::uint64_t heap_bytes() const override { return 0; }
  MemoryPoolStats stats() const override {
    const std::lock_guard lock(mutex_);
    return tracker_.stats();
  }

 protected:
  void give_back(const BufferSlice& slice, std::uint64_t token) override {
    const std::lock_guard lock(mutex_);
    singles_.give_back(slice, token);
  }

 private:
  mutable std::mutex mutex_;
  Tracker tracker_;
  Singles singles_;
};

class HeapPool final : public MemoryPool {
 public:
  HeapPool(Device& device, const config::MemoryPoolSettings& settings)
      : device_(device),
        settings_(settings),
        tracker_(settings.track_statistics),
        singles_(device, tracker_) {}

  Status init() {
    const std::uint64_t heap_bytes = settings_.heap_size_mb * kMib;
    for (std::uint32_t i = 0; i < settings_.num_heaps; ++i) {
      const std::string name = fmt::format("memory pool heap {} of {}", i + 1, settings_.num_heaps);
      BULKHEAD_TRY(Buffer buffer, device_.allocate(heap_bytes, Memory::kDeviceLocal, name.c_str()));
      tracker_.reserved(heap_bytes);
      heaps_.push_back({std::move(buffer), BuddyHeap(heap_bytes), 0});
    }
    warm_up();
    return {};
  }

  Result<Lease> acquire(std::uint64_t bytes, const char* name) override {
    if (bytes == 0) return zero_bytes(name);
    const std::uint64_t block = BuddyHeap::block_bytes(bytes);
    const std::lock_guard lock(mutex_);
    const auto started = tracker_.started();
    std::optional<Place> place = take(block);
    if (!place && dissolve_warm_blocks()) place = take(block);
    if (!place) return fall_back(bytes, block, name);
    const BufferSlice part = slice(heaps_[place->heap].buffer, place->offset, aligned(bytes));
    heaps_[place->heap].in_use += block;
    tracker_.acquired(block, part.bytes, true, started);
    return MemoryPoolAccess::lease(*this, part, token_of(place->heap, block));
  }

  bool enabled() const override { return true; }
  std::uint64_t heap_bytes() const override { return settings_.heap_size_mb * kMib; }
  MemoryPoolStats stats() const override {
    const std::lock_guard lock(mutex_);
    MemoryPoolStats stats = tracker_.stats();
    if (!tracker_.enabled()) return stats;
    stats.heaps = heaps_.size();
    for (const Heap& heap : heaps_) {
      stats.active_heaps += heap.in_use > 0 ? 1 : 0;
      stats.heap_bytes += heap.blocks.bytes();
      stats.heap_bytes_in_use += heap.in_use;
      stats.largest_free_block = std::max(stats.largest_free_block, heap.blocks.largest_free());
    }
    for (const auto& [block, warm] : warm_) {
      if (!warm.idle.empty()) stats.largest_free_block = std::max(stats.largest_free_block, block);
    }
    return stats;
  }

 protected:
  void give_back(const BufferSlice& slice, std::uint64_t token) override {
    const std::lock_guard lock(mutex_);
    if ((token & 1) != 0) {
      outside_ -= BuddyHeap::block_bytes(slice.bytes);
      return singles_.give_back(slice, token);
    }
    const auto [heap, block] = heap_and_block(token);
    heaps_[heap].in_use -= block;
    tracker_.released(block, slice.bytes, tracker_.started());
    const auto warm = warm_.find(block);
    if (warm != warm_.end() && warm->second.idle.size() < warm->second.wanted) {
      warm->second.idle.push_back({heap, slice.offset});
      return;
    }
    heaps_[heap].blocks.give_back(slice.offset, block);
  }

 private:
  struct Heap {
    Buffer buffer;
    BuddyHeap blocks;
    std::uint64_t in_use = 0;  // by leases; warm blocks without a lease do not count
  };
  struct Place {
    std::size_t heap;
    std::uint64_t offset;
  };
  // Blocks of one size that are kept whole for the next request of that size.
  struct Warm {
    std::size_t wanted = 0;
    std::vector<Place> idle;
  };

  // Even numbers: heap, then log2 of the block, then a zero bit.
  static std::uint64_t token_of(std::size_t heap, std::uint64_t block) {
    return (static_cast<std::uint64_t>(heap) << 8) |
           (static_cast<std::uint64_t>(std::countr_zero(block)) << 1);
  }
  static std::pair<std::size_t, std::uint64_t> heap_and_block(std::uint64_t token) {
    return {static_cast<std::size_t>(token >> 8), std::uint64_t{1} << (token >> 1 & 0x7f)};
  }

  // Large ones come first, so that they find room that small ones have not split.
  void warm_up() {
    std::vector<std::uint64_t> blocks;
    for (const std::uint32_t mib : settings_.warmup_sizes) {
      if (mib > 0) blocks.push_back(BuddyHeap::block_bytes(mib * kMib));
    }
    std::sort(blocks.rbegin(), blocks.rend());
    for (const std::uint64_t block : blocks) {
      const std::optional<Place> place = take_from_heaps(block);
      if (!place) {
        spdlog::debug("memory pool: no room to warm a block of {} MiB", block / kMib);
        continue;
      }
      Warm& warm = warm_[block];
      ++warm.wanted;
      warm.idle.push_back(*place);
    }
  }

  std::optional<Place> take(std::uint64_t block) {
    if (const auto warm = warm_.find(block); warm != warm_.end() && !warm->second.idle.empty()) {
      const Place place = warm->second.idle.back();
      warm->second.idle.pop_back();
      return place;
    }
    return take_from_heaps(block);
  }

  std::optional<Place> take_from_heaps(std::uint64_t block) {
    for (std::size_t i = 0; i < heaps_.size(); ++i) {
      if (const auto offset = heaps_[i].blocks.take(block)) return Place{i, *offset};
    }
    return std::nullopt;
  }

  // Turns idle warm blocks into ordinary room when nothing else is left. Returns whether there were any.
  bool dissolve_warm_blocks() {
    bool any = false;
    for (auto& [block, warm] : warm_) {
      for (const Place& place : warm.idle)
        heaps_[place.heap].blocks.give_back(place.offset, block);
      any |= !warm.idle.empty();
      warm.idle.clear();
    }
    return any;
  }

  Result<Lease> fall_back(std::uint64_t bytes, std::uint64_t block, const char* name) {
    BULKHEAD_TRY(Lease lease, singles_.acquire(*this, bytes, name));
    outside_ += BuddyHeap::block_bytes(lease.slice().bytes);
    const std::uint64_t count = tracker_.fell_back();
    if (settings_.log_exhaustion) {
      spdlog::warn(
          "memory pool: no room for {} ({:.1f} MiB) in {} x {} MiB; allocated outside the pool ({} "
          "so far), which works but takes longer. "
          "gpu_optimizations.memory_pool.{} would hold it",
          name, static_cast<double>(bytes) / kMib, settings_.num_heaps, settings_.heap_size_mb,
          count, large_enough(block));
    }
    return lease;
  }

  // Returns the setting with which the heaps would have held all that is in use now.
  std::string large_enough(std::uint64_t block) const {
    const std::uint64_t heap = settings_.heap_size_mb * kMib;
    if (block > heap) return fmt::format("heap_size_mb={}", (block + kMib - 1) / kMib);
    std::uint64_t bytes = outside_;
    for (const Heap& each : heaps_)
      bytes += each.in_use;
    return fmt::format("num_heaps={}",
                       std::max<std::uint64_t>((bytes + heap - 1) / heap, settings_.num_heaps + 1));
  }

  Device& device_;
  const config::MemoryPoolSettings settings_;
  mutable std::mutex mutex_;  // guards everything below
  Tracker tracker_;
  Singles singles_;
  std::vector<Heap> heaps_;
  std::uint64_t outside_ = 0;           // bytes of blocks that the heaps had no room for
  std::map<std::uint64_t, Warm> warm_;  // by block bytes
};

}  // namespace

Result<std::unique_ptr<MemoryPool>> MemoryPool::create(Device& device,
                                                       const config::MemoryPoolSettings& settings,
                                                       bool enabled) {
  if (!enabled) return std::unique_ptr<MemoryPool>(std::make_unique<DirectPool>(device, settings));
  auto pool = std::make_unique<HeapPool>(device, settings);
  const Status ready = pool->init();
  if (!ready.ok()) return ready.error().within("memory pool");
  return std::unique_ptr<MemoryPool>(std::move(pool));
}

}  // namespace bulkhead::gpu
