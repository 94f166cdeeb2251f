#include "worker/forward/step_slots.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "gpu/kernels/delta.hpp"
#include "worker/engine/philox.hpp"
#include "worker/forward/scratch_plan.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

constexpr std::uint64_t kLogitsRows = kHostLogitsRows;

// Returns a token's log-probability as the sampler defines it.
float logprob_of(const k::LogprobRow& row, float logit) {
  const double log_sum = std::log(static_cast<double>(row.sum) * 0x1p-40) + row.best;
  return static_cast<float>(logit - log_sum);
}

// Rounds as the CPU sampler does: 1 / temperature, and the logarithm of min-p.
k::SampleChoice device_choice(const engine::Choice& choice, std::uint32_t position,
                              std::uint32_t vocabulary) {
  k::SampleChoice made{};
  const bool cut = choice.top_p < 1 || choice.min_p > 0;
  made.mode = cut ? 2 : 1;
  made.top_k = choice.top_k < vocabulary ? choice.top_k : 0;
  made.scale = std::min(1.0F / choice.temperature, FLT_MAX);
  made.least = choice.min_p > 0 ? std::log(choice.min_p) : -FLT_MAX;
  made.top_p = choice.top_p < 1 ? static_cast<std::uint32_t>(std::min(
                                      static_cast<double>(choice.top_p) * 0x1p32, 0x1p32 - 2))
                                : 0xFFFFFFFFU;
  const double u = engine::uniform_draw(choice.seed, std::uint32_t{position + 1 - choice.first});
  const auto bits = static_cast<std::uint64_t>(u * 0x1p53);
  made.draw = static_cast<std::uint32_t>(bits >> 21);
  made.draw_low = static_cast<std::uint32_t>(bits & ((1U << 21) - 1));
  return made;
}

// Notes that the output is adjusted. The upper bits of its choice are the number of its row of adjustments.
void note_adjusted(StepSlot& slot, const engine::Column& column, std::uint32_t row,
                   k::SampleChoice& choice) {
  slot.adjusted.push_back({row, column.logprobs >= 0, column.edited});
  slot.edits = slot.edits || column.edited;
  choice.mode |= static_cast<std::uint32_t>(slot.adjusted.size()) << k::kAdjustedShift;
}

void take_logprobs(StepSlot& slot, std::size_t index) {
  engine::ColumnOutput& output = slot.outputs[index];
  k::LogprobRow row;
  std::memcpy(&row, slot.logprobs.mapped + index * sizeof row, sizeof row);
  output.logprob = logprob_of(row, row.chosen);
  const std::size_t count = std::min(row.count, k::kMostLogprobs);
  engine::RankedToken* const top = slot.tops.data() + index * k::kMostLogprobs;
  for (std::size_t i = 0; i < count; ++i)
    top[i] = {row.tokens[i].id, logprob_of(row, row.tokens[i].logit)};
  output.top = {top, count};
}

}  // namespace

