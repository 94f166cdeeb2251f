#include "worker/forward/rope_table.hpp"

#include <cmath>

namespace bulkhead::forward {

RopeTable make_rope_table(const model::ModelConfig& config, std::span<const float> factors,
                          std::uint32_t context) {
  RopeTable table;
  table.pairs = config.rope_dimensions / 2;
  std::vector<double> frequencies(table.pairs);
  for (std::uint32_t i = 0; i < table.pairs; ++i) {
    frequencies[i] =
        std::pow(static_cast<double>(config.rope_base), -2.0 * i / config.rope_dimensions);
    if (i < factors.size()) frequencies[i] /= static_cast<double>(factors[i]);
    if (config.rope_scaling == model::RopeScaling::kLinear)
      frequencies[i] /= config.rope_linear_factor;
  }
  const auto append = [&](std::vector<float>& to, std::uint32_t position) {
    for (const double frequency : frequencies) {
      to.push_back(static_cast<float>(std::cos(position * frequency)));
      to.push_back(static_cast<float>(std::sin(position * frequency)));
    }
  };
  for (std::uint32_t position = 0; position < 256; ++position)
    append(table.fine, position);
  for (std::uint32_t block = 0; block <= context / 256; ++block)
    append(table.coarse, block * 256);
  return table;
}

}  // namespace bulkhead::forward
