#include "worker/forward/rope_table.hpp"

#include <cmath>

namespace bulkhead::forward {

namespace {

constexpr std::uint32_t kFinePositions = 256;

}  // namespace

RopeTable make_rope_table(const model::Rope& rope, std::uint32_t context) {
  const bool stretched = !rope.long_frequencies.empty() && context > rope.short_context;
  const std::vector<double>& frequencies = stretched ? rope.long_frequencies : rope.frequencies;
  RopeTable table;
  const auto append = [&](std::vector<float>& to, std::uint32_t position, double magnitude) {
    for (const double frequency : frequencies) {
      to.push_back(static_cast<float>(std::cos(position * frequency) * magnitude));
      to.push_back(static_cast<float>(std::sin(position * frequency) * magnitude));
    }
  };
  // Entries of the two tables are multiplied, so only one of the tables contains the magnitude.
  for (std::uint32_t position = 0; position < kFinePositions; ++position)
    append(table.fine, position, rope.magnitude);
  for (std::uint32_t block = 0; block <= context / kFinePositions; ++block)
    append(table.coarse, block * kFinePositions, 1);
  return table;
}

std::uint64_t rope_fine_floats(const model::Rope& rope) {
  return std::uint64_t{kFinePositions} * rope.pairs() * 2;
}
std::uint64_t rope_coarse_floats(const model::Rope& rope, std::uint32_t context) {
  return (std::uint64_t{context} / kFinePositions + 1) * rope.pairs() * 2;
}

}  // namespace bulkhead::forward
