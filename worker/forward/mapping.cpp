#include "worker/forward/mapping.hpp"

#include "worker/forward/memory_need.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

k::Mapping mapping_of(gpu::Device& device, const TransformerOptions& options) {
  if (options.lanes_mapping) return k::lanes_mapping(device.info());
  const bool units = options.engine.matrix_units == config::MatrixUnits::kAuto;
  k::Mapping mapping = units ? k::mapping_for(device) : k::mapping_for(device.info());
  mapping.units_attention_from = units_attention_from(options.engine.matrix_attention);
  return mapping;
}

std::string mapping_name(const k::Mapping& mapping) {
  if (!mapping.units) return mapping.rows ? "rows" : "lanes";
  if (mapping.units_attention_from == k::kNoPosition) return "units";
  return "units-attention-from-" + std::to_string(mapping.units_attention_from) + "-lanes";
}

}  // namespace bulkhead::forward
