// What a successor goes by: blocks that are planned alike from equal sizes, and sums that tell whether
// memory on the device is what it was.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>

#include "gpu/blit_queue.hpp"
#include "gpu/kernels/checksum.hpp"
#include "worker/forward/memory_blocks.hpp"

namespace bulkhead::forward {
namespace {

constexpr std::uint64_t kMib = 1 << 20;

TEST(Blocks, PiecesLieWholeInOrderAndApart) {
  std::vector<std::uint64_t> pieces;
  for (std::uint64_t i = 1; i < 200; ++i)
    pieces.push_back(i * 777'777 % (90 * kMib) + 1);
  const std::uint64_t largest = 300 * kMib;
  const BlockPlan plan = plan_blocks(pieces, largest);
  ASSERT_EQ(plan.places.size(), pieces.size());
  std::uint32_t block = 0;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Place& place = plan.places[i];
    if (place.block != block) {
      EXPECT_EQ(place.block, block + 1);
      EXPECT_EQ(place.offset, 0U);
      block = place.block;
      end = 0;
    }
    EXPECT_GE(place.offset, end);
    EXPECT_EQ(place.offset % kPieceAlignment, 0U);
    end = place.offset + pieces[i];
    EXPECT_LE(end, plan.blocks[block]);
  }
  EXPECT_EQ(plan.blocks.size(), block + 1);
  EXPECT_LE(plan.blocks.size(), 40U) << "few, for each costs an import";
  for (const std::uint64_t bytes : plan.blocks)
    EXPECT_LE(bytes, largest);
  const BlockPlan again = plan_blocks(pieces, largest);
  EXPECT_EQ(again.blocks, plan.blocks);
}

TEST(Blocks, APieceLargerThanABlockHasOneToItself) {
  const BlockPlan plan =
      plan_blocks(std::vector<std::uint64_t>{kMib, 900 * kMib, kMib}, 500 * kMib);
  EXPECT_EQ(plan.blocks.size(), 3U);
  EXPECT_EQ(plan.blocks[1], 900 * kMib);
}

TEST(Checksums, TellEveryKindOfDifference) {
  gpu::DeviceOptions options;
  const char* const wanted = std::getenv("BULKHEAD_TEST_DEVICE");
  options.selector = wanted != nullptr ? wanted : "cpu";
  auto opened = gpu::Device::open(options);
  if (!opened.ok()) GTEST_SKIP() << opened.error().message();
  gpu::Device& device = **opened;
  constexpr std::uint64_t kBytes = 3 * kMib + 16;
  const auto host = device.allocate(kBytes, gpu::Memory::kUpload, "bytes");
  ASSERT_TRUE(host.ok());
  const std::span<std::byte> bytes = host->mapped();
  for (std::uint64_t i = 0; i < kBytes; ++i)
    bytes[i] = static_cast<std::byte>(i * 37 ^ i >> 9);
  const auto sum = [&] {
    const gpu::BufferSlice slices[] = {gpu::slice(*host), gpu::slice(*host, 0, 4096)};
    const auto sums = gpu::kernels::checksums(device, slices, 20000);
    EXPECT_TRUE(sums.ok()) << sums.error().message();
    return (*sums)[0];
  };
  const auto before = sum();
  EXPECT_EQ(sum(), before);
  for (const std::uint64_t at : {std::uint64_t{0}, kBytes / 2, kBytes - 1}) {
    bytes[at] ^= std::byte{1};
    EXPECT_NE(sum(), before) << at;
    bytes[at] ^= std::byte{1};
  }
  // Two lots of sixteen bytes, and two words of one, that change places.
  std::swap_ranges(bytes.begin(), bytes.begin() + 16, bytes.begin() + 1600);
  EXPECT_NE(sum(), before);
  std::swap_ranges(bytes.begin(), bytes.begin() + 16, bytes.begin() + 1600);
  std::swap_ranges(bytes.begin(), bytes.begin() + 4, bytes.begin() + 4);
  EXPECT_NE(sum(), before);
  std::swap_ranges(bytes.begin(), bytes.begin() + 4, bytes.begin() + 4);
  EXPECT_EQ(sum(), before);
  const gpu::BufferSlice odd = gpu::slice(*host, 0, 40);
  EXPECT_FALSE(gpu::kernels::checksums(device, std::span(&odd, 1), 20000).ok());
}

}  // namespace
}  // namespace bulkhead::forward
