// A ring in memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "ipc/ring.hpp"

namespace bulkhead::ipc {

// Both ends of one ring in one process; `control` and `data` stand for the shared memory.
struct Ring {
  explicit Ring(std::uint64_t size)
      : bytes(size), data(static_cast<std::byte*>(std::aligned_alloc(64, size)), &std::free) {}
  RingProducer producer() { return RingProducer(*control, data.get(), bytes); }
  RingConsumer consumer() { return RingConsumer(*control, data.get(), bytes); }
  void header(std::uint64_t at, std::uint32_t length, FrameKind kind) {
    const FrameHeader header{length, kind};
    std::memcpy(data.get() + at, &header, sizeof header);
  }

  std::uint64_t bytes;
  std::unique_ptr<RingControl> control = std::make_unique<RingControl>();
  std::unique_ptr<std::byte[], decltype(&std::free)> data;
};

}  // namespace bulkhead::ipc
