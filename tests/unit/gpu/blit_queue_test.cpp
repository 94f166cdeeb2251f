// The blit queue in its three forms: with timeline semaphores, with fences, switched off. Each must move the same
// bytes.
#include "gpu/blit_queue.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/staging_ring.hpp"
#include "tests/unit/gpu/gpu_fixture.hpp"

namespace bulkhead::gpu {
namespace {

constexpr std::uint64_t kMib = 1 << 20;

TEST(StagingRing, GivesContiguousPiecesInOrderAndNeverTwice) {
  StagingRing ring(1024);
  const auto first = ring.take(512);
  const auto second = ring.take(256);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->offset, 0u);
  EXPECT_EQ(second->offset, 512u);
  EXPECT_FALSE(ring.take(512));  // 256 are left at the end
  ring.free_until(first->end);
  const auto wrapped = ring.take(512);  // leaves out those 256 bytes
  ASSERT_TRUE(wrapped);
  EXPECT_EQ(wrapped->offset, 0u);
  EXPECT_FALSE(ring.take(256));
  ring.undo(*wrapped);
  EXPECT_EQ(ring.take(256)->offset, 768u);
  ring.free_until(second->end + 256);
  EXPECT_EQ(ring.take(1024)->offset, 0u);  // the ring is empty, so all of it is free from the start
}

enum class Form { kTimeline, kFences, kOff };

void PrintTo(Form form, std::ostream* out) {
  const char* const names[] = {"Timeline", "Fences", "Off"};
  *out << names[static_cast<int>(form)];
}

class Blit : public GpuTest, public ::testing::WithParamInterface<Form> {
 protected:
  static std::unique_ptr<BlitQueue> make_queue(std::uint32_t max_pending = 5) {
    config::BlitQueueSettings settings;
    settings.staging_buffer_size_mb = 1;
    settings.max_pending_ops = max_pending;
    settings.use_shared_events = GetParam() == Form::kTimeline;
    return *BlitQueue::create(device(), settings, GetParam() != Form::kOff, kTimeoutMs);
  }
  static std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t count) {
    std::vector<std::byte> bytes(count);
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(random());
    return bytes;
  }
};

TEST_P(Blit, RandomTransfersAgreeWithACopyOnTheHost) {
  const auto queue = make_queue();
  constexpr std::uint64_t kBytes = 3 * kMib;  // three times the staging memory
  const Buffer buffer = *device().allocate(kBytes, Memory::kDeviceLocal, "target");
  std::mt19937 random(3);
  std::vector<std::byte> mirror = random_bytes(random, kBytes);
  ASSERT_TRUE(queue->upload(mirror, slice(buffer)).ok());
  for (int round = 0; round < 30; ++round) {
    const std::uint64_t largest = round % 10 == 9 ? kBytes : 20000;
    const std::uint64_t bytes = 1 + random() % largest;
    const std::uint64_t offset = random() % (kBytes - bytes + 1);
    const std::vector<std::byte> data = random_bytes(random, bytes);
    ASSERT_TRUE(queue->upload(data, slice(buffer, offset, bytes)).ok());
    std::memcpy(mirror.data() + offset, data.data(), bytes);
    if (round % 3 != 0) continue;
    const std::uint64_t from = random() % (kBytes / 2);
    const std::uint64_t count = 1 + random() % (round % 2 == 0 ? kBytes / 2 : 1000);
    const auto ticket = queue->download(slice(buffer, from, count), {});
    ASSERT_TRUE(ticket.ok()) << ticket.error().message();
    const auto got = queue->finish_download(*ticket);
    ASSERT_TRUE(got.ok()) << got.error().message();
    ASSERT_EQ(got->size(), count);
    ASSERT_EQ(std::memcmp(got->data(), mirror.data() + from, count), 0) << "round " << round;
  }
  const auto whole = queue->finish_download(*queue->download(slice(buffer), {}));
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(std::memcmp(whole->data(), mirror.data(), kBytes), 0);
  EXPECT_EQ(queue->stats().uploads, 31u);
  EXPECT_EQ(queue->stats().downloads, 11u);
  EXPECT_EQ(queue->enabled(), GetParam() != Form::kOff);
}

TEST_P(Blit, FillWritesEachByteOnceInOrder) {
  const auto queue = make_queue();
  const std::uint64_t bytes = 2 * kMib + 12;
  const Buffer buffer = *device().allocate(bytes, Memory::kDeviceLocal, "target");
  std::uint64_t next = 0;
  const auto fill = [](void* context, std::uint64_t offset, std::span<std::byte> piece) {
    auto& expected = *static_cast<std::uint64_t*>(context);
    EXPECT_EQ(offset, expected);
    for (std::size_t i = 0; i < piece.size(); ++i)
      piece[i] = static_cast<std::byte>((offset + i) % 251);
    expected += piece.size();
  };
  ASSERT_TRUE(queue->upload_with(bytes, slice(buffer), fill, &next).ok());
  EXPECT_EQ(next, bytes);
  ASSERT_TRUE(queue->finish_uploads().ok());
  const auto got = queue->finish_download(*queue->download(slice(buffer), {}));
  ASSERT_TRUE(got.ok());
  for (std::uint64_t i = 0; i < bytes; ++i)
    ASSERT_EQ((*got)[i], static_cast<std::byte>(i % 251));
}

