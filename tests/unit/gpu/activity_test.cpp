// Tests when the device did what: the arithmetic of overlap, the reports of queues about real work, and the timeline
// in the trace file.
#include "gpu/activity.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "gpu/blit_queue.hpp"
#include "gpu/command_ring.hpp"
#include "tests/unit/gpu/gpu_fixture.hpp"

namespace bulkhead::gpu {
namespace {

TEST(Activity, CountsEachNanosecondOfOverlapOnce) {
  Activity activity;
  activity.device_ran(DeviceLane::kCompute, "step", 100, 200, 1);
  activity.device_ran(DeviceLane::kUpload, "upload", 150, 250, 1);  // 50 of it in the first interval
  activity.device_ran(DeviceLane::kCompute, "step", 190, 260, 2);   // the interval begins at 200, so 50 more
  activity.device_ran(DeviceLane::kDownload, "download", 300, 310, 1);
  const ActivityTotals totals = activity.totals();
  EXPECT_EQ(totals.compute_ns, 160u);
  EXPECT_EQ(totals.compute_span_ns, 160u);
  EXPECT_EQ(totals.transfer_ns, 110u);
  EXPECT_EQ(totals.overlapped_ns, 100u);
  EXPECT_EQ(totals.computed, 2u);
  EXPECT_EQ(totals.copied, 2u);
  EXPECT_NEAR(totals.overlap_ratio(), 100.0 / 110, 1e-12);
}

// Compares the figures with a count of every tick. Work is reported in the order in which a host notices its
// end.
TEST(Activity, AgreesWithCountingTicks) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    constexpr int kTicks = 4000;
    std::vector<bool> computing(kTicks);
    struct Told {
      DeviceLane lane;
      int begin, end;
    };
    std::vector<Told> told;
    for (int at = 0; at < kTicks - 100;) {
      const int begin = at + static_cast<int>(random() % 40);
      const int end = begin + 1 + static_cast<int>(random() % 60);
      for (int tick = begin; tick < end; ++tick)
        computing[static_cast<std::size_t>(tick)] = true;
      told.push_back({DeviceLane::kCompute, begin, end});
      at = end;
    }
    for (int copy = 0; copy < 80; ++copy) {
      const int begin = static_cast<int>(random() % (kTicks - 100));
      told.push_back({copy % 2 == 0 ? DeviceLane::kUpload : DeviceLane::kDownload, begin,
                      begin + static_cast<int>(random() % 100)});
    }
    // Ordered by end, except that copies are noticed late.
    std::stable_sort(told.begin(), told.end(), [&](const Told& a, const Told& b) {
      const auto seen = [](const Told& one) {
        return one.end + (one.lane == DeviceLane::kCompute ? 0 : one.begin % 90);
      };
      return seen(a) < seen(b);
    });
    Activity activity;
    std::uint64_t expected = 0;
    for (const Told& one : told) {
      activity.device_ran(one.lane, "work", static_cast<std::uint64_t>(one.begin),
                          static_cast<std::uint64_t>(one.end), 0);
      if (one.lane == DeviceLane::kCompute) continue;
      for (int tick = one.begin; tick < one.end; ++tick)
        expected += computing[static_cast<std::size_t>(tick)] ? 1 : 0;
    }
    EXPECT_EQ(activity.totals().overlapped_ns, expected);
  }
}

class DeviceActivity : public GpuTest {};

TEST_F(DeviceActivity, QueuesReportWhatRan) {
  const auto ring = *CommandRing::create(device(), {}, true, kTimeoutMs);
  const auto queue = *BlitQueue::create(device(), {}, true, kTimeoutMs);
  constexpr std::uint64_t kCount = 100000;
  const Buffer x = *device().allocate(kCount * 4, Memory::kDeviceLocal, "x");
  const Buffer y = *device().allocate(kCount * 4, Memory::kDeviceLocal, "y");
  const Kernel kernel = axpb_kernel();
  const auto id =
      ring->record([&](Recorder& recorder) { axpb(recorder, kernel, slice(x), slice(y), 2, 1); });
  device().activity().reset_totals();
  const std::vector<float> values(kCount, 1.0f);
  for (int step = 0; step < 20; ++step) {
    ASSERT_TRUE(queue->upload(std::as_bytes(std::span(values)), slice(x)).ok());
    const CommandRing::After uploaded = queue->uploads_done();
    ASSERT_TRUE(ring->wait(*ring->submit(*id, {&uploaded, 1})).ok());
  }
  ASSERT_TRUE(queue->finish_uploads().ok());
  const ActivityTotals totals = device().activity().totals();
  EXPECT_EQ(totals.computed, 20u);
  EXPECT_GT(totals.compute_ns, 0u);
  EXPECT_LE(totals.compute_ns, totals.compute_span_ns);
  if (times_copies()) {
    EXPECT_GE(totals.copied, 20u);
  }
  EXPECT_LE(totals.overlapped_ns, totals.transfer_ns);
}

TEST_F(DeviceActivity, ASubmissionThatIsNotWaitedForIsReportedByALaterOne) {
  const auto ring = *CommandRing::create(device(), {}, true, kTimeoutMs);
  const Buffer y = *device().allocate(4096, Memory::kDeviceLocal, "y");
  std::vector<CommandRing::RecordingId> ids;
  for (int i = 0; i < 2; ++i)
    ids.push_back(*ring->record([&](Recorder& recorder) { recorder.fill(slice(y), 0); }));
  device().activity().reset_totals();
  CommandRing::Ticket last = 0;
  for (int step = 0; step < 10; ++step)
    last = *ring->submit(ids[static_cast<std::size_t>(step % 2)]);
  ASSERT_TRUE(ring->wait(last).ok());
  // If only commands can reset timestamps, a run that begins before anyone has read the last run's replaces it.
  const bool all = !device().tells_timestamps_at_once() || device().has_host_query_reset();
  EXPECT_GE(device().activity().totals().computed, all ? 10u : 2u);
  EXPECT_LE(device().activity().totals().computed, 10u);
}

