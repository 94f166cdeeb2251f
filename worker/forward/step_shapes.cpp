#include "worker/forward/step_shapes.hpp"

#include <algorithm>
#include <iterator>

namespace bulkhead::forward {

std::vector<StepShape> step_shapes(std::uint32_t max_columns, std::uint32_t mixed,
                                   std::uint32_t max_outputs, std::uint32_t most) {
  // Decoding wants the narrow ones close to each other. Prompts come in any length, and what a wide
  // shape has too much costs little beside the columns that are there.
  std::vector<std::uint32_t> columns;
  for (const std::uint32_t narrow : {1U, 2U, 4U, 8U, 16U, 32U}) {
    if (narrow < max_columns) columns.push_back(narrow);
  }
  const auto narrow = static_cast<std::ptrdiff_t>(columns.size());
  mixed = std::min(mixed, max_columns);
  for (std::uint64_t wide = 64; wide * 2 < mixed; wide *= 4)
    columns.push_back(static_cast<std::uint32_t>(wide));
  if (mixed > 32) columns.push_back(mixed);
  // How workgroups share a wide step's products depends on its shape, and each missing column costs a little.
  // So there are the widest shape, one of half its columns, one of a quarter, and so on.
  const auto wide = static_cast<std::ptrdiff_t>(columns.size());
  for (std::uint32_t half = max_columns / 2; half >= 64 && half - half / 4 > mixed; half /= 2)
    columns.insert(columns.begin() + wide, half);
  if (columns.empty() || columns.back() < max_columns) columns.push_back(max_columns);
  while (columns.size() > most && std::ssize(columns) > narrow + 1)
    columns.erase(columns.begin() + narrow);
  std::vector<StepShape> shapes;
  for (const std::uint32_t each : columns)
    shapes.push_back({each, std::min(each, max_outputs)});
  return shapes;
}

StepShape shape_for(std::span<const StepShape> shapes, std::uint32_t columns,
                    std::uint32_t outputs) {
  for (const StepShape& shape : shapes) {
    if (columns <= shape.columns && outputs <= shape.outputs) return shape;
  }
  return shapes.back();
}

}  // namespace bulkhead::forward
