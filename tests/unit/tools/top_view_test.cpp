// Turns two looks at a daemon into what `bulkhead top` shows.
#include "tools/cli/top_view.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/cli/columns.hpp"

namespace bulkhead::cli {
namespace {

using nlohmann::json;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

json worker(const std::string& name, std::uint64_t tokens, std::uint64_t requests = 0) {
  return {{"name", name},        {"model", "m"},         {"state", "ready"},
          {"pid", 17},           {"restarts", 0},        {"outstanding_requests", requests},
          {"kv_pages_used", 1U}, {"kv_pages_total", 4U}, {"ipc", {{"tokens_received", tokens}}}};
}

Look look(double seconds, json workers, std::string metrics = "") {
  return {seconds, std::move(workers), std::move(metrics), ""};
}

std::vector<std::string> names(const TopFrame& frame) {
  std::vector<std::string> all;
  for (const TopWorker& each : frame.workers)
    all.push_back(each.name);
  return all;
}

TEST(TopView, RatesAreThoseBetweenTheLooks) {
  const TopFrame frame = frame_of(look(10, json::array({worker("a", 100)})),
                                  look(12, {worker("a", 150), worker("b", 900)}));
  ASSERT_EQ(frame.workers.size(), 2U);
  EXPECT_EQ(frame.workers[0].tokens_per_second, 25);
  EXPECT_EQ(frame.workers[1].tokens_per_second,
            0);  // this worker appeared in between, and nobody knows when
  EXPECT_EQ(frame.tokens_per_second, 25);
  EXPECT_EQ(frame.workers[0].kv_share, 0.25);
  // A counter that shrank gives no rate.
  EXPECT_EQ(frame_of(look(1, {worker("a", 100)}), look(2, {worker("a", 3)})).tokens_per_second, 0);
}

TEST(TopView, MediansAreOfWhatCameBetweenTheLooks) {
  const auto metrics = [](int fast, int slow) {
    const std::string name = "bulkhead_inter_token_seconds_bucket{le=";
    return "# HELP bulkhead_requests_outstanding x\nbulkhead_requests_outstanding 3\n"
           "bulkhead_requests_outstanding_other 8\nbulkhead_requests_waiting 1\n" +
           name + "\"0.01\"} " + std::to_string(fast) + "\n" + name + "\"0.02\"} " +
           std::to_string(fast + slow) + "\n" + name + "\"+Inf\"} " + std::to_string(fast + slow) +
           "\n";
  };
  const TopFrame frame = frame_of(look(1, {}, metrics(1000, 0)), look(2, {}, metrics(1000, 10)));
  EXPECT_THAT(frame.inter_token_ms, DoubleNear(15, 1e-6));
  EXPECT_EQ(frame.first_token_ms, -1);
  EXPECT_EQ(frame.requests, 3U);
  EXPECT_EQ(frame.waiting, 1U);
  EXPECT_EQ(frame_of(look(1, {}, metrics(5, 5)), look(2, {}, metrics(5, 5))).inter_token_ms, -1);
  EXPECT_EQ(to_json(frame)["first_token_ms"], nullptr);
}

TEST(TopView, ShowsHowWellTheDeviceIsUsedBetweenTheLooks) {
  const auto figures = [](int hits, double overlapped, int replays) {
    const std::string of = "{worker=\"w\"} ";
    return "bulkhead_worker_pool_hits_total" + of + std::to_string(hits) +
           "\nbulkhead_worker_pool_acquires_total" + of + "200\n" +
           "bulkhead_worker_blit_overlapped_seconds_total" + of + std::to_string(overlapped) +
           "\nbulkhead_worker_blit_transfer_seconds_total" + of + "4\n" +
           "bulkhead_worker_ring_replays_total" + of + std::to_string(replays) +
           "\nbulkhead_worker_ring_submissions_total" + of + "50\n" +
           "bulkhead_ipc_depth_bytes{worker=\"v\"} 64\nbulkhead_ipc_depth_bytes" + of + "320\n";
  };
  const Look none = look(1, {}, "bulkhead_worker_pool_hits_total{worker=\"w\"} 0\n");
  TopFrame frame = frame_of(none, look(2, {}, figures(190, 3, 40)));
  EXPECT_NEAR(frame.pool_hits, 0.95, 1e-9);
  EXPECT_NEAR(frame.blit_overlap, 0.75, 1e-9);
  EXPECT_NEAR(frame.ring_reuse, 0.8, 1e-9);
  EXPECT_EQ(frame.ring_depth_bytes, 320U);
  EXPECT_THAT(
      to_text(frame, {}),
      HasSubstr("memory pool hits 95 %; transfers beside computing 75 %; command ring reuse "
                "80 %; message ring 320 bytes deep\n"));
  EXPECT_EQ(to_json(frame)["ring_depth_bytes"], 320);
  // Nothing happened between the looks; then nothing ever happened.
  frame = frame_of(look(1, {}, figures(190, 3, 40)), look(2, {}, figures(190, 3, 40)));
  EXPECT_THAT(to_text(frame, {}), HasSubstr("memory pool hits 95 %; "));
  frame = frame_of(look(1, {}, figures(190, 3, 40)), none);
  EXPECT_THAT(to_text(frame, {}), HasSubstr("memory pool hits -; "));
  EXPECT_EQ(to_json(frame)["blit_overlap"], nullptr);
}

TEST(TopView, WorkersAreSorted) {
  TopFrame frame =
      frame_of(look(1, {}), look(2, {worker("b", 0, 5), worker("c", 0, 9), worker("a", 0, 5)}));
  sort_workers(frame, TopOrder::kRequests);
  EXPECT_THAT(names(frame), ElementsAre("c", "a", "b"));
  sort_workers(frame, TopOrder::kName);
  EXPECT_THAT(names(frame), ElementsAre("a", "b", "c"));
  for (std::size_t i = 0; i < std::size(kTopOrders); ++i)
    sort_workers(frame, static_cast<TopOrder>(i));
}

TEST(TopView, FitsItsScreenAndSpeaksToNoTerminal) {
  json workers = json::array();
  for (int i = 0; i < 20; ++i)
    workers.push_back(worker("worker-" + std::to_string(i + 10), 0));
  workers[3]["state"] = "\x1b[31mred\nnext";
  workers[4]["last_death"] =
      "\xc2\x9b"
      "2J";
  TopFrame frame = frame_of(look(1, {}), look(2, workers));
  const std::string whole = to_text(frame, {});
  EXPECT_EQ(std::ranges::count(whole, '\n'), 23);
  EXPECT_THAT(whole, Not(HasSubstr("\x1b")));
  EXPECT_THAT(whole, Not(HasSubstr("\xc2\x9b")));
  TopLayout layout{.width = 30, .height = 10, .selected = "worker-28", .foot = "keys"};
  const std::string part = to_text(frame, layout);
  EXPECT_EQ(std::ranges::count(part, '\n'), 10) << part;
  EXPECT_THAT(part, HasSubstr("worker-28"));
  EXPECT_THAT(part, HasSubstr("15 more workers"));
  EXPECT_THAT(part, testing::EndsWith("keys\n"));
}

// A terminal would scroll if it got more lines than it has.
TEST(TopView, ShowsWhatMattersMostOnALowScreen) {
  json workers = json::array();
  for (int i = 0; i < 3; ++i)
    workers.push_back(worker("worker-" + std::to_string(i), 0));
  const TopFrame frame = frame_of(look(1, {}), look(2, workers));
  TopLayout layout{.width = 20, .selected = "worker-2", .foot = "drain? y/n"};
  const std::string marked = "\x1b[7mworker-2  ready  0  \x1b[0m\n";
  const std::string shown[] = {
      "", "drain? y/n\n", marked + "drain? y/n\n",
      "WORKER    STATE  REQ\n" + marked + "drain? y/n\n",
      "0 requests, 0 waitin\nWORKER    STATE  REQ\n" + marked + "drain? y/n\n"};
  for (std::size_t height = 1; height < std::size(shown); ++height) {
    layout.height = height;
    EXPECT_EQ(to_text(frame, layout), shown[height]) << height;
  }
  for (std::size_t height = 5; height < 12; ++height) {
    layout.height = height;
    const std::string text = to_text(frame, layout);
    EXPECT_LE(std::ranges::count(text, '\n'), static_cast<std::ptrdiff_t>(height)) << text;
    EXPECT_THAT(text, HasSubstr("worker-2"));
  }
  layout.height = 2;
  const TopFrame none = frame_of(look(1, {}), {2, {}, "", "nobody listens"});
  EXPECT_EQ(to_text(none, layout), "nobody listens\ndrain? y/n\n");
}

TEST(TopView, CountsTheColumnsThatCharactersTake) {
  EXPECT_EQ(first_columns("\xc3\xa4\xc3\xb6\xc3\xbc", 2), "\xc3\xa4\xc3\xb6");
  EXPECT_EQ(first_columns("\xe6\xa8\xa1\xe5\x9e\x8b", 3), "\xe6\xa8\xa1") << "two Chinese letters";
  EXPECT_EQ(first_columns("e\xcc\x81x", 1), "e\xcc\x81") << "an accent of its own";
  EXPECT_EQ(columns_of("\xe6\xa8\xa1 e\xcc\x81 \xff"), 6U);
}

TEST(TopView, TakesAnyAnswer) {
  for (const json& workers :
       {json(), json("x"), json{1, "a", json::object()},
        json{{{"name", 5}, {"ipc", "x"}, {"kv_pages_total", -1}, {"pid", {1}}}}}) {
    TopFrame frame =
        frame_of(look(1, workers), look(1, workers, "bulkhead_requests_outstanding{ 5\nx"));
    EXPECT_FALSE(to_text(frame, {}).empty());
    EXPECT_FALSE(to_json(frame).dump().empty());
  }
  TopFrame none = frame_of(look(1, {}), {2, {}, "", "nobody listens"});
  EXPECT_THAT(to_text(none, {}), HasSubstr("nobody listens"));
  EXPECT_EQ(to_json(none)["error"], "nobody listens");
}

}  // namespace
}  // namespace bulkhead::cli