Status StepSlots::make() {
  gpu::Device& device = *context_.device;
  const auto aligned = [](std::uint64_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::uint64_t pages_per_sequence =
      (std::uint64_t{limits_.context} + k::kPageTokens - 1) / k::kPageTokens;
  ParameterLayout& layout = context_.parameter_layout;
  layout.outputs = k::kHeaderBytes + std::uint64_t{limits_.max_columns} * sizeof(k::ColumnEntry);
  layout.choices = (layout.outputs + limits_.max_outputs * 4 + 15) / 16 * 16;
  layout.pages = layout.choices + limits_.max_outputs * sizeof(k::SampleChoice);
  if (limits_.states > 0) {
    layout.runs = layout.pages;
    layout.column_runs = layout.runs + limits_.max_sequences * sizeof(k::DeltaRun);
    layout.pages = layout.column_runs + std::uint64_t{limits_.max_columns} * sizeof(k::DeltaColumn);
  }
  if (limits_.both_ways) {
    const std::uint64_t columns =
        layout.outputs;  // the bytes before it are the counts and the columns
    layout.sights = aligned(layout.pages);
    layout.pages = layout.sights + columns;
  }
  const std::uint64_t tables = std::uint64_t{limits_.max_sequences} * pages_per_sequence * 4;
  layout.bytes = layout.window_pages = layout.pages + tables;
  if (limits_.window > 0) layout.bytes += tables;
  layout.stride = aligned(layout.bytes);
  context_.result_rows =
      static_cast<std::uint32_t>(aligned(std::uint64_t{limits_.max_outputs} * 8 + 8) / 8);
  const std::uint64_t result_bytes = std::uint64_t{context_.result_rows} * 8;
  const std::uint64_t slots = context_.slots;
  using gpu::Memory;
  BULKHEAD_TRY(context_.parameters,
               device.allocate(slots * layout.stride, Memory::kDeviceLocal, "step parameters"));
  BULKHEAD_TRY(context_.results,
               device.allocate(slots * result_bytes, Memory::kDeviceLocal, "step results"));
  BULKHEAD_TRY(host_parameters_, device.allocate(slots * layout.stride, Memory::kUpload,
                                                 "step parameters of the host"));
  BULKHEAD_TRY(host_results_, device.allocate(slots * result_bytes, Memory::kReadback,
                                              "step results of the host"));
  BULKHEAD_TRY(context_.logprobs,
               device.allocate(slots * context_.result_rows * sizeof(k::LogprobRow),
                               Memory::kDeviceLocal, "log-probabilities"));
  BULKHEAD_TRY(host_logprobs_, device.allocate(slots * context_.result_rows * sizeof(k::LogprobRow),
                                               Memory::kReadback, "log-probabilities of the host"));
  const std::uint64_t hidden_bytes =
      std::max<std::uint64_t>(aligned(limits_.max_outputs * hidden_row_bytes()), 256);
  BULKHEAD_TRY(host_hidden_, device.allocate(slots * hidden_bytes, Memory::kReadback,
                                             "hidden states of the host"));
  if (limits_.adjusts) BULKHEAD_RETURN_IF_ERROR(adjustments_.make());
  slots_.resize(slots);
  for (std::size_t i = 0; i < slots; ++i) {
    slots_[i].parameters = gpu::slice(host_parameters_, i * layout.stride, layout.stride);
    slots_[i].results = gpu::slice(host_results_, i * result_bytes, result_bytes);
    BULKHEAD_RETURN_IF_ERROR(make_room_for_logits(slots_[i], std::min(limits_.max_outputs, 1U)));
    slots_[i].hidden = gpu::slice(host_hidden_, i * hidden_bytes, hidden_bytes);
    const std::uint64_t logprob_bytes = context_.result_rows * sizeof(k::LogprobRow);
    slots_[i].logprobs = gpu::slice(host_logprobs_, i * logprob_bytes, logprob_bytes);
    slots_[i].outputs.reserve(limits_.max_outputs);
    slots_[i].wanted.reserve(limits_.max_outputs);
    slots_[i].adjusted.reserve(limits_.max_outputs);
    slots_[i].tops.resize(std::size_t{limits_.max_outputs} * k::kMostLogprobs);
    std::memset(slots_[i].parameters.mapped, 0, layout.stride);
  }
  page_starts_.reserve(limits_.max_sequences);
  last_tokens_.reserve(limits_.max_outputs);
  return make_room_for_stream();
}

Status StepSlots::make_room_for_stream() {
  gpu::Device& device = *context_.device;
  const std::uint64_t slots = slots_.size();
  const std::uint64_t columns = limits_.max_columns;
  if (context_.graph.start != model::StreamStart::kEmbedding) {
    context_.stream_stride = columns * hidden_row_bytes();
    const std::uint64_t bytes = slots * context_.stream_stride;
    BULKHEAD_TRY(context_.stream_rows,
                 device.allocate(bytes, gpu::Memory::kDeviceLocal, "rows of the stream"));
    BULKHEAD_TRY(host_brought_,
                 device.allocate(bytes, gpu::Memory::kUpload, "rows of the stream of the host"));
    // Steps without a request (the warm-up's) have no such values.
    std::memset(host_brought_.mapped().data(), 0, bytes);
    for (std::uint64_t i = 0; i < slots; ++i)
      slots_[i].brought =
          gpu::slice(host_brought_, i * context_.stream_stride, context_.stream_stride);
  }
  if (!context_.graph.makes_logits) {
    const std::uint64_t bytes = columns * stride_of(context_, model::kStream) * sizeof(float);
    BULKHEAD_TRY(host_computed_, device.allocate(slots * bytes, gpu::Memory::kReadback,
                                                 "computed rows of the stream"));
    for (std::uint64_t i = 0; i < slots; ++i)
      slots_[i].computed = gpu::slice(host_computed_, i * bytes, bytes);
  }
  return {};
}

// Rounds up to a power of two, so that the same few copies are used again and again.
std::uint64_t StepSlots::rows_copied(const StepSlot& slot) const {
  return std::min(std::bit_ceil(slot.columns), limits_.max_columns);
}

// Blocks are kept until the end, because recorded copies write to them.
Status StepSlots::make_room_for_logits(StepSlot& slot, std::uint64_t rows) {
  while (slot.logits.size() < host_logits_blocks(rows)) {
    BULKHEAD_TRY(gpu::Buffer block,
                 context_.device->allocate(kLogitsRows * logits_row_bytes(), gpu::Memory::kReadback,
                                           "logits of the host"));
    slot.logits.push_back(gpu::slice(block));
    host_logits_.push_back(std::move(block));
  }
  return {};
}

Status StepSlots::reserve_logits(std::uint32_t outputs) {
  for (StepSlot& slot : slots_)
    BULKHEAD_RETURN_IF_ERROR(make_room_for_logits(slot, std::min(outputs, limits_.max_outputs)));
  return {};
}

Status StepSlots::write_adjustments(std::uint32_t index,
                                    std::span<const engine::Adjustment> adjustments) {
  StepSlot& slot = slots_[index];
  BULKHEAD_RETURN_IF_ERROR(adjustments_.write(index, slot.adjusted, adjustments));
  slot.waits = false;
  return {};
}

void StepSlots::submitted() {
  chosen_rows_ = static_cast<std::uint32_t>(slots_[next_].outputs.size());
  next_ = after(next_, 1);
  ++in_flight_;
}

void StepSlots::waited() {
  last_tokens_.clear();
  for (const engine::ColumnOutput& output : slots_[oldest()].outputs)
    last_tokens_.push_back(output.best);
  --in_flight_;
}

Status StepSlots::write_parameters(const engine::Step& step) {
  StepSlot& slot = slots_[next_];
  const auto by_host =
      std::ranges::count(step.columns, engine::Output::kLogits, &engine::Column::output);
  BULKHEAD_RETURN_IF_ERROR(make_room_for_logits(slot, static_cast<std::uint64_t>(by_host)));
  std::uint64_t logits_rows = 0;
  const ParameterLayout& layout = context_.parameter_layout;
  std::byte* const base = slot.parameters.mapped;
  const auto put = [base](std::uint64_t at, std::uint32_t value) {
    std::memcpy(base + at, &value, sizeof value);
  };
  slot.columns = static_cast<std::uint32_t>(step.columns.size());
  put(k::kColumnCountWord * 4, slot.columns);

  page_starts_.clear();
  std::uint32_t pages = 0;
  for (const auto& sequence : step.sequences) {
    page_starts_.push_back(pages);
    context_.write_table(sequence, base + layout.pages + std::uint64_t{pages} * 4);
    pages += static_cast<std::uint32_t>(sequence.size());
  }
  const std::uint32_t rows_before = before(next_, 1) * context_.result_rows;
  slot.outputs.clear();
  slot.samples = slot.cuts = slot.tells_logprobs = slot.tells_hidden = false;
  slot.wanted.clear();
  slot.adjusted.clear();
  slot.edits = false;
  for (std::uint32_t i = 0; i < step.columns.size(); ++i) {
    const engine::Column& column = step.columns[i];
    const bool told = column.chosen_by == engine::kByHost;
    const k::ColumnEntry entry{column.token, column.position, page_starts_[column.sequence],
                               told ? 0 : 1 + rows_before + column.chosen_by};
    std::memcpy(base + k::kHeaderBytes + i * sizeof entry, &entry, sizeof entry);
    if (column.output == engine::Output::kNone) continue;
    const auto row = static_cast<std::uint32_t>(slot.outputs.size());
    put(layout.outputs + std::uint64_t{row} * 4, i);
    engine::ColumnOutput& output = slot.outputs.emplace_back();
    output.column = i;
    k::SampleChoice choice{};
    if (column.output == engine::Output::kSampled) {
      choice = device_choice(*column.choice, column.position, limits_.vocabulary);
      slot.samples = true;
      slot.cuts = slot.cuts || k::cuts(choice);
    }
    slot.wanted.push_back(column.logprobs);
    if (column.adjusted) note_adjusted(slot, column, row, choice);
    if (column.logprobs >= 0) {
      choice.logprobs = static_cast<std::uint32_t>(column.logprobs) + 1;
      slot.tells_logprobs = true;
    }
    std::memcpy(base + layout.choices + row * sizeof choice, &choice, sizeof choice);
    if (column.output == engine::Output::kHidden || column.tells_hidden) {
      slot.tells_hidden = true;
      const auto* const state = slot.hidden.mapped + row * hidden_row_bytes();
      output.hidden = {reinterpret_cast<const float*>(state), limits_.embedding};
    }
    if (column.output != engine::Output::kLogits) continue;
    const std::byte* const block = slot.logits[logits_rows / kLogitsRows].mapped;
    const std::byte* const logits = block + logits_rows++ % kLogitsRows * logits_row_bytes();
    output.logits = {reinterpret_cast<const float*>(logits), limits_.vocabulary};
  }
  slot.waits = !slot.adjusted.empty();
  put(k::kOutputCountWord * 4, static_cast<std::uint32_t>(slot.outputs.size()));
  if (limits_.states > 0) write_runs(step, base);
  if (limits_.both_ways) write_sights(step, base);
  // Rounds up to a power of two, so that the same few copies are used again and again.
  const std::uint64_t bytes = layout.pages + std::uint64_t{pages} * 4;
  slot.parameter_bytes = std::min(std::bit_ceil(bytes), layout.window_pages);
  slot.window_bytes = 0;
  if (limits_.window == 0) return {};
  const bool changes = write_windows(step, base);
  const std::uint64_t tables =
      std::min(std::bit_ceil(std::uint64_t{pages} * 4), layout.bytes - layout.window_pages);
  if (!changes && tables <= slot.window_bytes_there) return {};
  slot.window_bytes = tables;
  slot.window_bytes_there = std::max(slot.window_bytes_there, tables);
  return {};
}

// Steps without a request (the warm-up's) name no window pages; they use the hidden page, whose number follows the
// others. Returns whether this step changed the slot's tables. Most steps change nothing.
bool StepSlots::write_windows(const engine::Step& step, std::byte* base) const {
  bool changes = false;
  const auto put = [&](std::size_t sequence, std::size_t index, std::uint32_t window_page) {
    const std::uint32_t page = context_.number_of_window(window_page);
    const std::uint64_t place = page_starts_[sequence] + index;
    std::byte* const at = base + context_.parameter_layout.window_pages + place * 4;
    changes = changes || std::memcmp(at, &page, sizeof page) != 0;
    std::memcpy(at, &page, sizeof page);
  };
  for (std::size_t s = 0; s < step.sequences.size(); ++s) {
    if (s >= step.windows.size()) {
      for (std::size_t i = 0; i < step.sequences[s].size(); ++i)
        put(s, i, limits_.window_pages);
      continue;
    }
    const engine::WindowPages& window = step.windows[s];
    for (std::size_t i = 0; i < window.pages.size(); ++i)
      put(s, window.first + i, window.pages[i] - limits_.total_pages);
  }
  return changes;
}

std::array<Upload, 3> StepSlots::uploads(std::uint32_t index) const {
  const StepSlot& slot = slots_[index];
  const ParameterLayout& layout = context_.parameter_layout;
  Upload rows{slot.brought, {}};
  if (slot.brought.bytes > 0) {
    rows.from.bytes = rows_copied(slot) * hidden_row_bytes();
    rows.to = gpu::slice(context_.stream_rows, index * context_.stream_stride, rows.from.bytes);
  }
  const auto part = [&](std::uint64_t offset, std::uint64_t bytes) {
    Upload made{slot.parameters,
                gpu::slice(context_.parameters, index * layout.stride + offset, bytes)};
    made.from.offset += offset;
    made.from.address += offset;
    made.from.mapped += offset;
    made.from.bytes = bytes;
    return made;
  };
  return {part(0, slot.parameter_bytes), part(layout.window_pages, slot.window_bytes), rows};
}

// Neighbouring columns of a sequence form a run. Steps without a request (the warm-up's) name no states; they use the
// hidden slot, whose number follows the others.
void StepSlots::write_runs(const engine::Step& step, std::byte* base) const {
  const ParameterLayout& layout = context_.parameter_layout;
  const auto count = static_cast<std::uint32_t>(step.columns.size());
  const auto end_of_run = [&](std::uint32_t first) {
    std::uint32_t end = first + 1;
    while (end < count && step.columns[end].sequence == step.columns[first].sequence)
      ++end;
    return end;
  };
  std::uint32_t long_runs = 0, runs = 0;
  for (std::uint32_t first = 0, end = 0; first < count; first = end, ++runs) {
    end = end_of_run(first);
    if (end - first >= k::kLongRun) ++long_runs;
  }
  std::uint32_t next_long = 0, next_other = long_runs;
  for (std::uint32_t first = 0, end = 0; first < count; first = end) {
    end = end_of_run(first);
    const std::uint32_t index = end - first >= k::kLongRun ? next_long++ : next_other++;
    const std::uint32_t sequence = step.columns[first].sequence;
    const engine::StateUse use = sequence < step.states.size()
                                     ? step.states[sequence]
                                     : engine::StateUse{limits_.states, limits_.states};
    std::uint32_t drafts = 0;
    for (std::uint32_t i = first; i < end; ++i) {
      const k::DeltaColumn column{index, step.columns[i].state_slot};
      if (column.slot != engine::kNoState) ++drafts;
      std::memcpy(base + layout.column_runs + i * sizeof column, &column, sizeof column);
    }
    const k::DeltaRun run{first,           end - first, use.from, use.to,
                          use.saved_after, use.saved,   drafts,   0};
    std::memcpy(base + layout.runs + index * sizeof run, &run, sizeof run);
  }
  std::memcpy(base + k::kRunCountWord * 4, &runs, 4);
}

// Takes the columns from the parameters, where write_parameters() has written them.
void StepSlots::write_sights(const engine::Step& step, std::byte* base) {
  last_positions_.assign(step.sequences.size(), 0);
  for (const engine::Column& column : step.columns)
    last_positions_[column.sequence] = column.position;  // a sequence's positions rise
  std::byte* const sights = base + context_.parameter_layout.sights;
  const std::uint64_t bytes = k::kHeaderBytes + step.columns.size() * sizeof(k::ColumnEntry);
  std::memcpy(sights, base, bytes);
  for (std::size_t i = 0; i < step.columns.size(); ++i) {
    const std::uint32_t last = last_positions_[step.columns[i].sequence];
    std::byte* const entry = sights + k::kHeaderBytes + i * sizeof(k::ColumnEntry);
    const std::uint32_t own = step.columns[i].position;
    std::memcpy(entry + offsetof(k::ColumnEntry, token), &own, sizeof own);
    std::memcpy(entry + offsetof(k::ColumnEntry, position), &last, sizeof last);
  }
}

Status StepSlots::start_downloads(std::uint32_t index, const Activations& activations,
                                  gpu::BlitQueue& blit, const gpu::CommandRing& ring) {
  StepSlot& slot = slots_[index];
  slot.downloaded.reset();
  const gpu::CommandRing::After computed{ring.timeline(), slot.ticket};
  const auto part = [](gpu::BufferSlice slice, std::uint64_t offset, std::uint64_t bytes) {
    slice.offset += offset;
    slice.address += offset;
    if (slice.mapped != nullptr) slice.mapped += offset;
    slice.bytes = bytes;
    return slice;
  };
  if (slot.computed.bytes > 0) {
    const std::uint64_t bytes =
        rows_copied(slot) * stride_of(context_, model::kStream) * sizeof(float);
    BULKHEAD_TRY(slot.downloaded,
                 blit.download_to(part(slot.computed, 0, bytes),
                                  part(activations.slice(model::kStream), 0, bytes), computed));
  }
  if (slot.outputs.empty() && !slot.may_give_up) return {};
  // Copies all rows each time, so that it is always the same copy.
  const std::uint64_t result_bytes = std::uint64_t{context_.result_rows} * 8;
  BULKHEAD_TRY(
      slot.downloaded,
      blit.download_to(slot.results,
                       gpu::slice(context_.results, index * result_bytes, result_bytes), computed));
  if (slot.tells_logprobs) {
    const std::uint64_t bytes = context_.result_rows * sizeof(k::LogprobRow);
    BULKHEAD_TRY(slot.downloaded,
                 blit.download_to(slot.logprobs,
                                  gpu::slice(context_.logprobs, index * bytes, bytes), computed));
  }
  if (slot.tells_hidden) {
    // A power of two, so that few copies are recorded.
    const std::uint64_t rows =
        std::min<std::uint64_t>(std::bit_ceil(slot.outputs.size()), limits_.max_outputs);
    const std::uint64_t bytes = rows * hidden_row_bytes();
    const std::uint64_t first = std::uint64_t{index} * activations.logits_rows * hidden_row_bytes();
    BULKHEAD_TRY(
        slot.downloaded,
        blit.download_to(part(slot.hidden, 0, bytes),
                         part(activations.slice(context_.plan, Scratch::kHidden), first, bytes),
                         computed));
  }
  // One copy takes neighbouring rows of logits if they go to the same block.
  const std::uint64_t row_bytes = logits_row_bytes();
  const std::uint64_t first_row = std::uint64_t{index} * activations.logits_rows;
  std::uint64_t to = 0;  // rows copied so far
  for (std::uint64_t row = 0, rows = 0; row < slot.outputs.size();
       row += std::max(rows, std::uint64_t{1})) {
    const std::uint64_t room = kLogitsRows - to % kLogitsRows;
    for (rows = 0; rows < room && row + rows < slot.outputs.size() &&
                   !slot.outputs[row + rows].logits.empty();)
      ++rows;
    if (rows == 0) continue;
    const gpu::BufferSlice& block = slot.logits[to / kLogitsRows];
    BULKHEAD_TRY(slot.downloaded,
                 blit.download_to(part(block, to % kLogitsRows * row_bytes, rows * row_bytes),
                                  part(activations.slice(context_.plan, Scratch::kLogits),
                                       (first_row + row) * row_bytes, rows * row_bytes),
                                  computed));
    to += rows;
  }
  return {};
}

void StepSlots::take_results(std::uint32_t index) {
  StepSlot& slot = slots_[index];
  const std::byte* row = slot.results.mapped;
  for (std::size_t i = 0; i < slot.outputs.size(); ++i) {
    engine::ColumnOutput& output = slot.outputs[i];
    std::memcpy(&output.best, row, 4);
    std::memcpy(&output.best_logprob, row + 4, 4);
    if (slot.wanted[i] >= 0) take_logprobs(slot, i);
    row += 8;
  }
}

bool StepSlots::gave_up(std::uint32_t index) const {
  const StepSlot& slot = slots_[index];
  if (!slot.may_give_up) return false;
  std::uint32_t status = 0;
  std::memcpy(&status, slot.results.mapped + (std::uint64_t{context_.result_rows} - 1) * 8, 4);
  return status != 0;
}

void StepSlots::tell_tokens() {
  const std::uint32_t first = oldest();
  const std::uint32_t rows_before = before(first, 1) * context_.result_rows;
  std::byte* const base = slots_[first].parameters.mapped;
  std::uint32_t columns = 0;
  std::memcpy(&columns, base + k::kColumnCountWord * 4, sizeof columns);
  for (std::uint32_t i = 0; i < columns; ++i) {
    std::byte* const at = base + k::kHeaderBytes + i * sizeof(k::ColumnEntry);
    k::ColumnEntry entry{};
    std::memcpy(&entry, at, sizeof entry);
    if (entry.chosen == 0) continue;
    entry.token = last_tokens_[entry.chosen - 1 - rows_before];
    entry.chosen = 0;
    std::memcpy(at, &entry, sizeof entry);
  }
}

}  // namespace bulkhead::forward
