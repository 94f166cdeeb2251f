// Runs single kernels on host-visible buffers of one device that the whole test program shares.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/command_ring.hpp"
#include "gpu/device.hpp"
#include "gpu/kernels/delta.hpp"
#include "gpu/kernels/kernels.hpp"

namespace bulkhead::forward {

// Returns the CPU's device, or the one that BULKHEAD_TEST_DEVICE names. Null if there is no Vulkan
// device; tests then skip.
gpu::Device* test_device();
// Returns whether a test tries every way in which kernels can be made: it does on a GPU, or with BULKHEAD_EVERY_WAY=1.
// A CPU's driver takes seconds to compile each kernel, so there a test tries some ways, which have every type, mode
// and size at least once, and reports that.
bool every_way();
// Both ways of sharing work among lanes, named for messages.
struct NamedMapping {
  const char* name;
  gpu::kernels::Mapping mapping;
};
std::vector<NamedMapping> test_mappings(const gpu::Device& device);

// Returns the place of entry i of a product's input in its column.
std::uint32_t place_in_input(const gpu::kernels::Mapping& mapping, std::uint32_t i);

class KernelTest : public ::testing::Test {
 protected:
  // `seed` is that of `random_`.
  explicit KernelTest(std::uint32_t seed = 1) : random_(seed) {}
  void SetUp() override;

  gpu::Device& device() { return *test_device(); }
  bool on_cpu() { return device().info().kind == gpu::DeviceKind::kCpu; }
  template <typename T>
  gpu::Buffer buffer(std::span<const T> values) {
    gpu::Buffer made = empty(values.size_bytes());
    std::memcpy(made.mapped().data(), values.data(), values.size_bytes());
    return made;
  }
  gpu::Buffer upload(const std::vector<float>& values) {
    return buffer(std::span<const float>(values));
  }
  gpu::Buffer empty(std::uint64_t bytes);  // filled with NaN
  template <typename T>
  std::vector<T> read(const gpu::Buffer& from, std::size_t count) {
    std::vector<T> values(count);
    std::memcpy(values.data(), from.mapped().data(), count * sizeof(T));
    return values;
  }
  // Returns the columns of a product's input in plain order, [column][width], and expects zeros after each of them.
  std::vector<float> read_input(const gpu::kernels::Mapping& mapping, const gpu::Buffer& from,
                                std::uint32_t columns, std::uint32_t width);
  // Returns numbers of a normal distribution.
  std::vector<float> random_floats(std::size_t count, float scale = 1, float middle = 0);
  // Returns the beginning of a step's parameters: counts, columns and outputs.
  gpu::Buffer parameters(std::uint32_t columns,
                         std::span<const gpu::kernels::ColumnEntry> entries = {});

  // A step's columns of several sequences, and the slots of each sequence's state.
  struct Runs {
    gpu::Buffer parameters, list, of_columns;
    std::uint32_t columns = 0, count = 0;
  };
  // A part has columns [first, first + count) of a sequence, which are its positions, and the slots `from`, `to`,
  // `saved`, as a k::DeltaRun. The last columns are drafts, for whose states `drafts` has the slots.
  template <typename Part>
  Runs runs_of(const std::vector<Part>& parts) {
    std::vector<gpu::kernels::ColumnEntry> entries;
    std::vector<gpu::kernels::DeltaRun> runs;
    std::vector<gpu::kernels::DeltaColumn> columns;
    for (const Part& part : parts) {
      const auto index = static_cast<std::uint32_t>(runs.size());
      const auto drafts = static_cast<std::uint32_t>(part.drafts.size());
      runs.push_back({static_cast<std::uint32_t>(entries.size()), part.count, part.from, part.to,
                      part.saved_after, part.saved, drafts, 0});
      for (std::uint32_t i = 0; i < part.count; ++i) {
        entries.push_back({1, part.first + i, 0, 0});
        const std::uint32_t sure = part.count - drafts;
        columns.push_back({index, i < sure ? ~0U : part.drafts[i - sure]});
      }
    }
    return runs_with(entries, runs, columns);
  }

  template <typename Push>
  void run(const gpu::KernelSpec& spec, const Push& push, std::uint32_t x, std::uint32_t y = 1,
           std::uint32_t z = 1) {
    run_bytes(spec, gpu::push_bytes(push), x, y, z);
  }

  std::mt19937 random_;

 private:
  Runs runs_with(std::span<const gpu::kernels::ColumnEntry> entries,
                 std::span<const gpu::kernels::DeltaRun> runs,
                 std::span<const gpu::kernels::DeltaColumn> columns);
  void run_bytes(const gpu::KernelSpec& spec, std::span<const std::byte> push, std::uint32_t x,
                 std::uint32_t y, std::uint32_t z);
};

}  // namespace bulkhead::forward
