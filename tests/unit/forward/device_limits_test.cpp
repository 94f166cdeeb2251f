// The demands of kernels on devices whose limits differ from those of the tests' device. This test
// needs no device.
#include <string>

#include <gtest/gtest.h>

#include "gpu/device.hpp"
#include "gpu/kernels/attention_constants.hpp"
#include "gpu/kernels/constants.hpp"
#include "gpu/kernels/kernels.hpp"
#include "gpu/kernels/logprobs.hpp"
#include "gpu/kernels/sample.hpp"

namespace bulkhead::forward {
namespace {

namespace k = gpu::kernels;

gpu::DeviceInfo gpu_with(std::uint32_t subgroup, std::uint32_t invocations, std::uint32_t shared) {
  gpu::DeviceInfo info;
  info.kind = gpu::DeviceKind::kDiscrete;
  info.subgroup_size = info.min_subgroup_size = info.max_subgroup_size = subgroup;
  info.max_workgroup_invocations = invocations;
  info.shared_memory_bytes = shared;
  return info;
}

// The modes give the same bits, so a device takes those for which a workgroup has memory.
TEST(DeviceLimits, AttentionFitsIntoSharedMemory) {
  for (const std::uint32_t subgroup : {8U, 16U, 32U, 64U}) {
    for (const std::uint32_t kib : {16U, 32U, 48U, 64U}) {
      const k::Mapping mapping = k::lanes_mapping(gpu_with(subgroup, 1024, kib * 1024));
      for (const std::uint32_t head : {32U, 100U, 128U, 256U, 512U, 768U}) {
        // lanes_shared_bytes() counts a little more than such heads take.
        if (kib == 16 && head > 512) continue;
        for (const std::uint32_t group : {1U, 4U, 16U}) {
          const k::AttentionShape shape{head, group, 1, k::KvFormat::kF16, false};
          for (const std::uint32_t columns : {1U, 4U, 12U, 16U, 17U, 64U, 65U, 300U}) {
            const k::AttentionMode mode = k::attention_mode(mapping, shape, {}, columns, 4096);
            const k::LanesAttention sharing = k::lanes_attention(mapping, shape, mode, columns);
            EXPECT_LE(k::lanes_shared_bytes(mapping, shape, mode, sharing.heads, sharing.subgroups),
                      mapping.shared_bytes)
                << "subgroups of " << subgroup << ", " << kib << " KiB, heads of " << head << ", "
                << columns << " columns";
          }
        }
      }
    }
  }
}

TEST(DeviceLimits, AttentionByMatrixUnitsFitsIntoSharedMemory) {
  for (const std::uint32_t kib : {32U, 48U, 64U}) {
    k::Mapping mapping = k::lanes_mapping(gpu_with(32, 1024, kib * 1024));
    mapping.units = true;
    mapping.units_attention = k::UnitsAttention::kEverywhere;
    for (const std::uint32_t head : {32U, 48U, 64U, 100U, 128U, 184U, 240U, 256U}) {
      for (const std::uint32_t group : {1U, 4U, 7U, 16U}) {
        for (const std::uint32_t window : {0U, 100U, 4096U}) {
          const k::AttentionShape shape{head, group, 1, k::KvFormat::kF16, false, window};
          for (const std::uint32_t columns : {1U, 4U, 12U, 16U, 17U, 64U, 65U, 300U}) {
            for (const k::AttentionRange& range : k::attention_ranges(mapping, shape, columns)) {
              const k::AttentionMode mode =
                  k::attention_mode(mapping, shape, range, columns, 4096);
              const k::UnitAttention sharing =
                  k::unit_attention(mapping, shape, range, mode, columns);
              EXPECT_LE(k::units_shared_bytes(mapping, shape, sharing), mapping.shared_bytes)
                  << kib << " KiB, heads of " << head << ", " << columns << " columns";
              EXPECT_GE(sharing.heads_together, 1U);
            }
          }
        }
      }
    }
  }
}

TEST(DeviceLimits, SamplingFitsIntoSmallWorkgroups) {
  for (const std::uint32_t most : {256U, 512U, 1024U}) {
    const k::Mapping mapping = k::lanes_mapping(gpu_with(32, most, 32768));
    for (const k::SamplePass pass :
         {k::SamplePass::kClear, k::SamplePass::kHistogram, k::SamplePass::kLast,
          k::SamplePass::kSums, k::SamplePass::kDraw})
      EXPECT_LE(k::read_constants<k::SamplingConstants>(k::sample(mapping, pass)).invocations,
                most);
    for (const k::LogprobPass pass : {k::LogprobPass::kSums, k::LogprobPass::kTokens})
      EXPECT_LE(k::read_constants<k::SamplingConstants>(k::logprobs(mapping, pass)).invocations,
                most);
  }
}

}  // namespace
}  // namespace bulkhead::forward
