#include "worker/forward/mapping.hpp"

#include "worker/forward/memory_need.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

k::Mapping mapping_of(gpu::Device& device, const TransformerOptions& options) {
  if (options.lanes_mapping) return k::lanes_mapping(device.info());
  const bool units = options.engine.matrix_units == config::MatrixUnits::kAuto;
  k::Mapping mapping = units ? k::mapping_for(device) : k::mapping_for(device.info());
  mapping.units_attention = units_attention(options.engine.matrix_attention);
  return mapping;
}

std::string mapping_name(const k::Mapping& mapping) {
  if (!mapping.units) return mapping.rows ? "rows" : "lanes";
  switch (mapping.units_attention) {
    case k::UnitsAttention::kNowhere:
      break;
    case k::UnitsAttention::kWhereFaster:
      return "units-attention";
    case k::UnitsAttention::kEverywhere:
      return "units-attention-everywhere";
  }
  return "units";
}

}  // namespace bulkhead::forward
