// What a driver does once in a process's life, behind its first some hundred submissions, is done
// before anybody waits for it.
//
// NVIDIA's (580) unmaps memory then, inside vkQueueSubmit, under a lock that the kernel's part of it
// holds for as long as it takes another process's memory back: a stream that came to that submission
// while a neighbour's worker died stood still for 0.4 s.
#pragma once

#include <cstdint>

#include "config/base/error.hpp"
#include "gpu/device.hpp"

namespace bulkhead::gpu {

// Submits next to nothing so often to each queue, and waits for it: some microseconds each. While
// nobody else submits.
Status wear_in(Device& device, std::uint32_t submissions, std::uint32_t timeout_ms);

}  // namespace bulkhead::gpu
