// What kernels write to pages of keys and values.
#include <limits>

#include "kernel_harness.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

class KvWrite : public KernelTest {};

// An infinite value would turn sums of columns that do not see it into NaN.
TEST_F(KvWrite, HalvesAreNeverInfinite) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const std::pair<float, std::uint16_t> cases[] = {
      {1, 0x3c00},     {65504, 0x7bff},  {65519, 0x7bff},     {65520, 0x7bff},     {-65535, 0xfbff},
      {1e30F, 0x7bff}, {-1e30F, 0xfbff}, {kInfinite, 0x7bff}, {-kInfinite, 0xfbff}};
  constexpr std::uint32_t kHead = 16;
  for (const auto& [name, mapping] : test_mappings(device())) {
    const k::AttentionShape shape{kHead, 1, 1, k::KvFormat::kF16, true};
    std::vector<float> qkv(std::size_t{3} * kHead, 1);
    for (std::size_t i = 0; i < std::size(cases); ++i)
      qkv[2 * kHead + i] = cases[i].first;
    const gpu::Buffer in = upload(qkv), table = upload(std::vector<float>(64)),
                      pages = buffer(std::span<const std::uint32_t>(std::vector<std::uint32_t>(4))),
                      keys = empty(shape.page_bytes()), values = empty(shape.page_bytes()),
                      queries = empty(kHead * 4);
    const k::ColumnEntry column{};
    const gpu::Buffer counts = parameters(1, std::span(&column, 1));
    k::RopeKvPush push{};
    push.qkv = in.address();
    push.fine = push.coarse = table.address();
    push.parameters = counts.address();
    push.pages = pages.address();
    push.keys = keys.address();
    push.values = values.address();
    push.q_out = queries.address();
    push.in_stride = 3 * kHead;
    push.q_scale = 1;
    run(k::rope_kv(mapping, shape), push, 1, 3);
    const auto made = read<std::uint16_t>(values, kHead);
    for (std::size_t i = 0; i < std::size(cases); ++i)
      EXPECT_EQ(made[i], cases[i].second) << name << ": " << cases[i].first;
  }
}

}  // namespace
}  // namespace bulkhead::forward
