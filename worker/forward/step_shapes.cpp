#include "worker/forward/step_shapes.hpp"

#include <algorithm>
#include <iterator>

namespace bulkhead::forward {

std::vector<StepShape> step_shapes(std::uint32_t max_columns, std::uint32_t mixed,
                                   std::uint32_t max_outputs, std::uint32_t most) {
  // For sequences that generate, each of which has one column, narrow shapes differ little in width.
  std::vector<std::uint32_t> columns;
  for (const std::uint32_t narrow : {1U, 2U, 4U, 8U, 16U, 32U}) {
    if (narrow < max_columns) columns.push_back(narrow);
  }
  const std::ptrdiff_t narrow = std::ssize(columns);
  // These shapes are for many sequences, up to the width of a step that has prompts as well.
  mixed = std::min(mixed, max_columns);
  for (std::uint32_t many = 64; many < mixed - mixed / 4; many *= 2)
    columns.push_back(many);
  if (mixed > 32) columns.push_back(mixed);
  // These shapes are for prompts alone. A wide step's shape decides how workgroups share its products, and each
  // unused column costs a little. So there are the widest shape, one of half its columns, one of a quarter, and so
  // on.
  const std::ptrdiff_t wide = std::ssize(columns);
  for (std::uint32_t half = max_columns / 2; half >= 64 && half - half / 4 > mixed; half /= 2)
    columns.insert(columns.begin() + wide, half);
  if (columns.empty() || columns.back() < max_columns) columns.push_back(max_columns);
  while (columns.size() > most && std::ssize(columns) > narrow + 1)
    columns.erase(columns.end() - 2);
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
