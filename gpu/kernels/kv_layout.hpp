// The formats in which keys and values are cached, and their sizes (kv_layout.glsl says where they lie). Pure
// arithmetic; needs no device.
#pragma once

#include <cstdint>

#include "gpu/kernels/values.hpp"

namespace bulkhead::gpu::kernels {

// Returns the entries of a head, including the zeros after them.
constexpr std::uint32_t kv_padded(std::uint32_t head, KvFormat format) {
  return format == KvFormat::kQ8 ? (head + 31) & ~31U : (head + 7) & ~7U;
}

// Returns the bytes of one position's key (or value) in one KV head.
constexpr std::uint32_t kv_position_bytes(std::uint32_t head, KvFormat format) {
  const std::uint32_t entries = kv_padded(head, format);
  return format == KvFormat::kQ8 ? entries + entries / 32 * 2
                                 : entries * (format == KvFormat::kF32 ? 4 : 2);
}

}  // namespace bulkhead::gpu::kernels
