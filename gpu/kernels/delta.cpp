#include "gpu/kernels/delta.hpp"

#include <algorithm>

#include "gpu/kernels/constants.hpp"
#include "gpu/kernels/delta_inputs.hpp"
#include "gpu/kernels/delta_output.hpp"
#include "gpu/kernels/delta_scan.hpp"

namespace bulkhead::gpu::kernels {
namespace {

constexpr std::uint32_t kMostParts = 8;

DeltaConstants delta_constants(const Mapping& mapping, const DeltaShape& shape,
                               std::uint32_t invocations) {
  DeltaConstants constants;
  constants.invocations = invocations;
  constants.size = shape.size;
  constants.key_heads = shape.key_heads;
  constants.value_heads = shape.value_heads;
  constants.taps = shape.taps;
  constants.parts = std::min(kMostParts, mapping.lanes);
  constants.lanes = mapping.lanes;
  constants.neighbours = shape.neighbours ? 1 : 0;
  constants.form = static_cast<std::uint32_t>(mapping.input_form());
  constants.value_size = shape.value_size;
  constants.rule = static_cast<std::uint32_t>(shape.rule);
  constants.normed = shape.normed();
  return constants;
}

// Returns how many invocations share so many entries; each takes only a few.
std::uint32_t invocations_for(const Mapping& mapping, std::uint32_t entries) {
  std::uint32_t invocations = mapping.lanes;
  while (!mapping.rows && invocations < std::min(entries, 128U))
    invocations *= 2;
  return invocations;
}

}  // namespace

DeltaKernel delta_inputs(const Mapping& mapping, const DeltaShape& shape) {
  const std::uint32_t invocations = invocations_for(mapping, shape.size);
  return {{"delta inputs", spirv::delta_inputs, sizeof(DeltaPush),
           constants_of(delta_constants(mapping, shape, invocations)), 0},
          (shape.channels() + shape.size - 1) / shape.size};
}

DeltaScan delta_scan(const Mapping& mapping, const DeltaShape& shape) {
  constexpr std::uint32_t kSubgroups = 4;
  const DeltaConstants constants = delta_constants(mapping, shape, mapping.lanes * kSubgroups);
  const std::uint32_t values = constants.invocations / constants.parts;
  return {{"delta scan", spirv::delta_scan, sizeof(DeltaPush), constants_of(constants),
           mapping.rows ? 0 : mapping.required_subgroup},
          (shape.value_size + values - 1) / values};
}

DeltaKernel delta_output(const Mapping& mapping, const DeltaShape& shape) {
  const std::uint32_t invocations = invocations_for(mapping, shape.normed());
  return {{"delta output", spirv::delta_output, sizeof(DeltaPush),
           constants_of(delta_constants(mapping, shape, invocations)), 0},
          shape.value_width() / shape.normed()};
}

}  // namespace bulkhead::gpu::kernels
