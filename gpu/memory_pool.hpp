// Hands out transient device buffers without vkAllocateMemory in steady state: it allocates heaps at its start and
// divides them into power-of-two blocks by offset. Weights and KV pages have buffers of their own outside this pool.
//
// When switched off (the baseline), every acquire calls vkAllocateMemory and every release calls vkFreeMemory, as in
// a plain program.
#pragma once

#include <cstdint>
#include <memory>

#include "config/settings.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

// Without track_statistics only fallback_allocations is counted, because it proves that steady decoding allocates
// nothing.
struct MemoryPoolStats {
  std::uint64_t acquires = 0, releases = 0;
  std::uint64_t hits = 0;                  // acquires served from the heaps
  std::uint64_t fallback_allocations = 0;  // outside the heaps, or with the pool off
  // Whole blocks, as the pool counts them. bytes_reserved is everything that is allocated on the device.
  std::uint64_t bytes_in_use = 0, bytes_peak = 0, bytes_reserved = 0;
  std::uint64_t bytes_requested = 0;      // what the live leases requested
  std::uint64_t largest_allocation = 0;   // the largest single request, in bytes
  std::uint64_t nanoseconds = 0;          // spent in acquire()
  std::uint64_t release_nanoseconds = 0;  // spent on releasing leases
  // The heaps: their number, how many of them hold a lease, their bytes, and the largest free block. Cached blocks
  // without a lease count as free.
  std::uint64_t heaps = 0, active_heaps = 0;
  std::uint64_t heap_bytes = 0, heap_bytes_in_use = 0, largest_free_block = 0;

  double hit_rate() const { return share(hits, acquires, 1); }
  double utilisation() const { return share(heap_bytes_in_use, heap_bytes, 0); }
  double average_acquire_us() const { return share(nanoseconds, acquires, 0) / 1e3; }
  // Returns the share of the blocks in use that nobody requested. It is under one half, because blocks are powers of
  // two, except for requests under 256 bytes.
  double internal_fragmentation() const {
    return bytes_in_use == 0 ? 0 : 1 - share(bytes_requested, bytes_in_use, 0);
  }
  // Returns the share of the free memory that no single request can get.
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

// Thread-safety: any thread, leases too. A lock protects a few steps in maps. A request that the heaps can't serve
// holds the lock during the device's allocation.
class MemoryPool {
 public:
  // If enabled, allocates the heaps now. kResourceExhausted says how much was requested and how much is free.
  static Result<std::unique_ptr<MemoryPool>> create(Device& device,
                                                    const config::MemoryPoolSettings& settings,
                                                    bool enabled);
  virtual ~MemoryPool() = default;

  // Owns a piece of the pool and gives it back when destroyed. Destroy it after the device is done with it and before
  // the pool. Offsets and sizes are multiples of 256 bytes. The content is undefined at first.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease();
    // A view of part of a slice; somebody else must hold the slice as long as the view is used.
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
  virtual std::uint64_t heap_bytes() const = 0;  // the size of one heap; 0 with the pool off
  virtual MemoryPoolStats stats() const = 0;

 protected:
  virtual void give_back(const BufferSlice& slice, std::uint64_t token) = 0;
  friend struct MemoryPoolAccess;
};

}  // namespace bulkhead::gpu
