// Data of attention by matrix units for tests, and its results in float64.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gpu/kernels/attention_constants.hpp"
#include "gpu/kernels/kernels.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

struct AttentionCase {
  std::uint32_t head, heads, kv_heads;
  std::uint32_t split, splits;  // least positions in a split, and most splits
  // as in AttentionShape
  std::uint32_t window = 0;
  float soft_cap = 0;
  bool sinks = false;
  k::KvFormat kv = k::KvFormat::kF16;

  std::string name() const;
};

// Columns of one sequence: `count` of them from position `first` on.
struct Stretch {
  std::uint32_t first, count;
};

// The data of attention: keys and values of some sequences in scattered pages, and queries of their columns.
struct AttentionScene {
  k::Mapping mapping;
  k::AttentionShape shape;
  std::vector<k::ColumnEntry> columns;
  std::vector<std::uint32_t> pages;        // each sequence's, one after another
  std::vector<std::uint8_t> keys, values;  // as they lie
  std::vector<float> queries;              // [column][head][head_padded]
  std::vector<float> sinks;                // each head's
  std::vector<std::vector<double>> exact_keys,
      exact_values;  // [page * kv_heads + kv head]: [position][entry]
  std::uint32_t stride = 0;

  std::uint32_t context() const;
  // Returns the first position that a column at this position sees.
  std::uint32_t first_seen(std::uint32_t position) const {
    return shape.window == 0 || position < shape.window ? 0 : position + 1 - shape.window;
  }
  std::uint32_t columns_padded() const {
    return (static_cast<std::uint32_t>(columns.size()) + 7) / 8 * 8;
  }
  // Returns whether the column has a neighbour of its sequence in a step that has the columns [first, end).
  bool has_neighbour(std::uint32_t column, std::uint32_t first, std::uint32_t end) const;
  // Returns the place of a half in the results.
  std::size_t at(std::uint32_t column, std::uint32_t i) const {
    return (std::size_t{column / 8} * (stride / 32) + i / 32) * 256 + column % 8 * 32 + i % 32;
  }
};

AttentionScene make_scene(const AttentionCase& each, const std::vector<Stretch>& runs,
                          std::mt19937& random);

// Returns the largest difference from float64, over the first and the last head of some columns. Expects that results
// of the first position are rounded once.
double largest_error(const AttentionScene& scene, const std::vector<std::uint16_t>& got);

}  // namespace bulkhead::forward
