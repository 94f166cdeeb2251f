// What the programs of all shapes share: the planned model, its weights, its key-value pages, and the memory of steps
// in flight.
//
// Steps that are in flight at the same time use different slots, in turn. Each slot has its own parameters, logits
// and results. Activations are shared, because steps are computed one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpu/device.hpp"
#include "gpu/kernels/kernels.hpp"
#include "worker/forward/kv_windows.hpp"
#include "worker/forward/model_plan.hpp"
#include "worker/forward/tuning.hpp"
#include "worker/forward/weights.hpp"
#include "worker/model/graph.hpp"

namespace bulkhead::forward {

// The offsets of the parts of a step's parameters.
struct ParameterLayout {
  std::uint64_t outputs = 0;  // [output]: its column
  std::uint64_t choices = 0;  // [output]: SampleChoice
  // For models with states: [sequence] of k::DeltaRun, and [column] of k::DeltaColumn.
  std::uint64_t runs = 0, column_runs = 0;
  // For encoders: the count of columns and the columns once more, each with the last position of its sequence instead
  // of its own, and its own instead of its token. Attention reads these. 0: attention reads the columns themselves.
  std::uint64_t sights = 0;
  std::uint64_t pages = 0;  // page tables, one after another
  // The page tables of stores with window pages. A sequence's table begins at the same index in both kinds of tables.
  // No kernel reads entries before a window.
  std::uint64_t window_pages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t stride = 0;  // between slots
};

// What changes in the logits of a slot's step before its draws (gpu/kernels/adjusted_rows.glsl).
struct AdjustmentLayout {
  std::uint64_t masks = 0;       // offset of the masks after the list of outputs
  std::uint32_t mask_words = 0;  // of a mask
  std::uint64_t stride = 0;      // between slots
};

// Narrow steps without barriers between their kernels (gpu/kernels/chain.glsl), if the device allows it.
struct ChainedSteps {
  std::uint32_t columns = 0;      // of the widest step; 0: none
  std::uint32_t broken_link = 0;  // for tests: this link waits in vain; 0: none
  gpu::Buffer counts;
};

// Device addresses of a key-value store's pages: all keys, then as many bytes of values. If values are entries of
// keys, they have the keys' addresses.
struct KvPages {
  std::uint64_t keys = 0, values = 0;
};

struct StepContext {
  gpu::Device* device = nullptr;
  gpu::kernels::Mapping mapping;
  model::ModelGraph graph;
  gpu::kernels::KvFormat kv_format = gpu::kernels::KvFormat::kF16;
  ModelPlan plan;
  ModelWeights weights;
  std::uint32_t context = 0;  // positions that a sequence may have
  std::vector<gpu::Buffer> kv_blocks;
  std::vector<gpu::Buffer>
      kv_slabs;             // by which the cache has grown; those that are absent are not valid()
  std::vector<KvPages> kv;  // for each of the graph's stores
  // The numbers by which kernels know the full pages, the hidden one last, if the cache grows (kv_memory.hpp); empty:
  // their own numbers.
  std::vector<std::uint32_t> page_numbers;
  std::vector<std::uint32_t> window_numbers;  // the same for window pages, without full_pages
  // The bytes by which these numbers count, by store, if the cache grows; empty: numbers count pages.
  std::vector<std::uint32_t> page_strides;
  KvWindows windows;                  // which of these stores have window pages
  std::uint32_t full_pages = 0;       // the number of the first window page
  std::vector<std::uint64_t> states;  // for each of the graph's state stores: [slot][slot_floats]
  std::uint32_t most_runs = 1;        // the most sequences of a step
  std::uint32_t slots = 1;            // steps in flight
  gpu::Buffer parameters;             // [slot]
  ParameterLayout parameter_layout;
  ChainedSteps chain;
  // [slot][output]{token, log-probability}. The first word of a slot's last row says whether its step has failed.
  gpu::Buffer results;
  std::uint32_t result_rows = 0;  // per slot
  // [slot][column][embedding]: for a stage of a split model, the stream that the stage before computed; for a block
  // that drafts tokens, hidden states.
  gpu::Buffer stream_rows;
  std::uint64_t stream_stride = 0;  // bytes between slots
  gpu::Buffer logprobs;             // [slot][output] of LogprobRow
  gpu::Buffer adjustments;          // [slot], in host memory; not there if there are no logits
  AdjustmentLayout adjustment_layout;
  Tuning* tuning = nullptr;  // chooses the variant of a product's kernel; null: the default variant
  // While loading: called before each kernel is made and before each operation is recorded, because a driver may take
  // seconds for either.
  std::function<void()> alive;
  // While loading: if set, kernels are listed here instead of made, and no addresses are needed yet.
  std::vector<gpu::KernelSpec>* wanted = nullptr;

  // Returns the shape of a store's pages, which does not depend on the number of query heads.
  gpu::kernels::AttentionShape kv_shape(const model::KvStore& store) const {
    return {store.head_size, store.heads, store.heads, kv_format, false};
  }
  // AttentionShape::page_stride for the pages of a store.
  std::uint32_t page_stride(model::KvIndex store) const {
    return page_strides.empty() ? 0 : page_strides[store];
  }
  std::uint32_t number_of_page(std::uint32_t page) const {
    return page_numbers.empty() ? page : page_numbers[page];
  }
  // The same for a window page; `page` counts from the first window page.
  std::uint32_t number_of_window(std::uint32_t page) const {
    return window_numbers.empty() ? page : window_numbers[page];
  }
  // Writes a sequence's page table as kernels read it.
  void write_table(std::span<const std::uint32_t> pages, std::byte* to) const {
    if (page_numbers.empty()) {
      std::memcpy(to, pages.data(), pages.size_bytes());
      return;
    }
    for (const std::uint32_t page : pages) {
      std::memcpy(to, &page_numbers[page], sizeof page);
      to += sizeof page;
    }
  }
  std::uint64_t parameters_of(std::uint32_t slot) const {
    return parameters.address() + slot * parameter_layout.stride;
  }
  std::uint64_t stream_rows_of(std::uint32_t slot) const {
    return stream_rows.address() + slot * stream_stride;
  }
  std::uint64_t adjustments_of(std::uint32_t slot) const {
    return adjustments.address() + slot * adjustment_layout.stride;
  }
  // Returns the address of the page tables that `store` uses in the slot's step.
  std::uint64_t page_tables(std::uint32_t slot, model::KvIndex store) const {
    return parameters_of(slot) +
           (windows.slides[store] ? parameter_layout.window_pages : parameter_layout.pages);
  }
};

// Returns the most links of a chain: each step of the plan is at most one link, two (if attention leaves partial
// results) or three (a gated delta net), and the outputs have further ones.
inline std::uint32_t chain_links(const ModelPlan& plan) {
  return static_cast<std::uint32_t>(plan.steps.size()) * 3 + 8;
}
// Returns the number of a chain's counters: those of its links, then those of attention's workgroups
// (AttentionPush::counts).
inline std::uint32_t chain_counts(const ModelPlan& plan, std::uint32_t columns) {
  static_assert(gpu::kernels::kAttentionCountBytes == gpu::kernels::kChainCountBytes);
  return chain_links(plan) + columns * plan.most_heads;
}

}  // namespace bulkhead::forward