TEST_P(Blit, ComputeSeesUploadsAndDownloadsSeeCompute) {
  const auto queue = make_queue();
  const auto ring = *CommandRing::create(device(), {}, true, kTimeoutMs);
  const Kernel kernel = axpb_kernel();
  constexpr std::uint64_t kCount = 10000;
  const Buffer x = *device().allocate(kCount * 4, Memory::kDeviceLocal, "x");
  const Buffer y = *device().allocate(kCount * 4, Memory::kDeviceLocal, "y");
  const auto id =
      ring->record([&](Recorder& recorder) { axpb(recorder, kernel, slice(x), slice(y), 3, 1); });
  for (int step = 1; step <= 5; ++step) {
    const std::vector<float> values(kCount, static_cast<float>(step));
    ASSERT_TRUE(queue->upload(std::as_bytes(std::span(values)), slice(x)).ok());
    const CommandRing::After uploaded = queue->uploads_done();
    const auto ran = ring->submit(*id, {&uploaded, 1});
    ASSERT_TRUE(ran.ok());
    const auto ticket = queue->download(slice(y), {ring->timeline(), *ran});
    ASSERT_TRUE(ticket.ok());
    const auto got = queue->finish_download(*ticket);
    ASSERT_TRUE(got.ok());
    std::vector<float> result(kCount);
    std::memcpy(result.data(), got->data(), got->size());
    for (const float value : result)
      ASSERT_EQ(value, static_cast<float>(3 * step + 1));
  }
}

