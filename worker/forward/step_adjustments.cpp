#include "worker/forward/step_adjustments.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "worker/forward/scratch_plan.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

using engine::LogitEdit;

namespace {

static_assert(sizeof(LogitEdit) == 16, "edit_logits.comp reads a quad");

constexpr std::uint64_t kLeastEdits = 4096;  // for which memory is allocated at once
// The edits of all drafts of a step.
constexpr std::uint64_t kMostAhead = std::uint64_t{engine::kMostDrafts} * engine::kMostDrafts;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Columns that share a list are neighbours.
bool same(std::span<const LogitEdit> a, std::span<const LogitEdit> b) {
  return a.data() == b.data() && a.size() == b.size();
}

}  // namespace

Status StepAdjustments::make() {
  AdjustmentLayout& layout = context_.adjustment_layout;
  layout.masks = adjusted_row_bytes(limits_.max_outputs);
  layout.mask_words = mask_words(limits_.vocabulary);
  layout.stride = aligned(adjustment_bytes(limits_.vocabulary, limits_.max_outputs));
  BULKHEAD_TRY(context_.adjustments,
               context_.device->allocate(context_.slots * layout.stride, gpu::Memory::kUpload,
                                         "masks of tokens"));
  std::memset(context_.adjustments.mapped().data(), 0, context_.adjustments.mapped().size());
  return {};
}

// A list may be the list of a sequence's own column and of its drafts. Each of these columns keeps logits of its own.
StepAdjustments::EditLayout StepAdjustments::layout_for(std::uint64_t edits) const {
  EditLayout layout;
  const std::uint64_t list = std::min<std::uint64_t>(edits, limits_.vocabulary);
  const std::uint64_t kept = edits + engine::kMostDrafts * list + kMostAhead;
  layout.before = aligned((edits + kMostAhead) * sizeof(LogitEdit));
  layout.stride = layout.before + aligned(kept * sizeof(float));
  return layout;
}

Status StepAdjustments::reserve(std::uint64_t edits) {
  if (edits <= edits_reserved_) return {};
  edits = std::bit_ceil(std::max(edits, kLeastEdits));
  const EditLayout layout = layout_for(edits);
  BULKHEAD_TRY(gpu::Buffer block,
               context_.device->allocate(context_.slots * layout.stride, gpu::Memory::kUpload,
                                         "edits of logits"));
  edits_.push_back(std::move(block));
  edits_reserved_ = edits;
  edit_layout_ = layout;
  return {};
}

Status StepAdjustments::write_edits(std::uint32_t slot, const engine::LogitEdits& edits, bool tells,
                                    k::AdjustedRow& row, Taken& taken) {
  const gpu::Buffer& block = edits_.back();
  const std::uint64_t base = slot * edit_layout_.stride;
  const auto put = [&](std::span<const LogitEdit> list) {
    const std::uint64_t at = base + taken.edits * sizeof(LogitEdit);
    std::memcpy(block.mapped().data() + at, list.data(), list.size_bytes());
    taken.edits += list.size();
    return block.address() + at;
  };
  if (!same(taken.list, edits.list)) {
    taken.list_at = put(edits.list);
    taken.list = edits.list;
  }
  row.list = taken.list_at;
  row.edits = static_cast<k::uint>(edits.list.size());
  row.ahead = put(edits.ahead);
  row.ahead_edits = static_cast<k::uint>(edits.ahead.size());
  row.repetition = edits.repetition;
  row.inverse = edits.inverse();
  if (!tells) return {};
  const std::uint64_t before = base + edit_layout_.before + taken.before * sizeof(float);
  taken.before += edits.list.size() + edits.ahead.size();
  if (before + (edits.list.size() + edits.ahead.size()) * sizeof(float) >
      base + edit_layout_.stride)
    return Error(ErrorCode::kInternal, "more outputs share a list of edits than drafts can");
  row.before = block.address() + before;
  return {};
}

Status StepAdjustments::write(std::uint32_t slot, std::span<const Output> outputs,
                              std::span<const engine::Adjustment> adjustments) {
  std::uint64_t edits = 0, ahead = 0;
  std::span<const LogitEdit> last;
  for (const engine::Adjustment& each : adjustments) {
    if (!same(last, each.edits.list)) edits += each.edits.list.size();
    last = each.edits.list;
    ahead += each.edits.ahead.size();
  }
  if (ahead > kMostAhead) return Error(ErrorCode::kInternal, "more edits than drafts can have");
  BULKHEAD_RETURN_IF_ERROR(reserve(edits));

  const AdjustmentLayout& layout = context_.adjustment_layout;
  const std::uint64_t mask_bytes = std::uint64_t{layout.mask_words} * 4;
  const auto rows = static_cast<std::uint32_t>(outputs.size());
  std::memcpy(base_of(slot), &rows, sizeof rows);
  Taken taken;
  for (std::size_t i = 0; i < adjustments.size(); ++i) {
    const engine::Adjustment& each = adjustments[i];
    if (!each.edits.empty() && !outputs[i].edits)
      return Error(ErrorCode::kInternal, "edits for an output that was to have none");
    k::AdjustedRow row{};
    row.output_index = outputs[i].row;
    if (!each.mask.empty()) {
      std::byte* const to = base_of(slot) + layout.masks + i * mask_bytes;
      const std::uint64_t bytes = std::min<std::uint64_t>(each.mask.size_bytes(), mask_bytes);
      std::memcpy(to, each.mask.data(), bytes);
      std::memset(to + bytes, 0, mask_bytes - bytes);
      row.masked = 1;
    }
    if (!each.edits.empty())
      BULKHEAD_RETURN_IF_ERROR(
          write_edits(slot, each.edits, outputs[i].tells_logprobs, row, taken));
    put_row(slot, i, row);
  }
  return {};
}

std::byte* StepAdjustments::base_of(std::uint32_t slot) const {
  return context_.adjustments.mapped().data() + slot * context_.adjustment_layout.stride;
}

void StepAdjustments::put_row(std::uint32_t slot, std::size_t index, const k::AdjustedRow& row) {
  std::memcpy(base_of(slot) + k::kAdjustedRowsOffset + index * sizeof row, &row, sizeof row);
}

}  // namespace bulkhead::forward
