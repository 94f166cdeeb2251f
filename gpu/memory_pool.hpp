// Transient device buffers without vkAllocateMemory in steady state: heaps allocated at start,
// sub-allocated by offset in power-of-two size classes. Weights and KV pages are not in this pool;
// they have buffers of their own.
//
// Switched off (the baseline), every acquire is a vkAllocateMemory and every release a
// vkFreeMemory, as a plain program does.
#pragma once

#include <cstdint>
#include <memory>

#include "config/settings.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

// Without track_statistics only fallback_allocations is kept: it is the proof that steady decoding
// allocates nothing.
struct MemoryPoolStats {
  std::uint64_t acquires = 0, releases = 0;
  std::uint64_t hits = 0;                  // acquires served from the heaps
  std::uint64_t fallback_allocations = 0;  // past the heaps, or with the pool off
  // Whole blocks, as the pool counts them; reserved: all that is allocated on the device.
  std::uint64_t bytes_in_use = 0, bytes_peak = 0, bytes_reserved = 0;
  std::uint64_t bytes_requested = 0;      // what the leases alive asked for
  std::uint64_t largest_allocation = 0;   // bytes asked for at once
  std::uint64_t nanoseconds = 0;          // spent in acquire()
  std::uint64_t release_nanoseconds = 0;  // and in giving leases back
  // The heaps: how many, how many of them hold a lease, their bytes, and of what is free of them the
  // largest block. Warm blocks that nobody has count as free.
  std::uint64_t heaps = 0, active_heaps = 0;
  std::uint64_t heap_bytes = 0, heap_bytes_in_use = 0, largest_free_block = 0;

  double hit_rate() const { return share(hits, acquires, 1); }
  double utilisation() const { return share(heap_bytes_in_use, heap_bytes, 0); }
  double average_acquire_us() const { return share(nanoseconds, acquires, 0) / 1e3; }
  // Of the blocks in use, the share that nobody asked for: under one half (blocks are powers of
  // two), but for requests under 256 bytes.
  double internal_fragmentation() const {
    return bytes_in_use == 0 ? 0 : 1 - share(bytes_requested, bytes_in_use, 0);
  }
  // Of what is free, the share that no single request can have.
  double external_fragmentation() const {
    return heap_bytes == heap_bytes_in_use
               ? 0
               : 1 - share(largest_free_block, heap_bytes - heap_bytes_in_use, 0);
  }

 private:
  static double share(std::uint64_t part, std::uint64_t whole, double of_nothing) {
    return whole == 0 ? of_nothing : static_cast<double>(part) / static_cast<double>(whole);
  }
};

// Thread-safety: any thread, leases too: a lock around some map steps. A request past the heaps
// waits for the device's allocation under it.
class MemoryPool {
 public:
  // Enabled: the heaps are allocated now, and kResourceExhausted says what was asked and what is
  // free.
  static Result<std::unique_ptr<MemoryPool>> create(Device& device,
                                                    const config::MemoryPoolSettings& settings,
                                                    bool enabled);
  virtual ~MemoryPool() = default;

  // Owns a piece of the pool; gives it back when destroyed, which must be after the device is done
  // with it and before the pool is. Offsets and sizes are multiples of 256 bytes. Contents are
  // whatever was there.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease();
    // A part of a slice that somebody else holds for as long as this is used.
    static Lease view(const BufferSlice& whole, std::uint64_t offset, std::uint64_t bytes);
    const BufferSlice& slice() const { return slice_; }
    bool valid() const { return pool_ != nullptr; }

   private:
    friend class MemoryPool;
    friend struct MemoryPoolAccess;
    MemoryPool* pool_ = nullptr;
    BufferSlice slice_;
    std::uint64_t token_ = 0;
  };

  static constexpr std::uint64_t kLeaseAlignment = 256;
  virtual Result<Lease> acquire(std::uint64_t bytes, const char* name) = 0;
  virtual bool enabled() const = 0;
  virtual std::uint64_t heap_bytes() const = 0;  // of one heap; 0 with the pool off
  virtual MemoryPoolStats stats() const = 0;

 protected:
  virtual void give_back(const BufferSlice& slice, std::uint64_t token) = 0;
  friend struct MemoryPoolAccess;
};

}  // namespace bulkhead::gpu
