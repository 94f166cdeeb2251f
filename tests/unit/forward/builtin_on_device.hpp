// The built-in model and its tokenizer, and a device for it.
#pragma once

#include <memory>

#include <gtest/gtest.h>

#include "tests/support/test_device.hpp"
#include "worker/engine/engine.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::forward {

// Skips its tests if there is no device.
class BuiltinOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = gpu::Device::open(test::chosen_device_options());
    if (!opened.ok()) GTEST_SKIP() << "no usable Vulkan device: " << opened.error().message();
    device_ = *std::move(opened);
    auto file = model::GgufFile::open(BULKHEAD_SOURCE_DIR "/worker/builtin/builtin.gguf");
    ASSERT_TRUE(file.ok()) << file.error().message();
    file_ = *std::move(file);
    auto tokenizer = model::Tokenizer::from_gguf(*file_);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    tokenizer_ = *std::move(tokenizer);
    language_.tokenizer = tokenizer_.get();
  }

  // Returns options with which a test's small steps wait for the device and have pool memory.
  static TransformerOptions small_options(std::uint32_t max_batch) {
    TransformerOptions made;
    made.engine.max_batch = max_batch;
    made.engine.prefill_chunk = 32;
    made.wait_timeout_ms = 60000;
    made.gpu.memory_pool.heap_size_mb = 32;
    made.gpu.memory_pool.num_heaps = 1;
    made.gpu.memory_pool.warmup_sizes = {1};
    return made;
  }

  std::unique_ptr<engine::Executor> load(const TransformerOptions& options) {
    const auto graph = model::read_model(*file_);
    EXPECT_TRUE(graph.ok()) << graph.error().message();
    if (!graph.ok()) return nullptr;
    auto executor = make_transformer(*device_, *file_, *graph, options);
    EXPECT_TRUE(executor.ok()) << executor.error().message();
    return executor.ok() ? *std::move(executor) : nullptr;
  }

  std::unique_ptr<gpu::Device> device_;
  std::unique_ptr<model::GgufFile> file_;
  std::unique_ptr<model::Tokenizer> tokenizer_;
  engine::Language language_{nullptr, jinja::Chat()};
};

}  // namespace bulkhead::forward
