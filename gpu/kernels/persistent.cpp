#include "gpu/kernels/persistent.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "gpu/kernels/persistent_lanes.hpp"
#include "gpu/kernels/persistent_units.hpp"
#include "gpu/kernels/units.hpp"

namespace bulkhead::gpu::kernels {
namespace {

// persistent_step.glsl: ProductPush.
struct ProductPush {
  MatvecPush matvec;
  std::uint32_t split;
  std::uint32_t segment_stages;
  std::uint32_t epilogue;
  std::uint32_t scaling;
  std::uint32_t out_form;
  std::uint32_t unused;
};
static_assert(sizeof(ProductPush) == sizeof(PersistentOperation::push));

// Far longer than any phase lasts, and far shorter than a host waits.
constexpr std::uint32_t kMostSpins = 2000000;
constexpr std::uint32_t kSlotConstants = 30, kConstantsOfSlot = 4;

}  // namespace

PersistentSlot persistent_slot(const Mapping& mapping, const MatvecShape& shape) {
  if (mapping.units) return {unit_type(shape.type), false};
  return {shape.type, shape.epilogue == Epilogue::kGated};
}

PersistentOperation persistent_product(const Mapping& mapping, const MatvecShape& shape,
                                       const MatvecPush& push, std::uint32_t slot) {
  ProductPush made{};
  made.matvec = push;
  if (mapping.units) {
    const UnitSegments segments = unit_segments(shape);
    made.split = segments.count;
    made.segment_stages = segments.stages;
  } else {
    made.split = lanes_split(mapping, shape);
  }
  made.epilogue = static_cast<std::uint32_t>(shape.epilogue);
  made.scaling = static_cast<std::uint32_t>(shape.scaling);
  made.out_form =
      static_cast<std::uint32_t>(shape.permuted_out ? mapping.input_form() : InputForm::kRows);
  PersistentOperation operation;
  operation.slot = slot;
  std::memcpy(operation.push.data(), &made, sizeof made);
  return operation;
}

PersistentOperation persistent_attention(const AttentionPush& push) {
  PersistentOperation operation;
  operation.kind = 1;
  std::memcpy(operation.push.data(), &push, sizeof push);
  return operation;
}

KernelSpec persistent_step(const Mapping& mapping, const AttentionShape& shape,
                           std::span<const PersistentSlot> slots, std::uint32_t columns) {
  KernelSpec spec;
  spec.name = "layers";
  spec.spirv = mapping.units ? spirv::persistent_units : spirv::persistent_lanes;
  spec.push_bytes = sizeof(PersistentPush);
  spec.required_subgroup_size = mapping.required_subgroup;
  std::vector<std::uint32_t>& constants = spec.constants;
  constants.assign(kSlotConstants + kPersistentSlots * kConstantsOfSlot, 0);
  const auto form = static_cast<std::uint32_t>(mapping.input_form());
  const std::uint32_t attention_constants[] = {mapping.lanes,
                                               shape.head,
                                               shape.heads,
                                               shape.kv_heads,
                                               static_cast<std::uint32_t>(shape.kv),
                                               1,
                                               form,
                                               mapping.attention_split,
                                               0,
                                               mapping.attention_splits};
  std::copy(std::begin(attention_constants), std::end(attention_constants), constants.begin());
  constants[20] = columns;
  constants[21] = mapping.lanes * kTogetherSubgroups;
  constants[22] = kMostSpins;
  constants[23] = form;
  // Matrix units: tiles of eight columns, groups in a step of the loop, tiles of a subgroup.
  constants[24] = 1;
  constants[25] = 4;
  constants[26] = 1;
  for (std::size_t i = 0; i < kPersistentSlots; ++i) {
    if (i >= slots.size()) break;  // nobody's: left out of the code
    const PersistentSlot slot = slots[i];
    const bool is_float = weight_planes(slot.type) >= 4;
    const std::uint32_t rows = mapping.units || slot.gated || (is_float && columns == 1) ? 1 : 2;
    std::uint32_t* const own = constants.data() + kSlotConstants + i * kConstantsOfSlot;
    own[0] = static_cast<std::uint32_t>(slot.type);
    own[1] = rows;
    own[2] = slot.gated ? rows * 2 : rows;
    own[3] = 1;
  }
  return spec;
}

}  // namespace bulkhead::gpu::kernels
