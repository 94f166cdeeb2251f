// Transient device buffers without vkAllocateMemory in steady state: heaps allocated at start,
// sub-allocated by offset in power-of-two size classes. Weights and KV pages are no business of
// this pool; they have buffers of their own.
//
// Switched off (the baseline), every acquire is a vkAllocateMemory and every release a
// vkFreeMemory, as a plain program does.
#pragma once

#include <cstdint>
#include <memory>

#include "config/settings.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

struct MemoryPoolStats {
  std::uint64_t acquires = 0, releases = 0;
  std::uint64_t fallback_allocations = 0;  // past the heaps, or with the pool off
  // Whole blocks, as the pool counts them; reserved: all that is allocated on the device.
  std::uint64_t bytes_in_use = 0, bytes_peak = 0, bytes_reserved = 0;
};

// Thread-safety: one thread, the Device's.
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
    const BufferSlice& slice() const { return slice_; }
    bool valid() const { return pool_ != nullptr; }

   private:
    friend class MemoryPool;
    friend struct MemoryPoolAccess;
    MemoryPool* pool_ = nullptr;
    BufferSlice slice_;
    std::uint64_t token_ = 0;
  };

  virtual Result<Lease> acquire(std::uint64_t bytes, const char* name) = 0;
  virtual bool enabled() const = 0;
  virtual MemoryPoolStats stats() const = 0;

 protected:
  virtual void give_back(const BufferSlice& slice, std::uint64_t token) = 0;
  friend struct MemoryPoolAccess;
};

}  // namespace bulkhead::gpu
