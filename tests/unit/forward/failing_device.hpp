// A small model on a device that tests make fail: what loads it, what runs a step, and what must be true at the end.
#pragma once

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "gpu/fault_injection.hpp"
#include "tests/support/test_device.hpp"
#include "tests/unit/model/gguf_builder.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/gguf.hpp"

namespace bulkhead::forward {

// Says whether a test of this process has left a device that hangs. The test leaks that device's
// memory on purpose.
inline bool left_a_hung_device = false;

namespace fault = gpu::fault;
using engine::Column;
using engine::Executor;
using engine::Output;
using engine::PageIndex;
using engine::TokenId;

// Opens a device, with Vulkan's validation layer if that is installed. Null: there is no device.
inline std::unique_ptr<gpu::Device> open_device() {
  gpu::DeviceOptions options = test::chosen_device_options();
  for (const bool validation : {true, false}) {
    options.validation = validation;
    auto opened = gpu::Device::open(options);
    if (opened.ok()) return *std::move(opened);
  }
  return nullptr;
}

// Returns a model file with one small layer, whose weights are not all alike.
inline std::string small_model() {
  const model::testing::GgufBuilder builder = model::testing::small_llama();
  std::string bytes = builder.bytes();
  char* const data = bytes.data() + bytes.size() - builder.data_bytes;
  std::mt19937 random(7);
  for (std::size_t i = 0; i < builder.tensors.size(); ++i) {
    const auto& tensor = builder.tensors[i];
    char* at = data + tensor.offset;
    std::uint64_t elements = 1;
    for (const auto n : tensor.ne)
      elements *= n;
    if (tensor.type == 0) {
      for (std::uint64_t e = 0; e < elements; ++e) {
        const float one = 1;
        std::memcpy(at + e * 4, &one, 4);
      }
      continue;
    }
    for (std::uint64_t block = 0; block < elements / 32; ++block, at += 34) {
      const std::uint16_t scale = 0x2400;  // 1/64
      std::memcpy(at, &scale, 2);
      for (int q = 0; q < 32; ++q)
        at[2 + q] = static_cast<char>(static_cast<int>(random() % 255) - 127);
    }
  }
  return bytes;
}

struct Row {
  TokenId best = 0;
  float logprob = 0;
  std::vector<float> logits;
  bool operator==(const Row& other) const {
    return best == other.best && std::memcmp(&logprob, &other.logprob, 4) == 0 &&
           logits.size() == other.logits.size() &&
           (logits.empty() ||
            std::memcmp(logits.data(), other.logits.data(), logits.size() * 4) == 0);
  }
};

inline Result<std::vector<Row>> run_step(Executor& executor, const std::vector<Column>& columns,
                                         const std::vector<std::vector<PageIndex>>& pages) {
  const std::vector<std::span<const PageIndex>> sequences(pages.begin(), pages.end());
  BULKHEAD_RETURN_IF_ERROR(executor.submit({columns, sequences}));
  BULKHEAD_TRY(const auto outputs, executor.wait());
  std::vector<Row> rows;
  for (const auto& output : outputs) {
    rows.push_back(
        {output.best, output.best_logprob, {output.logits.begin(), output.logits.end()}});
  }
  return rows;
}

class FailingDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_ == nullptr) GTEST_SKIP() << "no usable Vulkan device";
    auto file = model::testing::open_bytes(bytes_);
    ASSERT_TRUE(file.ok()) << file.error().message();
    file_ = *std::move(file);
    auto graph = model::read_model(*file_);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    graph_ = *graph;
    options_.engine.max_batch = 2;
    options_.engine.prefill_chunk = 4;
    options_.engine.kv_cache_mb = 1;
    options_.wait_timeout_ms = 60000;
    options_.gpu.graceful_fallback = false;
    options_.gpu.memory_pool.heap_size_mb = 4;
    options_.gpu.memory_pool.num_heaps = 1;
    options_.gpu.memory_pool.warmup_sizes = {};
    options_.gpu.blit_queue.staging_buffer_size_mb = 1;
  }
  void TearDown() override {
    fault::arm(0);
    if (device_ == nullptr) return;
    left_a_hung_device |= device_->abandoned();
    EXPECT_EQ(device_->validation_errors(), 0U) << "see the log above";
    if (!device_->abandoned()) {
      EXPECT_EQ(device_->allocations_alive(), 0U);
    }
  }

  Result<std::unique_ptr<Transformer>> load() {
    return make_transformer(*device_, *file_, graph_, options_);
  }

  // Loads the model, and computes the prompts of two sequences and a token for one of them.
  Result<std::vector<Row>> load_and_run() {
    BULKHEAD_TRY(const std::unique_ptr<Transformer> executor, load());
    const std::vector<std::vector<PageIndex>> pages{{1}, {0}};
    BULKHEAD_TRY(std::vector<Row> rows, run_step(*executor,
                                                 {{5, 0, 0, Output::kNone},
                                                  {9, 1, 0, Output::kLogits},
                                                  {77, 0, 1, Output::kNone},
                                                  {30, 1, 1, Output::kGreedy}},
                                                 pages));
    BULKHEAD_TRY(const std::vector<Row> more,
                 run_step(*executor, {{rows[0].best, 2, 0, Output::kLogits}}, pages));
    rows.insert(rows.end(), more.begin(), more.end());
    return rows;
  }

  const std::string bytes_ = small_model();
  std::unique_ptr<gpu::Device> device_ = open_device();
  std::unique_ptr<model::GgufFile> file_;
  model::ModelGraph graph_;
  TransformerOptions options_;
};

}  // namespace bulkhead::forward