TEST_P(Blit, DownloadsFinishInAnyOrderAndMayOutgrowTheRing) {
  const auto queue = make_queue();
  std::vector<std::byte> bytes(kMib);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i >> 12);
  const Buffer buffer = *device().allocate(kMib, Memory::kDeviceLocal, "source");
  ASSERT_TRUE(queue->upload(bytes, slice(buffer)).ok());
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<BlitQueue::Ticket> tickets;
    for (std::uint64_t i = 0; i < 16; ++i) {
      const auto ticket = queue->download(slice(buffer, i * 65536, 65536), {});
      ASSERT_TRUE(ticket.ok()) << ticket.error().message();
      tickets.push_back(*ticket);
    }
    for (const std::size_t i : {5, 0, 15, 1, 2, 3, 4, 14, 13, 12, 11, 10, 9, 8, 7, 6}) {
      const auto got = queue->finish_download(tickets[i]);
      ASSERT_TRUE(got.ok());
      EXPECT_EQ(std::memcmp(got->data(), bytes.data() + i * 65536, 65536), 0);
    }
    EXPECT_EQ(queue->finish_download(tickets[3]).error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST_P(Blit, PiecesAreFilledByManyThreadsAndSentInAnyOrder) {
  const auto queue = make_queue();
  constexpr std::uint64_t kPiece = 40000, kPieces = 100;  // several times the staging memory
  const Buffer buffer = *device().allocate(kPiece * kPieces, Memory::kDeviceLocal, "target");
  struct InHand {
    BlitQueue::Piece piece;
    std::uint64_t at;
  };
  std::mt19937 random(17);
  std::vector<InHand> in_hand;
  const auto fill_and_send_all = [&] {
    {
      std::vector<std::jthread> threads;
      for (const InHand& one : in_hand) {
        threads.emplace_back([one] {
          for (std::size_t i = 0; i < one.piece.bytes.size(); ++i)
            one.piece.bytes[i] = static_cast<std::byte>((one.at + i) % 253);
        });
      }
    }
    std::shuffle(in_hand.begin(), in_hand.end(), random);
    for (const InHand& one : in_hand)
      ASSERT_TRUE(queue->send(one.piece, slice(buffer, one.at, one.piece.bytes.size())).ok());
    in_hand.clear();
  };
  for (std::uint64_t next = 0; next < kPieces;) {
    auto piece = queue->reserve(kPiece);
    ASSERT_TRUE(piece.ok()) << piece.error().message();
    if (!*piece || in_hand.size() == 4) {
      if (*piece) queue->give_up(**piece);
      if (in_hand.empty()) {
        ASSERT_TRUE(queue->wait_for_room().ok());
      }
      fill_and_send_all();
      continue;
    }
    in_hand.push_back({**piece, kPiece * next++});
  }
  const BlitQueue::Piece last = in_hand.front().piece;
  fill_and_send_all();
  EXPECT_EQ(queue->send(last, slice(buffer, 0, kPiece)).error().code(),
            ErrorCode::kInvalidArgument);
  ASSERT_TRUE(queue->finish_uploads().ok());
  EXPECT_FALSE(queue->wait_for_room().ok());  // nothing is being transferred
  EXPECT_FALSE(queue->reserve(0).ok() && GetParam() != Form::kOff);
  const auto got = queue->finish_download(*queue->download(slice(buffer), {}));
  ASSERT_TRUE(got.ok());
  for (std::uint64_t i = 0; i < kPiece * kPieces; ++i)
    ASSERT_EQ((*got)[i], static_cast<std::byte>(i % 253)) << i;
  const BlitQueueStats stats = queue->stats();
  EXPECT_EQ(stats.uploads, kPieces);
  const bool timed = GetParam() == Form::kOff || times_copies();
  EXPECT_EQ(stats.upload_copies, timed ? kPieces : 0);
  EXPECT_EQ(stats.bytes_uploaded, kPiece * kPieces);
  EXPECT_EQ(stats.average_upload_us() > 0, timed);
  EXPECT_GT(stats.sync_waits, 0u);
  EXPECT_EQ(stats.pending, 0u);
  EXPECT_GE(stats.pending_peak, 1u);
}

// No call waits for the copy.
TEST_P(Blit, WhatIsDoneIsNotPending) {
  const auto queue = make_queue();
  const Buffer buffer = *device().allocate(1000, Memory::kDeviceLocal, "target");
  ASSERT_TRUE(queue->upload(std::vector<std::byte>(1000), slice(buffer)).ok());
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kTimeoutMs);
  while (queue->stats().pending > 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_EQ(queue->stats().pending, 0u);
  EXPECT_EQ(queue->stats().pending_peak, 1u);
  EXPECT_EQ(queue->stats().sync_waits, GetParam() == Form::kOff ? 1u : 0u);
}

TEST_P(Blit, CountsNothingWhereItShallNot) {
  config::BlitQueueSettings settings;
  settings.staging_buffer_size_mb = 1;
  settings.use_shared_events = GetParam() == Form::kTimeline;
  settings.track_metrics = false;
  const auto queue = *BlitQueue::create(device(), settings, GetParam() != Form::kOff, kTimeoutMs);
  const Buffer buffer = *device().allocate(1000, Memory::kDeviceLocal, "target");
  ASSERT_TRUE(queue->upload(std::vector<std::byte>(1000), slice(buffer)).ok());
  ASSERT_TRUE(queue->finish_download(*queue->download(slice(buffer), {})).ok());
  const BlitQueueStats stats = queue->stats();
  EXPECT_EQ(stats.uploads + stats.downloads + stats.submissions + stats.stalls, 0u);
  EXPECT_EQ(stats.upload_copies + stats.sync_waits + stats.pending_peak, 0u);
}

TEST_P(Blit, LogsEachCopyWhereItShall) {
  for (const bool wanted : {true, false}) {
    config::BlitQueueSettings settings;
    settings.staging_buffer_size_mb = 1;
    settings.use_shared_events = GetParam() == Form::kTimeline;
    settings.verbose_logging = wanted;
    const auto queue = *BlitQueue::create(device(), settings, GetParam() != Form::kOff, kTimeoutMs);
    const Buffer buffer = *device().allocate(1000, Memory::kDeviceLocal, "target");
    const LogCapture log;
    ASSERT_TRUE(queue->upload(std::vector<std::byte>(1000), slice(buffer)).ok());
    ASSERT_TRUE(queue->finish_download(*queue->download(slice(buffer), {})).ok());
    EXPECT_EQ(log.count("upload of 1000 bytes"), wanted ? 1 : 0);
    EXPECT_EQ(log.count("download of 1000 bytes"), wanted ? 1 : 0);
  }
}

TEST_P(Blit, WhatDoesNotFitIsRefused) {
  const auto queue = make_queue();
  const Buffer buffer = *device().allocate(100, Memory::kDeviceLocal, "small");
  EXPECT_EQ(queue->upload(std::vector<std::byte>(101), slice(buffer)).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(queue->download({}, {}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(queue->finish_download(99).error().code(), ErrorCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Forms, Blit, ::testing::Values(Form::kTimeline, Form::kFences, Form::kOff),
                         [](const auto& test) { return ::testing::PrintToString(test.param); });

class StagedBlit : public GpuTest {};

TEST_F(StagedBlit, SteadyTransfersAllocateNothing) {
  config::BlitQueueSettings settings;
  settings.staging_buffer_size_mb = 1;
  const auto queue = *BlitQueue::create(device(), settings, true, kTimeoutMs);
  const Buffer buffer = *device().allocate(4096, Memory::kDeviceLocal, "target");
  const std::vector<std::byte> bytes(4096);
  const std::uint64_t allocations = device().allocation_count();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(queue->upload(bytes, slice(buffer)).ok());
    ASSERT_TRUE(queue->finish_download(*queue->download(slice(buffer), {})).ok());
  }
  EXPECT_EQ(device().allocation_count(), allocations);
}

}  // namespace
}  // namespace bulkhead::gpu
