#include "kernel_harness.hpp"

#include <cstdio>
#include <cstdlib>

#include "tests/support/test_device.hpp"

namespace bulkhead::forward {

gpu::Device* test_device() {
  static const std::unique_ptr<gpu::Device> device = [] {
    auto opened = gpu::Device::open(test::chosen_device_options());
    return opened.ok() ? *std::move(opened) : nullptr;
  }();
  return device.get();
}

bool every_way() {
  static const bool every = [] {
    if (test_device()->info().kind != gpu::DeviceKind::kCpu) return true;
    if (std::getenv("BULKHEAD_EVERY_WAY") != nullptr) return true;
    std::printf(
        "on a CPU the kernels go some ways; BULKHEAD_EVERY_WAY=1 makes them go every way, for "
        "minutes\n");
    return false;
  }();
  return every;
}

std::vector<NamedMapping> test_mappings(const gpu::Device& device) {
  const gpu::kernels::Mapping own = gpu::kernels::mapping_for(device.info());
  std::vector<NamedMapping> mappings{{"lanes", gpu::kernels::lanes_mapping(device.info())}};
  if (own.rows) mappings.push_back({"rows", own});
  return mappings;
}

std::uint32_t place_in_input(const gpu::kernels::Mapping& mapping, std::uint32_t i) {
  if (mapping.rows) return i;
  return i / 1024 * 1024 + (i / 4 % 8) * 128 + (i / 32 % 32) * 4 + i % 4;
}

void KernelTest::SetUp() {
  if (test_device() == nullptr) GTEST_SKIP() << "no usable Vulkan device";
}

gpu::Buffer KernelTest::empty(std::uint64_t bytes) {
  auto made = device().allocate(std::max<std::uint64_t>(bytes, 16), gpu::Memory::kReadback, "test");
  EXPECT_TRUE(made.ok()) << made.error().message();
  gpu::Buffer result = *std::move(made);
  std::memset(result.mapped().data(), 0xff, result.mapped().size());
  return result;
}

std::vector<float> KernelTest::read_input(const gpu::kernels::Mapping& mapping,
                                          const gpu::Buffer& from, std::uint32_t columns,
                                          std::uint32_t width) {
  const std::uint32_t stride = gpu::kernels::input_stride(mapping, width);
  const auto laid_out = read<float>(from, std::size_t{columns} * stride);
  std::vector<float> made;
  for (std::uint32_t c = 0; c < columns; ++c) {
    for (std::uint32_t i = 0; i < width; ++i)
      made.push_back(laid_out[c * stride + place_in_input(mapping, i)]);
    for (std::uint32_t i = width; i < gpu::kernels::input_padded(mapping, width); ++i)
      EXPECT_EQ(laid_out[c * stride + place_in_input(mapping, i)], 0.0F);
  }
  return made;
}

std::vector<float> KernelTest::random_floats(std::size_t count, float scale, float middle) {
  std::normal_distribution<float> normal(middle, scale);
  std::vector<float> values(count);
  for (float& value : values)
    value = normal(random_);
  return values;
}

gpu::Buffer KernelTest::parameters(std::uint32_t columns,
                                   std::span<const gpu::kernels::ColumnEntry> entries) {
  std::vector<std::uint32_t> words(16 + entries.size() * 4);
  words[gpu::kernels::kColumnCountWord] = columns;
  words[gpu::kernels::kOutputCountWord] = columns;
  if (!entries.empty()) std::memcpy(words.data() + 16, entries.data(), entries.size_bytes());
  return buffer(std::span<const std::uint32_t>(words));
}

KernelTest::Runs KernelTest::runs_with(std::span<const gpu::kernels::ColumnEntry> entries,
                                       std::span<const gpu::kernels::DeltaRun> runs,
                                       std::span<const gpu::kernels::DeltaColumn> columns) {
  Runs made;
  made.columns = static_cast<std::uint32_t>(entries.size());
  made.count = static_cast<std::uint32_t>(runs.size());
  made.parameters = parameters(made.columns, entries);
  std::memcpy(made.parameters.mapped().data() + 4 * gpu::kernels::kRunCountWord, &made.count, 4);
  made.list = buffer(runs);
  made.of_columns = buffer(columns);
  return made;
}

void KernelTest::run_bytes(const gpu::KernelSpec& spec, std::span<const std::byte> push,
                           std::uint32_t x, std::uint32_t y, std::uint32_t z) {
  static const std::unique_ptr<gpu::CommandRing> ring = [this] {
    // A CPU's driver compiles a kernel when it first runs: on a machine that does much else, for minutes.
    auto made = gpu::CommandRing::create(device(), {}, true, 600000);
    EXPECT_TRUE(made.ok());
    return made.ok() ? *std::move(made) : nullptr;
  }();
  auto kernel = device().make_kernel(spec);
  ASSERT_TRUE(kernel.ok()) << kernel.error().message();
  auto id =
      ring->record([&](gpu::Recorder& recorder) { recorder.dispatch(*kernel, push, x, y, z); });
  ASSERT_TRUE(id.ok()) << id.error().message();
  auto ticket = ring->submit(*id);
  ASSERT_TRUE(ticket.ok()) << ticket.error().message();
  const Status done = ring->wait(*ticket);
  ASSERT_TRUE(done.ok()) << done.error().message();
  ring->drop(*id);
}

}  // namespace bulkhead::forward
