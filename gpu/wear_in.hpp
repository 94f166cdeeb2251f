// Makes a driver do its one-time work, which comes after some hundred submissions of a process, before
// a request waits for it.
//
// NVIDIA's driver (580) unmaps memory then, inside vkQueueSubmit, under a lock. Its kernel part holds
// that lock while it takes back another process's memory: a stream that reached this submission while
// a neighbour's worker died stood still for 0.4 s.
#pragma once

#include <cstdint>

#include "config/base/error.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

// Submits almost nothing this many times to each queue and waits for it; each takes some
// microseconds. Call it while no other thread submits.
Status wear_in(Device& device, std::uint32_t submissions, std::uint32_t timeout_ms);

}  // namespace bulkhead::gpu
