// The command ring, switched on and off: the same recordings give the same results either way.
#include "gpu/command_ring.hpp"

#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/submission.hpp"
#include "tests/unit/gpu/gpu_fixture.hpp"

namespace bulkhead::gpu {
namespace {

class Ring : public GpuTest, public ::testing::WithParamInterface<bool> {
 protected:
  static std::unique_ptr<CommandRing> make_ring(std::uint32_t ring_size = 8) {
    config::CommandBufferRingSettings settings;
    settings.ring_size = ring_size;
    return *CommandRing::create(device(), settings, GetParam(), kTimeoutMs);
  }
  static Result<CommandRing::Ticket> submit_batch(CommandRing& ring,
                                                  std::span<const CommandRing::RecordingId> ids) {
    CommandRing::Batch batch{ids};
    BULKHEAD_RETURN_IF_ERROR(ring.submit_batches({&batch, 1}));
    return batch.ticket;
  }
  static void run(CommandRing& ring, CommandRing::RecordingId id) {
    const auto ticket = ring.submit(id);
    ASSERT_TRUE(ticket.ok()) << ticket.error().message();
    const Status done = ring.wait(*ticket);
    ASSERT_TRUE(done.ok()) << done.error().message();
  }
};

std::vector<float> counting(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

TEST_P(Ring, ReplaysSeeTheDataOfTheirTime) {
  const auto ring = make_ring();
  const Kernel kernel = axpb_kernel();
  const Buffer x = floats(counting(1000));
  const Buffer y = floats(std::vector<float>(1000, 0));
  const auto id =
      ring->record([&](Recorder& recorder) { axpb(recorder, kernel, slice(x), slice(y), 2, 1); });
  ASSERT_TRUE(id.ok()) << id.error().message();
  for (int step = 0; step < 3; ++step) {
    reinterpret_cast<float*>(x.mapped().data())[7] = static_cast<float>(100 * step);
    run(*ring, *id);
    EXPECT_EQ(read_floats(slice(y))[7], static_cast<float>(200 * step + 1));
    EXPECT_EQ(read_floats(slice(y))[999], 2001.0f);
  }
  EXPECT_EQ(ring->enabled(), GetParam());
  if (GetParam()) {
    EXPECT_EQ(ring->stats().recordings, 1u);
    EXPECT_EQ(ring->stats().submissions, 3u);
    EXPECT_EQ(ring->stats().replays, 2u);
    EXPECT_EQ(ring->stats().waits, 3u);
  }
}

TEST_P(Ring, QueuedSubmissionsRunInOrder) {
  const auto ring = make_ring();
  const Kernel kernel = axpb_kernel();
  const Buffer x = floats(std::vector<float>(5000, 1));
  // x = 2x + 1, submitted again before it has finished.
  const auto id =
      ring->record([&](Recorder& recorder) { axpb(recorder, kernel, slice(x), slice(x), 2, 1); });
  ASSERT_TRUE(id.ok());
  CommandRing::Ticket last = 0;
  for (int i = 0; i < 10; ++i)
    last = *ring->submit(*id);
  ASSERT_TRUE(ring->wait(last).ok());
  for (const float value : read_floats(slice(x)))
    ASSERT_EQ(value, 2047.0f);
}

TEST_P(Ring, BarriersOrderCopiesFillsAndDispatches) {
  const auto ring = make_ring();
  const Kernel kernel = axpb_kernel();
  const Buffer x = floats(counting(640));
  const Buffer y = *device().allocate(640 * sizeof(float), Memory::kDeviceLocal, "y");
  const Buffer z = floats(std::vector<float>(640, -1));
  const auto id = ring->record([&](Recorder& recorder) {
    recorder.fill(slice(x, 0, 320 * sizeof(float)), 0);
    recorder.barrier();
    axpb(recorder, kernel, slice(x), slice(y), 1, 5);
    recorder.barrier();
    recorder.copy(slice(y, 0, 639 * sizeof(float)), slice(z, sizeof(float), 639 * sizeof(float)));
  });
  ASSERT_TRUE(id.ok());
  run(*ring, *id);
  const std::vector<float> result = read_floats(slice(z));
  EXPECT_EQ(result[0], -1);
  EXPECT_EQ(result[1], 5);
  EXPECT_EQ(result[320], 5);
  EXPECT_EQ(result[321], 326);
}

TEST_P(Ring, IndirectCountsAreReadWhenTheWorkRuns) {
  const auto ring = make_ring();
  const Kernel kernel = axpb_kernel();
  const Buffer x = floats(std::vector<float>(kAxpbGroup * 4, 1));
  const Buffer y = floats(std::vector<float>(kAxpbGroup * 4, 0));
  const Buffer counts = *device().allocate(12, Memory::kUpload, "counts");
  const auto id = ring->record([&](Recorder& recorder) {
    const AxpbPush push{x.address(), y.address(), kAxpbGroup * 4, 1, 1};
    recorder.dispatch_indirect(kernel, push_bytes(push), slice(counts));
  });
  ASSERT_TRUE(id.ok());
  for (const std::uint32_t groups : {0u, 3u, 4u}) {
    auto* const words = reinterpret_cast<std::uint32_t*>(counts.mapped().data());
    words[0] = groups;
    words[1] = words[2] = 1;
    run(*ring, *id);
    const std::vector<float> result = read_floats(slice(y));
    EXPECT_EQ(std::accumulate(result.begin(), result.end(), 0.0f), 2.0f * kAxpbGroup * groups);
  }
}

TEST_P(Ring, AWrongRecordingIsRefusedBeforeItRuns) {
  const auto ring = make_ring();
  const Kernel kernel = axpb_kernel();
  const Buffer x = floats(counting(64));
  const std::byte four[4] = {};
  const std::vector<CommandRing::Build> wrong = {
      [&](Recorder& recorder) { recorder.dispatch(kernel, four, 1); },
      [&](Recorder& recorder) { recorder.dispatch(Kernel{}, four, 1); },
      [&](Recorder& recorder) { recorder.dispatch(kernel, push_bytes(AxpbPush{}), 0xffffffff); },
      [&](Recorder& recorder) { recorder.copy(slice(x), slice(x, 0, 4)); },
      [&](Recorder& recorder) { recorder.fill(slice(x, 2, 4), 0); },
      [&](Recorder& recorder) {
        recorder.dispatch_indirect(kernel, push_bytes(AxpbPush{}), slice(x, 0, 8));
      },
  };
  for (const CommandRing::Build& build : wrong) {
    const auto id = ring->record(build);
    const ErrorCode code = id.ok() ? ring->submit(*id).error().code() : id.error().code();
    EXPECT_EQ(code, ErrorCode::kInvalidArgument);
  }
}

TEST_P(Ring, UnknownIdsAndTicketsAreErrors) {
  const auto ring = make_ring();
  EXPECT_FALSE(ring->known(1));
  EXPECT_EQ(ring->submit(1).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(ring->profile(1).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(ring->wait(1).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(ring->wait(0).ok());
}

TEST_P(Ring, ProfileNamesWhatRan) {
  const auto ring = make_ring();
  const Kernel kernel = axpb_kernel();
  const Buffer x = floats(counting(64));
  const auto id = ring->record([&](Recorder& recorder) {
    recorder.fill(slice(x), 0);
    recorder.barrier();
    for (int i = 0; i < 3; ++i) {
      axpb(recorder, kernel, slice(x), slice(x), 1, 1);
      recorder.barrier();
    }
  });
  const auto times = ring->profile(*id);
  ASSERT_TRUE(times.ok()) << times.error().message();
  ASSERT_EQ(times->size(), 2u);
  EXPECT_EQ((*times)[0].name, "(fill)");
  EXPECT_EQ((*times)[1].name, "axpb");
  EXPECT_EQ((*times)[1].calls, 3u);
  EXPECT_EQ((*times)[1].bytes_moved, 3u * 2 * 256);
  EXPECT_TRUE(std::isfinite((*times)[1].microseconds) && (*times)[1].microseconds >= 0);
  EXPECT_EQ(read_floats(slice(x))[63], 3.0f);
}

INSTANTIATE_TEST_SUITE_P(Forms, Ring, ::testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "On" : "Off"); });

class RecordedRing : public GpuTest {};

TEST_F(RecordedRing, DropsTheLeastRecentlySubmitted) {
  config::CommandBufferRingSettings settings;
  settings.ring_size = 3;
  const auto ring = *CommandRing::create(device(), settings, true, kTimeoutMs);
  const Kernel kernel = axpb_kernel();
  const Buffer x = floats(std::vector<float>(64, 0));
  const auto build = [&](Recorder& recorder) { axpb(recorder, kernel, slice(x), slice(x), 1, 1); };
  std::vector<CommandRing::RecordingId> ids;
  for (int i = 0; i < 3; ++i)
    ids.push_back(*ring->record(build));
  for (const int i : {1, 0, 2})
    ASSERT_TRUE(ring->submit(ids[static_cast<std::size_t>(i)]).ok());
  ids.push_back(*ring->record(build));  // the oldest is 1, whether it is in flight or not
  EXPECT_TRUE(ring->known(ids[0]) && !ring->known(ids[1]) && ring->known(ids[2]) &&
              ring->known(ids[3]));
  ids.push_back(*ring->record(build));
  EXPECT_FALSE(ring->known(ids[0]));
  ring->drop(ids[2]);
  EXPECT_FALSE(ring->known(ids[2]));
  const auto ticket = ring->submit(ids[4]);
  ring->drop_all();
  ASSERT_TRUE(ring->wait(*ticket).ok());
  EXPECT_EQ(read_floats(slice(x))[0], 4.0f);
  for (int i = 0; i < 10; ++i) {  // buffers of dropped recordings are used again
    const auto id = ring->record(build);
    ASSERT_TRUE(id.ok());
    ASSERT_TRUE(ring->wait(*ring->submit(*id)).ok());
  }
  EXPECT_EQ(read_floats(slice(x))[0], 14.0f);
}

TEST_P(Ring, CountsAndLogsWhatItIsAskedTo) {
  for (const bool wanted : {true, false}) {
    config::CommandBufferRingSettings settings;
    settings.track_statistics = settings.log_wait_events = wanted;
    const auto ring = *CommandRing::create(device(), settings, GetParam(), kTimeoutMs);
    const Buffer y = *device().allocate(4096, Memory::kDeviceLocal, "y");
    const auto id = *ring->record([&](Recorder& recorder) { recorder.fill(slice(y), 7); });
    device().activity().reset_totals();
    const LogCapture log;
    for (int i = 0; i < 3; ++i)
      ASSERT_NO_FATAL_FAILURE(run(*ring, id));
    const CommandRingStats stats = ring->stats();
    EXPECT_EQ(stats.submissions, wanted ? 3u : 0u);
    EXPECT_EQ(stats.recordings > 0, wanted);
    EXPECT_EQ(stats.waits >= 3, wanted);
    EXPECT_EQ(log.count("command ring: waited"), static_cast<int>(stats.waits));
    EXPECT_EQ(device().activity().totals().computed, wanted ? 3u : 0u);
  }
}

TEST_P(Ring, RecordingsThatAreSubmittedTogetherRunInOrder) {
  const auto ring = make_ring();
  const Kernel kernel = axpb_kernel();
  const Buffer x = floats(counting(1000));
  const auto step = [&](float a, float b) {
    return *ring->record(
        [&, a, b](Recorder& recorder) { axpb(recorder, kernel, slice(x), slice(x), a, b); });
  };
  const std::vector<CommandRing::RecordingId> ids{step(2, 1), step(3, 0), step(1, 5)};
  for (int round = 0; round < 2; ++round) {
    const auto ticket = submit_batch(*ring, ids);
    ASSERT_TRUE(ticket.ok()) << ticket.error().message();
    ASSERT_TRUE(ring->wait(*ticket).ok());
  }
  EXPECT_EQ(read_floats(slice(x))[0], ((1 * 2 + 1) * 3 + 5) * 6 + 3 + 5);
  if (GetParam()) {
    EXPECT_EQ(ring->stats().submissions, 2U);
    EXPECT_EQ(ring->stats().replays, 1U);
  }
  const std::vector<CommandRing::RecordingId> unknown{ids[0], ids[2] + 100};
  EXPECT_EQ(submit_batch(*ring, unknown).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(read_floats(slice(x))[0], ((1 * 2 + 1) * 3 + 5) * 6 + 3 + 5);
}

TEST_P(Ring, EachBatchOfACallHasATicketAndWaitsForItsOwn) {
  const auto ring = make_ring();
  const Kernel kernel = axpb_kernel();
  const Buffer x = floats(counting(1000));
  const auto step = [&](float a, float b) {
    return *ring->record(
        [&, a, b](Recorder& recorder) { axpb(recorder, kernel, slice(x), slice(x), a, b); });
  };
  const std::vector<CommandRing::RecordingId> first{step(2, 1), step(3, 0)}, second{step(1, 5)};
  Timeline gate;
  ASSERT_TRUE(gate.init(device()).ok());
  // With the ring off, each submission waits for the one before.
  if (!GetParam()) {
    ASSERT_TRUE(gate.signal(1).ok());
  }
  const CommandRing::After opened{gate.handle(), 1};
  std::array<CommandRing::Batch, 2> batches{
      {{.ids = first}, {.ids = second, .after = {&opened, 1}}}};
  const Status submitted = ring->submit_batches(batches);
  ASSERT_TRUE(submitted.ok()) << submitted.error().message();
  EXPECT_LT(batches[0].ticket, batches[1].ticket);
  ASSERT_TRUE(ring->wait(batches[0].ticket).ok());
  if (GetParam()) {
    EXPECT_EQ(*ring->finished(batches[1].ticket, 0), false);
    EXPECT_EQ(ring->stats().submissions, 2U);
    // A wait in several parts is one wait, which took as long as all of them.
    constexpr std::uint32_t kPartMs = 50;
    const CommandRingStats before = ring->stats();
    EXPECT_EQ(*ring->finished(batches[1].ticket, kPartMs), false);
    EXPECT_EQ(ring->stats().waits, before.waits);
    EXPECT_GE(ring->stats().wait_microseconds - before.wait_microseconds, 1000 * kPartMs / 2);
    ASSERT_TRUE(gate.signal(1).ok());
  }
  ASSERT_TRUE(ring->wait(batches[1].ticket).ok());
  EXPECT_EQ(read_floats(slice(x))[0], (1 * 2 + 1) * 3 + 5);
}

// The device hangs, so a place in the ring does not become free; the wait must end.
TEST_P(Ring, ACommandBufferThatIsNotFreeInTimeIsAnError) {
  Timeline gate;
  ASSERT_TRUE(gate.init(device()).ok());
  config::CommandBufferRingSettings settings;
  settings.ring_size = 1;
  const auto ring = *CommandRing::create(device(), settings, GetParam(), 50);
  const Buffer y = *device().allocate(4096, Memory::kDeviceLocal, "y");
  const auto fill = [&](Recorder& recorder) { recorder.fill(slice(y), 7); };
  const auto id = *ring->record(fill);
  const CommandRing::After held{gate.handle(), 1};
  const auto ticket = *ring->submit(id, {&held, 1});
  const Status refused = GetParam()
                             ? Status(ring->record(fill).error())  // one more than it has room for
                             : Status(ring->submit(id).error());   // this records it again
  EXPECT_EQ(refused.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_NE(refused.error().message().find("submission 1 of 1"), std::string::npos)
      << refused.error().message();
  EXPECT_EQ(ring->wait(ticket).error().code(), ErrorCode::kDeadlineExceeded);
  ASSERT_TRUE(gate.signal(1).ok());
  EXPECT_TRUE(*ring->finished(ticket, kTimeoutMs));
  EXPECT_TRUE(ring->known(id));
  EXPECT_TRUE(ring->record(fill).ok());
}

TEST_P(Ring, WhatIsKeptAlwaysTakesNoPlace) {
  const auto ring = make_ring(2);
  const Kernel kernel = axpb_kernel();
  const Buffer x = floats(std::vector<float>(64, 0));
  const CommandRing::Build build = [&](Recorder& recorder) {
    axpb(recorder, kernel, slice(x), slice(x), 1, 1);
  };
  const auto kept = ring->record_variants({build, build}, CommandRing::Keep::kAlways);
  ASSERT_TRUE(kept.ok());
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(ring->record(build).ok());
  for (const std::uint32_t variant : {0U, 1U}) {
    const auto ticket = ring->submit(*kept, {}, variant);
    ASSERT_TRUE(ticket.ok()) << ticket.error().message();
    ASSERT_TRUE(ring->wait(*ticket).ok());
  }
  EXPECT_FALSE(ring->submit(*kept, {}, 2).ok());
}

}  // namespace
}  // namespace bulkhead::gpu
