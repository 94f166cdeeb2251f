// A thousand clients at once, with the daemon's default settings, and streams of many answers.
#include <poll.h>

#include <fstream>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

constexpr int kStreams = 1000;
constexpr int kTokens = 40;
constexpr std::uint64_t kMostKib = 300 * 1024;

// The most memory that the process has had at one time.
[[maybe_unused]] std::uint64_t peak_kib(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; file >> word;) {
    std::uint64_t kib = 0;
    if (word == "VmHWM:" && file >> kib) return kib;
  }
  return 0;
}

TEST(ManyStreams, AThousandAtOnceAllEndWhole) {
  const std::string hold = "/tmp/bulkhead-many-streams-" + std::to_string(::getpid());
  std::ofstream(hold).put('\n');
  const Serving serving = serve({}, {{"FAKE_HOLD", hold}});
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<HttpClient>(serving.port));
    ASSERT_TRUE(clients.back()->send("POST", "/v1/completions",
                                     stream_with_ids("hold@20", kTokens).dump()))
        << i;
  }
  // No stream ends before all have begun.
  for (const auto& client : clients)
    ASSERT_EQ(client->receive_head().status, 200);
  EXPECT_EQ(serving.metric("bulkhead_requests_outstanding"), kStreams);
  EXPECT_GE(serving.metric("bulkhead_connections"), kStreams);
  std::filesystem::remove(hold);
  for (const auto& client : clients) {
    std::string body;
    bool complete = false;
    while (auto chunk = client->receive_chunk()) {
      if (complete = chunk->empty(); complete) break;
      body += *chunk;
    }
    ASSERT_TRUE(complete);
    expect_whole_with_ids(body, kTokens);
  }
  EXPECT_EQ(serving.metric("bulkhead_requests_total{endpoint=\"/v1/completions\",status=\"200\"}"),
            kStreams);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const std::uint64_t peak = peak_kib(serving.daemon->pid());
  EXPECT_GT(peak, 0U);
  EXPECT_LT(peak, kMostKib);
  RecordProperty("daemon_peak_kib", std::to_string(peak));
  std::printf("the daemon's peak: %llu KiB\n", static_cast<unsigned long long>(peak));
#endif
}

// A client may leave as much of each choice unread as of the only one of another stream.
TEST(ManyStreams, OfOneRequestMayEachBeLeftUnreadForAWhile) {
  Serving serving = serve();
  constexpr int kChoices = 8, kTokens = 600;  // 0.6 MB of events for each choice
  HttpClient slow(serving.port, 4096);
  slow.send(
      "POST", "/v1/completions",
      json({{"prompt", "big"}, {"max_tokens", kTokens}, {"stream", true}, {"n", kChoices}}).dump());
  ASSERT_EQ(slow.receive_head().status, 200);
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 0; }));
  std::string body;
  while (auto chunk = slow.receive_chunk()) {
    if (chunk->empty()) break;
    body += *chunk;
  }
  EXPECT_GT(body.size(), std::size_t{3} << 20);
  EXPECT_TRUE(events_of(body).done);
  EXPECT_EQ(serving.metric("bulkhead_clients_lost_total{reason=\"slow\"}"), 0);
}

}  // namespace
}  // namespace bulkhead::test
