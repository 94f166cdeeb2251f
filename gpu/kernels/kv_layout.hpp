// The formats in which keys and values are cached, and their sizes (kv_layout.glsl says where they lie). Pure
// arithmetic; needs no device.
#pragma once

#include <cstdint>

#include "gpu/kernels/values.hpp"

namespace bulkhead::gpu::kernels {

// Returns the entries of a head, including the zeros after them.
constexpr std::uint32_t kv_padded(std::uint32_t head, KvFormat format) {
  switch (format) {
    case KvFormat::kF16:
    case KvFormat::kF32:
      return (head + 7) & ~7U;
    case KvFormat::kQ8:
      return (head + 31) & ~31U;
  }
  return 0;
}

// Returns the bytes of one position's key (or value) in one KV head.
constexpr std::uint32_t kv_position_bytes(std::uint32_t head, KvFormat format) {
  const std::uint32_t entries = kv_padded(head, format);
  switch (format) {
    case KvFormat::kF16:
      return entries * 2;
    case KvFormat::kF32:
      return entries * 4;
    case KvFormat::kQ8:
      return entries + entries / 32 * 2;
  }
  return 0;
}

}  // namespace bulkhead::gpu::kernels
