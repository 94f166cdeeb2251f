// Makes the dispatches of attention for step_program.cpp: first the rotation, which also writes the new keys and
// values, and then attention over pages (gpu/kernels/kernels.hpp).
#pragma once

#include <cstdint>
#include <span>

#include "config/base/error.hpp"
#include "worker/engine/executor.hpp"
#include "worker/forward/step_part.hpp"

namespace bulkhead::forward {

// Where the kernels of attention change (gpu::kernels::attention_ranges()), over all layers. Columns before `first`
// need only the kernels that begin at position 0, and columns from `last` on need only those that have no end.
struct AttentionBorders {
  std::uint32_t first = gpu::kernels::kNoPosition, last = 0;
};
AttentionBorders attention_borders(const StepContext& context, std::uint32_t columns);
// Returns on which side of the borders all of these columns lie. kAny: on both sides, between, or there are no borders.
Positions positions_of(std::span<const engine::Column> columns, const AttentionBorders& borders);

class AttentionSteps : public StepPart {
 public:
  using StepPart::StepPart;

  Status add(const model::Rotate& rotate);
  Status add(const model::RotateLatent& rotate);
  Status add(const model::Attend& attend);

 private:
  Status attend_range(const model::Attend& attend, const gpu::kernels::AttentionShape& shape,
                      const gpu::kernels::AttentionRange& range, gpu::kernels::AttentionPush push);
  Status combine(const model::Attend& attend, const gpu::kernels::AttentionShape& shape);
  // Returns the address of the counters of workgroups. A chain that was given up leaves counters behind, so each
  // chain has counters of its own, which begin at zero.
  std::uint64_t counts() const;
  // Fills in the push constants that both rotating kernels share.
  template <typename Rotation, typename Push>
  void fill_rotation(const Rotation& rotate, Push& push) const;
  // Fills in the push constants that are common to the kernels which write attention's result.
  template <typename Push>
  void fill_output(const model::Attend& attend, const gpu::kernels::AttentionShape& shape,
                   Push& push) const;
  // Returns empty pages while kernels are only listed, because there are none yet.
  KvPages kv(model::KvIndex store) const {
    return store < context_.kv.size() ? context_.kv[store] : KvPages{};
  }
  std::uint64_t pages_of(model::KvIndex store) const { return context_.page_tables(slot_, store); }
  bool in_chain() const { return columns_ <= context_.chain.columns; }
};

}  // namespace bulkhead::forward
