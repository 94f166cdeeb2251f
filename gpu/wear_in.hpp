// Makes a driver do some one-time work before a request has to wait for it. That work happens after some hundred
// submissions of a process.
//
// At that time NVIDIA's driver (580) unmaps memory inside vkQueueSubmit, under a lock. The kernel part of the driver
// holds the same lock while it reclaims another process's memory. So a stream that reached this submission while a
// neighbour's worker died stood still for 0.4 s.
#pragma once

#include <cstdint>

#include "config/base/error.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

// Submits almost nothing, this many times to each queue, and waits for it. Each submission takes some microseconds.
// Call it while no other thread submits.
Status wear_in(Device& device, std::uint32_t submissions, std::uint32_t timeout_ms);

}  // namespace bulkhead::gpu
