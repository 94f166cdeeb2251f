// Gated delta nets (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464) and Mamba-2 (Dao and Gu 2024, arXiv
// 2405.21060) from C++. Each value head of a sequence has a matrix of keys times values, which every position changes
// and reads. Each channel of q, k and v (Mamba-2's C, B and x) keeps its last inputs for a convolution. The matrices
// and the inputs together are a layer's part of a state slot.
//
//   delta_inputs   convolves and applies SiLU; scales a delta net's q and k to length 1
//   delta_scan     goes through each sequence's columns in order; changes the state and reads it
//   delta_output   normalises, and multiplies by SiLU of the gates
//
// All three take DeltaPush. The results are the same to the last bit however many positions of a sequence a step has.
#pragma once

#include <cstdint>

#include "gpu/kernels/kernels.hpp"

namespace bulkhead::gpu::kernels {

constexpr std::uint32_t kMostDeltaSize = 512;

struct DeltaShape {
  std::uint32_t size =
      0;  // entries of a head of q or k; a multiple of four, at most kMostDeltaSize
  std::uint32_t key_heads = 0;
  std::uint32_t value_heads = 0;  // a multiple of key_heads
  std::uint32_t taps = 0;         // taps of the convolution; at least 2
  // the value heads of a key head are neighbours; otherwise every n-th value head belongs to it
  bool neighbours = false;
  std::uint32_t value_size =
      0;  // entries of a value head; a multiple of four; a delta net's are `size`
  StateRule rule = StateRule::kDelta;
  bool norms = true;  // the result is normed; only Mamba-2's may be left as it is

  std::uint32_t channels() const { return 2 * key_heads * size + value_width(); }
  std::uint32_t value_width() const { return value_heads * value_size; }
  // Returns the entries of the result that are normed together: a head, or the heads of a key head.
  std::uint32_t normed() const {
    return rule != StateRule::kSum ? value_size : value_width() / key_heads;
  }
  // Returns the number of entries of a column of DeltaPush::mixed.
  std::uint32_t mixed_width() const {
    const std::uint32_t decays = rule == StateRule::kChannels ? size : 1;
    return channels() + value_width() + (decays + (rule != StateRule::kSum ? 1 : 0)) * value_heads;
  }
};

// A run: the columns of one sequence in a step. Runs are part of the step's parameters, whose word kRunCountWord says
// how many runs there are. Those of kLongRun columns or more precede the others.
struct DeltaRun {
  std::uint32_t first, columns;  // columns of the step
  // state slots: read before the first column (ignored at position 0), written after the last column that is no draft
  std::uint32_t from, to;
  std::uint32_t saved_after;  // after this many columns the state is also written to the slot `saved`; 0: never
  std::uint32_t saved;
  // How many of the columns are drafts: the last ones. After each of them the state is written to the column's slot.
  std::uint32_t drafts;
  std::uint32_t unused;
};
static_assert(sizeof(DeltaRun) == 32);
// What a step's parameters say about a column: its run, and the slot of a draft.
struct DeltaColumn {
  std::uint32_t run, slot;
};
constexpr std::uint32_t kRunCountWord = 2;

struct DeltaPush {
#include "gpu/kernels/fields/delta_push.glsl"
};
static_assert(sizeof(DeltaPush) == 104);

// Workgroups: (column, y).
struct DeltaKernel {
  KernelSpec spec;
  std::uint32_t y = 1;
};
DeltaKernel delta_inputs(const Mapping& mapping, const DeltaShape& shape);
// The scan of a step with this many columns. If `few` is not 0, the scan has two dispatches that may run in any order.
// Long runs have kLongRun columns or more. If a step has at most `few` long runs, `few_long` computes them, with
// workgroups (few, value head, z). `others` computes all other runs, with workgroups (run, value head, z).
struct DeltaScans {
  KernelSpec few_long, others;
  std::uint32_t few = 0, z = 1;
};
DeltaScans delta_scans(const Mapping& mapping, const DeltaShape& shape, std::uint32_t columns);
// Workgroups: (column, y).
DeltaKernel delta_output(const Mapping& mapping, const DeltaShape& shape);

}  // namespace bulkhead::gpu::kernels
