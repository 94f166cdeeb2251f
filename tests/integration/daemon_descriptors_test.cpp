// A daemon that has no descriptors left, because clients have all of them: it keeps what it has, and goes on when some
// are free again.
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/serving.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {
namespace {

int highest_descriptor(pid_t pid) {
  int highest = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd"))
    highest = std::max(highest, std::atoi(entry.path().filename().c_str()));
  return highest;
}

TEST(DaemonDescriptors, WithoutAnyAWorkerIsReplacedLaterAndItsStreamIsWhole) {
  constexpr int kTokens = 300;
  const std::string journal =
      testing::TempDir() + "descriptors-journal-" + std::to_string(::getpid());
  const Serving serving = serve({"isolation.journal_path=" + journal});
  const pid_t daemon = serving.daemon->pid();
  const auto logged = [&](const std::string& words) {
    return Serving::eventually(
        [&] { return serving.daemon->log().find(words) != std::string::npos; });
  };
  HttpClient kept(serving.port), stream(serving.port);
  const auto worker = [&] { return json::parse(kept.request("GET", "/v1/workers").body).at(0); };
  const pid_t process = worker()["pid"];
  json request = stream_with_ids("x slow", kTokens);
  request["resumable"] = true;
  ASSERT_TRUE(stream.send("POST", "/v1/completions", request.dump()));
  ASSERT_EQ(stream.receive_head().status, 200);
  std::string body = stream.receive_chunk().value_or("");

  rlimit before{};
  ASSERT_EQ(::prlimit(daemon, RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit low{static_cast<rlim_t>(highest_descriptor(daemon)) + 1, before.rlim_max};
  ASSERT_EQ(::prlimit(daemon, RLIMIT_NOFILE, &low, nullptr), 0);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (rlim_t i = 0; i < low.rlim_cur; ++i) {
    clients.push_back(std::make_unique<HttpClient>(serving.port));
    clients.back()->send_raw("GET /health HTTP/1.1\r\n");
  }
  EXPECT_TRUE(logged("accepting a connection: Too many open files"));
  send_signal(process, SIGKILL);
  EXPECT_TRUE(logged("failed start: "));
  EXPECT_EQ(kept.request("GET", "/livez").status, 200);
  EXPECT_NE(worker()["state"], "ready");

  clients.clear();
  ASSERT_EQ(::prlimit(daemon, RLIMIT_NOFILE, &before, nullptr), 0);
  while (const auto chunk = stream.receive_chunk()) {
    if (chunk->empty()) break;
    body += *chunk;
  }
  // Events of resumable streams begin with their numbers.
  std::string text;
  for (std::size_t at = 0; (at = body.find("data: {", at)) != std::string::npos; ++at) {
    const json event = json::parse(body.substr(at + 6, body.find('\n', at) - at - 6));
    ASSERT_TRUE(event.contains("choices")) << event;
    text += event["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, expected_text(9, kTokens));
  EXPECT_EQ(worker()["state"], "ready");
  const json another = {{"prompt", "x"}, {"max_tokens", 2}, {"stream", true}, {"resumable", true}};
  EXPECT_TRUE(Serving::eventually(
      [&] { return serving.complete(another).body.find("[DONE]") != std::string::npos; }));
  ::unlink(journal.c_str());
}

}  // namespace
}  // namespace bulkhead::test
