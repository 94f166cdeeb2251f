// All layers of a narrow step in one dispatch, from C++ (persistent_step.glsl): its operations, which
// lie in device memory, and the kernel that runs through them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/kernels/kernels.hpp"

namespace bulkhead::gpu::kernels {

constexpr std::uint32_t kPersistentColumns = 8;
// What the compiler must know of a product. The kernel has room for so many.
struct PersistentSlot {
  WeightType type = WeightType::kF32;
  bool gated = false;  // lanes: a gate's and an up's row go together
  bool operator==(const PersistentSlot&) const = default;
};
constexpr std::size_t kPersistentSlots = 4;
PersistentSlot persistent_slot(const Mapping& mapping, const MatvecShape& shape);

struct PersistentOperation {
  std::uint32_t kind = 0;  // 0: a product, 1: attention
  std::uint32_t slot = 0;
  std::uint32_t phase = 0;    // phases that must be over
  std::uint32_t arrives = 0;  // the last of its phase
  std::array<std::byte, 112> push{};
};
static_assert(sizeof(PersistentOperation) == 128);
PersistentOperation persistent_product(const Mapping& mapping, const MatvecShape& shape,
                                       const MatvecPush& push, std::uint32_t slot);
PersistentOperation persistent_attention(const AttentionPush& push);

// In device memory; zeros before the first step.
struct PersistentSync {
  std::uint32_t arrived, failed, present, peak;
};
struct PersistentPush {
  std::uint64_t program;
  std::uint64_t sync;
  std::uint64_t parameters;
  std::uint32_t operations;  // 0: only find out how many workgroups run at the same time
  std::uint32_t phases;
  std::uint32_t workgroups;
  std::uint32_t unused = 0;
};
// For steps of up to `columns` columns: 1, 2, 4 or 8.
KernelSpec persistent_step(const Mapping& mapping, const AttentionShape& shape,
                           std::span<const PersistentSlot> slots, std::uint32_t columns);

}  // namespace bulkhead::gpu::kernels
