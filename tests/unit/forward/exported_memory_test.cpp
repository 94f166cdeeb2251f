// A successor compares two things: the plan of blocks, which is the same for equal sizes, and
// checksums, which show whether memory on the device has changed.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/blit_queue.hpp"
#include "gpu/kernels/checksum.hpp"
#include "tests/support/test_device.hpp"
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

TEST(Checksums, ShowEveryKindOfDifference) {
  auto opened = gpu::Device::open(test::chosen_device_options());
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

// The definition: each word is mixed with the place of its sixteen bytes, and all are added up.
using gpu::kernels::Checksum;
Checksum sum_on_host(std::span<const std::byte> bytes, std::uint64_t place = 0) {
  constexpr std::uint32_t kOfWord[] = {0, 0x3c6ef372, 0xa54ff53a, 0x510e527f};
  Checksum sum{};
  for (std::size_t at = 0; at < bytes.size(); at += 16, ++place) {
    const auto mixed = static_cast<std::uint32_t>(place) * 0x9e3779b9U +
                       static_cast<std::uint32_t>(place >> 32) * 0x7feb352dU;
    for (std::size_t word = 0; word < 4; ++word) {
      std::uint32_t h = 0;
      std::memcpy(&h, bytes.data() + at + word * 4, 4);
      h ^= mixed + kOfWord[word];
      h = (h ^ h >> 16) * 0x85ebca6bU;
      h = (h ^ h >> 13) * 0xc2b2ae35U;
      sum[word] += h ^ h >> 16;
    }
  }
  return sum;
}

Checksum plus(Checksum a, const Checksum& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    a[i] += b[i];
  return a;
}

TEST(Checksums, AreThoseOfTheHost) {
  auto opened = gpu::Device::open(test::chosen_device_options());
  if (!opened.ok()) GTEST_SKIP() << opened.error().message();
  gpu::Device& device = **opened;
  constexpr std::uint64_t kQuads = 40000;
  const auto memory = device.allocate(kQuads * 16, gpu::Memory::kUpload, "bytes");
  ASSERT_TRUE(memory.ok());
  std::mt19937 random(3);
  for (std::byte& byte : memory->mapped())
    byte = static_cast<std::byte>(random());
  const std::span<const std::byte> bytes = memory->mapped();
  const gpu::BufferSlice whole = gpu::slice(*memory);
  const auto once = gpu::kernels::checksums(device, std::span(&whole, 1), 20000);
  ASSERT_TRUE(once.ok()) << once.error().message();
  EXPECT_EQ(once->front(), sum_on_host(bytes));

  using gpu::kernels::ChecksumLots;
  using gpu::kernels::ChecksumPiece;
  const auto lots = ChecksumLots::create(device, {200, 30}, 20000);
  ASSERT_TRUE(lots.ok()) << lots.error().message();
  std::vector<std::vector<Checksum>> expected;
  const auto finish = [&] {
    const auto sums = (*lots)->finish();
    ASSERT_TRUE(sums.ok()) << sums.error().message();
    EXPECT_EQ(std::vector<Checksum>(sums->begin(), sums->end()), expected.front());
    expected.erase(expected.begin());
  };
  for (int lot = 0; lot < 40; ++lot) {
    std::vector<ChecksumPiece> pieces(lot == 0 ? 0 : random() % 200);
    auto& sums = expected.emplace_back(1 + random() % 30);
    for (ChecksumPiece& piece : pieces) {
      piece.quads = random() % 3000;
      const std::uint64_t from = random() % (kQuads - piece.quads);
      piece.source = memory->address() + from * 16;
      piece.place = random() % 2 == 0 ? random() : (std::uint64_t{random()} << 32) + 0xfffffff0U;
      piece.sum = random() % sums.size();
      sums[piece.sum] = plus(sums[piece.sum],
                             sum_on_host(bytes.subspan(from * 16, piece.quads * 16), piece.place));
    }
    const Status started = (*lots)->start(pieces, static_cast<std::uint32_t>(sums.size()));
    ASSERT_TRUE(started.ok()) << started.error().message();
    if ((*lots)->in_flight() == ChecksumLots::kInFlight || random() % 3 == 0) finish();
  }
  while ((*lots)->in_flight() > 0)
    finish();
  EXPECT_FALSE((*lots)->finish().ok());
  EXPECT_FALSE((*lots)->start(std::vector<ChecksumPiece>(201), 1).ok());
  EXPECT_FALSE((*lots)->start({}, 31).ok());
}

}  // namespace
}  // namespace bulkhead::forward