// A worker has this many recordings once its requests have asked for everything: for each shape and each combination
// of what requests may ask of the outputs.
TEST_F(DeviceActivity, EachOfManyRecordingsIsReported) {
  const auto ring = *CommandRing::create(device(), {}, true, kTimeoutMs);
  const Buffer y = *device().allocate(4096, Memory::kDeviceLocal, "y");
  const auto fill = [&](Recorder& recorder) { recorder.fill(slice(y), 0); };
  constexpr std::uint32_t kRecordings = 88;
  device().activity().reset_totals();
  CommandRing::Ticket last = 0;
  for (std::uint32_t i = 0; i < kRecordings; ++i) {
    const auto id = ring->record_variants({fill, fill}, CommandRing::Keep::kAlways);
    ASSERT_TRUE(id.ok());
    for (const std::uint32_t variant : {0U, 1U})
      last = *ring->submit(*id, {}, variant);
  }
  ASSERT_TRUE(ring->wait(last).ok());
  EXPECT_EQ(device().activity().totals().computed, 2 * kRecordings);
}

// As in decoding: the next submission is queued before the one before it has ended.
TEST_F(DeviceActivity, EachOfSubmissionsThatRunAheadIsReported) {
  const auto ring = *CommandRing::create(device(), {}, true, kTimeoutMs);
  const Buffer y = *device().allocate(1 << 20, Memory::kDeviceLocal, "y");
  const auto fill = [&](Recorder& recorder) { recorder.fill(slice(y), 0); };
  const auto id = *ring->record_variants({fill, fill});
  device().activity().reset_totals();
  constexpr std::uint32_t kSteps = 12;
  CommandRing::Ticket before = *ring->submit(id, {}, 0);
  for (std::uint32_t step = 1; step < kSteps; ++step) {
    const CommandRing::Ticket next = *ring->submit(id, {}, step % 2);
    ASSERT_TRUE(ring->wait(before).ok());
    EXPECT_GE(device().activity().totals().computed, step);
    before = next;
  }
  ASSERT_TRUE(ring->wait(before).ok());
  const ActivityTotals totals = device().activity().totals();
  EXPECT_EQ(totals.computed, kSteps);
  EXPECT_LE(totals.compute_ns, totals.compute_span_ns);
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

class TraceFile : public ::testing::Test {
 protected:
  // Tests of this class run as processes side by side, so each has its own file.
  TraceFile()
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("bulkhead-trace-test-" + std::to_string(::getpid()) + ".json")) {}
  ~TraceFile() override { std::filesystem::remove(path_); }
  std::filesystem::path path_;
};

TEST_F(TraceFile, HoldsWhatDeviceAndHostDidOnOneClock) {
  {
    Activity activity;
    ASSERT_FALSE(activity.tracing());
    ASSERT_TRUE(activity.trace_to(path_.string(), 1 << 20).ok());
    const auto start = Activity::Clock::now();
    activity.host_ran("wait for submission", start, start + std::chrono::microseconds(70), 5);
    activity.device_ran(DeviceLane::kCompute, "submission", 1000, 51000, 5);
    activity.device_ran(DeviceLane::kUpload, "uploading", 2000, 3000, 9, 4096);
  }
  const std::string text = contents(path_);
  EXPECT_EQ(text.front(), '[');
  EXPECT_EQ(text.substr(text.size() - 2), "]\n");
  EXPECT_NE(text.find(R"("name":"wait for submission","ts":)"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("dur":70.000,"args":{"id":5,"bytes":0})"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("pid":1,"tid":0,"name":"submission")"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("dur":1.000,"args":{"id":9,"bytes":4096})"), std::string::npos) << text;
}

// The process may be killed, or its file read while it runs.
TEST_F(TraceFile, IsThereWithoutAnEndOnceItIsFlushed) {
  Activity activity;
  ASSERT_TRUE(activity.trace_to(path_.string(), 1 << 20).ok());
  for (std::uint64_t i = 0; i < 40; ++i)
    activity.device_ran(DeviceLane::kCompute, "submission", i * 100, i * 100 + 50, i);
  activity.flush_trace();
  EXPECT_NE(contents(path_).find(R"("id":39)"), std::string::npos);
  activity.device_ran(DeviceLane::kCompute, "submission", 5000, 5050, 77);
  activity.flush_trace();
  EXPECT_NE(contents(path_).find(R"("id":77)"), std::string::npos);
}

TEST_F(TraceFile, EndsWhereItMayGrowNoMore) {
  {
    Activity activity;
    ASSERT_TRUE(activity.trace_to(path_.string(), 10000).ok());
    for (std::uint64_t i = 0; i < 5000; ++i)
      activity.device_ran(DeviceLane::kCompute, "submission", i * 100, i * 100 + 50, i);
  }
  const std::string text = contents(path_);
  EXPECT_GT(text.size(), 9000u);
  EXPECT_LT(text.size(), 11000u);
  EXPECT_EQ(text.substr(text.size() - 2), "]\n");
}

TEST_F(TraceFile, ThatCanNotBeMadeIsAnError) {
  Activity activity;
  const Status status = activity.trace_to("/nowhere/at/all.json", 1 << 20);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message().find("/nowhere/at/all.json"), std::string::npos);
  EXPECT_FALSE(activity.tracing());
}

}  // namespace
}  // namespace bulkhead::gpu
