// Clients that try to make the daemon hold more than it has room for (bodies without an end), and a system without
// memory.
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/clients.hpp"
#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

std::int64_t status_kib(const Serving& serving, const std::string& name) {
  std::ifstream status("/proc/" + std::to_string(serving.daemon->pid()) + "/status");
  for (std::string word; status >> word;) {
    if (word == name + ":" && status >> word) return std::stol(word);
  }
  return -1;
}

// Each client begins a body of 16 MiB and does not send its last bytes.
Clients unfinished_bodies(const Serving& serving, int count, std::size_t bytes) {
  Clients clients;
  const std::string part(bytes, 'x');
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<HttpClient>(serving.port));
    clients.back()->send_raw(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16777216\r\n\r\n");
    clients.back()->send_raw(part);
  }
  return clients;
}

TEST(Memory, UnfinishedBodiesStayWithinTheBudgetAndSmallRequestsGoOn) {
  const Serving serving = serve({"server.max_memory_mb=64"});
  ASSERT_EQ(small(serving).status, 200);
  const std::int64_t before = status_kib(serving, "VmRSS");
  const Clients clients = unfinished_bodies(serving, 60, std::size_t{4} << 20);  // 240 MiB
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(small(serving).status, 200);
  EXPECT_EQ(serving.get("/health").status, 200);
  EXPECT_LT(status_kib(serving, "VmHWM") - before, 120 * 1024);
  EXPECT_GT(serving.metric("bulkhead_http_no_memory_total"), 30);
  EXPECT_LE(serving.metric("bulkhead_http_memory_most_bytes"), 64 << 20);
  // Refused clients got an error that says when to try again.
  int told = 0;
  for (const auto& client : clients) {
    pollfd item{client->fd(), POLLIN, 0};
    if (::poll(&item, 1, 0) <= 0) continue;
    HttpReply reply = client->receive();
    if (reply.status != 503) continue;
    EXPECT_FALSE(reply.headers["retry-after"].empty());
    EXPECT_FALSE(reply.headers["x-request-id"].empty());
    ++told;
  }
  EXPECT_GT(told, 0);
}

TEST(Memory, AFailedAllocationEndsItsConnectionAndNotTheDaemon) {
  const Serving serving = serve({"server.max_memory_mb=2048", "server.max_body_mb=512"});
  ASSERT_EQ(small(serving).status, 200);
  rlimit limit{};
  const auto now = static_cast<rlim_t>(status_kib(serving, "VmSize")) * 1024;
  limit.rlim_cur = now + (rlim_t{48} << 20);
  limit.rlim_max = RLIM_INFINITY;
  ASSERT_EQ(::prlimit(serving.daemon->pid(), RLIMIT_AS, &limit, nullptr), 0);
  for (int round = 0; round < 3; ++round) {
    HttpClient client(serving.port);
    const std::size_t bytes = std::size_t{200} << 20;
    client.send_raw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                    std::to_string(bytes) + "\r\n\r\n");
    const std::string part(1 << 20, 'x');
    for (std::size_t sent = 0; sent < bytes && client.send_raw(part); sent += part.size()) {
    }
    EXPECT_EQ(serving.get("/health").status, 200);
  }
  EXPECT_GE(serving.metric("bulkhead_http_exceptions_total"), 1);
  EXPECT_EQ(small(serving).status, 200);
  serving.daemon->signal(SIGTERM);
  EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
}

json choices_of(std::size_t prompt_bytes, std::size_t n, const std::string& order = "") {
  std::string prompt = order;
  prompt.resize(prompt_bytes, 'x');
  return {{"prompt", prompt}, {"n", n}, {"max_tokens", 1}};
}

// Expects an error about `n` that has these words.
void expect_refused(const HttpReply& reply, int status, const std::string& words) {
  EXPECT_EQ(reply.status, status) << reply.body.substr(0, 300);
  const json error = json::parse(reply.body)["error"];
  EXPECT_EQ(error["param"], "n");
  EXPECT_NE(error["message"].get<std::string>().find(words), std::string::npos) << error;
}

// Each choice has its own copy of the prompt, in the journal and on its way to a worker.
TEST(Memory, ChoicesCountAsManyPrompts) {
  const Serving serving = serve({"server.max_memory_mb=64"});
  // The daemon hands these over in several turns of its loop. It has their memory back at the end of each answer,
  // though the connection stays.
  HttpClient kept(serving.port);
  for (int round = 0; round < 10; ++round) {
    const HttpReply answered =
        kept.request("POST", "/v1/completions", choices_of(90'000, 40).dump());
    ASSERT_EQ(answered.status, 200) << answered.body.substr(0, 300);
    EXPECT_EQ(json::parse(answered.body)["choices"].size(), 40U);
  }
  EXPECT_LT(serving.metric("bulkhead_http_memory_bytes"), 1 << 20);

  HttpClient other(serving.port);
  other.send("POST", "/v1/completions", choices_of(90'000, 128, "never").dump());  // 22 MiB
  ASSERT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 128; }));
  const json half = choices_of(std::size_t{1} << 20, 20);  // 40 MiB
  const HttpReply refused = serving.complete(half);
  expect_refused(refused, 503, "no room now for copies of 1024 KiB of prompts for 20 answers");
  EXPECT_EQ(json::parse(refused.body)["error"]["code"], "out_of_memory");
  EXPECT_EQ(small(serving).status, 200);
  other.hang_up();
  // The worker refuses what it gets now: the prompt does not fit its context.
  EXPECT_TRUE(Serving::eventually([&] {
    return serving.complete(half).body.find("context_length_exceeded") != std::string::npos;
  }));
}

// Each choice has its own copy of the parameters, too.
TEST(Memory, GrammarsOfChoicesCountAsTheirPrompts) {
  const Serving serving = serve({"server.max_memory_mb=64"});
  const json body = {{"prompt", std::vector<std::string>(128, "never")},
                     {"n", 2},
                     {"grammar", "root ::= \"a\" #" + std::string(200'000, 'x')}};
  const HttpReply refused = serving.complete(body);
  expect_refused(refused, 400, "server.max_memory_mb leaves 56 MiB");
  json few = body;
  few["n"] = 1;
  few["prompt"] = std::vector<std::string>(100, "x");
  few["max_tokens"] = 1;
  EXPECT_EQ(serving.complete(few).status, 200);
}

// A short request of the Responses API can name long items of earlier answers.
TEST(Memory, ItemsThatARequestNamesCountAsItsPrompt) {
  const Serving serving = serve({"server.max_body_mb=1", "server.max_memory_mb=2"});
  const json first = json::parse(
      serving.post("/v1/responses", json{{"input", "big"}, {"max_output_tokens", 80}}.dump()).body);
  const json id = first["output"][0]["id"];
  const json names_it = {
      {"input",
       {{{"role", "user"}, {"content", "never"}}, {{"type", "item_reference"}, {"id", id}}}}};
  Clients clients;
  for (int i = 0; i < 40; ++i) {  // two copies of 80 KB each, of which 64 KiB do not count
    clients.push_back(std::make_unique<HttpClient>(serving.port));
    clients.back()->send("POST", "/v1/responses", names_it.dump());
  }
  EXPECT_EQ(clients.back()->receive_head().status, 503);
  const auto has_room = [&] { return serving.worker()["outstanding_requests"].get<int>(); };
  EXPECT_TRUE(Serving::eventually([&] { return has_room() >= 15; }));
  EXPECT_LE(has_room(), 20);
  EXPECT_EQ(small(serving).status, 200);
}

TEST(Memory, ChoicesThatNeverFindRoomAreRefusedForGood) {
  const Serving serving = serve({"server.max_memory_mb=64"});
  const HttpReply refused = serving.complete(choices_of(std::size_t{1} << 20, 64));
  expect_refused(refused, 400, "copies of 1024 KiB of prompts for 64 answers take 128 MiB");
  expect_refused(refused, 400,
                 "server.max_memory_mb leaves 56 MiB even if there is no other request");
  expect_refused(refused, 400, "ask for fewer answers (n) at a time, or shorten the prompts");
  EXPECT_TRUE(refused.headers.find("retry-after") == refused.headers.end());
  EXPECT_EQ(small(serving).status, 200);
}

// Resumable streams keep all of their events, whether somebody reads them or not.
TEST(Memory, ResumableStreamsHaveABoundOfTheirOwn) {
  const Serving serving = serve({"server.max_memory_mb=64"});
  const json body = {
      {"prompt", "x big"}, {"max_tokens", 60000}, {"stream", true}, {"resumable", true}};
  const HttpReply reply = serving.complete(body);  // a kilobyte a token
  EXPECT_EQ(reply.status, 200);
  EXPECT_LT(reply.body.size(), std::size_t{33} << 20);
  EXPECT_NE(reply.body.find("\"code\":\"out_of_memory\"", reply.body.size() - 1000),
            std::string::npos)
      << reply.body.substr(reply.body.size() - 1000);
  EXPECT_EQ(small(serving).status, 200);
  // The finished stream makes room for another one.
  const json other = {{"prompt", "x"}, {"max_tokens", 3}, {"stream", true}, {"resumable", true}};
  EXPECT_NE(serving.complete(other).body.find("[DONE]"), std::string::npos);
}

void limit_memory(const Serving& serving, rlim_t bytes) {
  const rlimit limit{bytes, RLIM_INFINITY};
  ASSERT_EQ(::prlimit(serving.daemon->pid(), RLIMIT_AS, &limit, nullptr), 0);
}

// The limits let the memory end while the answer's tokens come, and when the whole answer is made.
TEST(Memory, AnAnswerThatFindsNoneFailsAloneAndItsWorkerLives) {
  const Serving serving =
      serve({"server.max_memory_mb=2048", "isolation.heartbeat_timeout_ms=60000"});
  ASSERT_EQ(small(serving).status, 200);
  const json before = serving.worker();
  int failed = 0;
  for (const rlim_t extra_mib : {24, 48, 96, 144, 192, 240}) {
    limit_memory(serving,
                 (static_cast<rlim_t>(status_kib(serving, "VmSize")) << 10) + (extra_mib << 20));
    const HttpReply reply = serving.complete({{"prompt", "x big"}, {"max_tokens", 40000}});
    limit_memory(serving, RLIM_INFINITY);
    if (reply.status != 200) {
      EXPECT_EQ(reply.status, 500) << extra_mib << ": " << reply.body.substr(0, 300);
      EXPECT_NE(reply.body.find("may lack memory"), std::string::npos) << reply.body.substr(0, 300);
      ++failed;
    }
    EXPECT_EQ(serving.get("/v1/requests").body, "[]") << extra_mib;
    EXPECT_EQ(small(serving).status, 200) << extra_mib;
    EXPECT_EQ(serving.worker()["pid"], before["pid"])
        << extra_mib << serving.worker()["last_death"];
  }
  EXPECT_GE(failed, 3);
}

// A thread parses this body. Whichever step of the request then finds no memory, the client gets an error, or
// loses its connection.
TEST(Memory, ALargeRequestThatFindsNoneIsNotLeftWithoutAnAnswer) {
  const Serving serving = serve({"server.max_body_mb=256", "server.max_memory_mb=4096",
                                 "isolation.heartbeat_timeout_ms=60000"});
  ASSERT_EQ(small(serving).status, 200);
  for (const bool resumable : {false, true}) {
    const std::string body = json{
        {"prompt", std::string(std::size_t{16} << 20, 'x')},
        {"stream", true},
        {"resumable", resumable}}.dump();
    for (rlim_t extra_mib = 40; extra_mib < 160; extra_mib += 8) {
      limit_memory(serving,
                   (static_cast<rlim_t>(status_kib(serving, "VmSize")) << 10) + (extra_mib << 20));
      HttpClient client(serving.port);
      client.send("POST", "/v1/completions", body);
      pollfd answered{client.fd(), POLLIN, 0};
      EXPECT_EQ(::poll(&answered, 1, 20'000), 1) << resumable << ' ' << extra_mib;
      limit_memory(serving, RLIM_INFINITY);
      client.hang_up();
      EXPECT_TRUE(Serving::eventually([&] { return serving.get("/v1/requests").body == "[]"; }))
          << extra_mib;
    }
  }
  EXPECT_EQ(small(serving).status, 200);
}

// The client may have one stream at a time. A stream whose start threw must not be in progress for ever.
TEST(Memory, AResumableStreamThatCouldNotStartGivesItsPlaceBack) {
  const Serving serving =
      serve({"server.max_body_mb=256", "server.max_memory_mb=4096",
             "isolation.heartbeat_timeout_ms=60000", "server.api_key=operators-secret",
             "server.keys=alice alice-secret streams=1"});
  const std::vector<std::string> alice = {"Authorization: Bearer alice-secret"};
  json request = {{"prompt", "x"}, {"max_tokens", 1}, {"stream", true}, {"resumable", true}};
  const std::string little = request.dump();
  request["prompt"] = std::string(std::size_t{16} << 20, 'x');
  const std::string large = request.dump();
  ASSERT_EQ(serving.post("/v1/completions", little, alice).status, 200);
  int failed = 0;
  for (rlim_t extra_mib = 40; extra_mib < 160; extra_mib += 8) {
    limit_memory(serving,
                 (static_cast<rlim_t>(status_kib(serving, "VmSize")) << 10) + (extra_mib << 20));
    const HttpReply reply = serving.post("/v1/completions", large, alice);
    limit_memory(serving, RLIM_INFINITY);
    failed += reply.status == 200 ? 0 : 1;
    EXPECT_TRUE(Serving::eventually([&] {
      return serving.post("/v1/completions", little, alice).status == 200;
    })) << extra_mib;
  }
  EXPECT_GE(failed, 3);
}

bool journal_is_written(const Serving& serving) {
  return !json::parse(serving.get("/health").body).contains("problems");
}

// The limits let the memory end at different steps of a stream's events, which are kept, written to the journal on disk
// and sent.
TEST(Memory, AResumableStreamThatFindsNoneSaysSoToItsReader) {
  const std::string journal = testing::TempDir() + "memory-journal-" + std::to_string(::getpid());
  const json body = {
      {"prompt", "x big"}, {"max_tokens", 40000}, {"stream", true}, {"resumable", true}};
  int failed = 0;
  for (const bool on_disk : {false, true}) {
    std::vector<std::string> settings = {"server.max_memory_mb=2048",
                                         "isolation.heartbeat_timeout_ms=60000"};
    if (on_disk) settings.push_back("isolation.journal_path=" + journal);
    const Serving serving = serve(settings);
    ASSERT_EQ(small(serving).status, 200);
    const json before = serving.worker();
    for (const rlim_t extra_mib : {24, 40, 56, 72, 104, 136, 168, 200}) {
      limit_memory(serving,
                   (static_cast<rlim_t>(status_kib(serving, "VmSize")) << 10) + (extra_mib << 20));
      const HttpReply reply = serving.complete(body);
      limit_memory(serving, RLIM_INFINITY);
      EXPECT_TRUE(reply.complete) << extra_mib << ": " << reply.body.size();
      const std::string end =
          reply.body.substr(reply.body.size() - std::min<std::size_t>(reply.body.size(), 400));
      const bool whole = end.find("data: [DONE]") != std::string::npos;
      EXPECT_TRUE(whole || end.find("may lack memory") != std::string::npos) << extra_mib << end;
      failed += whole ? 0 : 1;
      EXPECT_EQ(serving.get("/v1/requests").body, "[]") << extra_mib;
      EXPECT_EQ(small(serving).status, 200) << extra_mib;
      EXPECT_EQ(serving.worker()["pid"], before["pid"]) << extra_mib;
      // A journal that found no memory either refuses resumable streams until it is written again.
      EXPECT_TRUE(Serving::eventually([&] { return journal_is_written(serving); })) << extra_mib;
    }
  }
  ::unlink(journal.c_str());
  EXPECT_GE(failed, 4);
}

// A head and bodies that arrive too slowly, beside one that is slow but fast enough.
TEST(SlowSenders, GetA408WhenTheirTimeIsOver) {
  const Serving serving = serve();
  const json question = {{"prompt", std::string(30000, 'x')}, {"max_tokens", 1}};
  const std::string body = question.dump(), fields = "Host: localhost\r\n";
  const std::string post = "POST /v1/completions HTTP/1.1\r\n" + fields;
  HttpClient head(serving.port), silent(serving.port), trickling(serving.port);
  HttpClient chunks(serving.port), enough(serving.port);
  const std::string length = "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  silent.send_raw(post + length);
  trickling.send_raw(post + length);
  chunks.send_raw(post + "Transfer-Encoding: chunked\r\n\r\n");
  enough.send_raw(post + length);
  head.send_raw("POST /v1/completions HTTP/1.1\r\n");
  // This is longer than a window of 10 s and shorter than the 15 s of a head. 12 x 2,500 bytes give 8 KiB in each
  // window.
  constexpr int kSeconds = 12;
  for (int second = 0; second < kSeconds; ++second) {
    trickling.send_raw("x");
    chunks.send_raw("1\r\nx\r\n");
    head.send_raw("X");
    enough.send_raw(body.substr(static_cast<std::size_t>(second) * 2500, 2500));
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  enough.send_raw(body.substr(std::size_t{kSeconds} * 2500));
  EXPECT_EQ(enough.receive().status, 200);
  for (HttpClient* const slow : {&silent, &trickling, &chunks, &head}) {
    const HttpReply reply = slow->receive();
    EXPECT_EQ(reply.status, 408) << reply.body;
    EXPECT_NE(reply.body.find("did not arrive in time"), std::string::npos) << reply.body;
    pollfd end{slow->fd(), POLLIN, 0};
    char none = 0;
    EXPECT_EQ(::poll(&end, 1, 5000), 1);
    EXPECT_LE(::recv(slow->fd(), &none, 1, MSG_DONTWAIT), 0) << "the connection ends";
  }
  EXPECT_GE(serving.metric("bulkhead_http_slow_senders_total"), 4);
  EXPECT_EQ(small(serving).status, 200);
}

// Other clients' unfinished heads and bodies, which are in the daemon's memory.
Clients halves_of_others(const Serving& serving, const std::string& first, int count) {
  Clients clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<HttpClient>(serving.port));
    EXPECT_TRUE(clients.back()->connected() && clients.back()->send_raw(first));
  }
  // The daemon has read these clients' bytes once it answers a later request.
  EXPECT_EQ(serving.get("/livez").status, 200);
  EXPECT_EQ(serving.get("/livez").status, 200);
  return clients;
}

// Sends more bytes on connections whose requests were refused before they were whole. Expects that the daemon ignores
// these bytes: the connections end without a second answer, and requests that arrive at the same time are unchanged.
void expect_unheard(const Serving& serving, const Clients& refused) {
  const json question = {{"prompt", std::string(40000, 'x')}, {"max_tokens", 1}};
  const std::string body = question.dump();
  const std::string half = body.substr(0, body.size() - 10), rest = body.substr(half.size());
  const Clients bodies =
      halves_of_others(serving,
                       "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\n\r\n" + half,
                       12);
  const Clients heads = halves_of_others(
      serving, "GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Padding: " + std::string(2000, 'p'),
      40);
  const std::string other = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Other: ";
  for (const auto& client : refused)
    client->send_raw(other + std::string(16384 - other.size(), 'E'));
  EXPECT_EQ(serving.get("/livez").status, 200);
  for (const auto& client : refused)
    EXPECT_EQ(client->receive_head().status, 0) << "a second answer";
  for (const auto& client : heads) {
    ASSERT_TRUE(client->send_raw("\r\n\r\n")) << "the daemon is gone";
    EXPECT_EQ(client->receive().status, 200);
  }
  for (const auto& client : bodies) {
    ASSERT_TRUE(client->send_raw(rest));
    const HttpReply reply = client->receive();
    EXPECT_EQ(reply.status, 200) << reply.body;
  }
  EXPECT_EQ(serving.metric("bulkhead_http_bad_framing_total"), 0);
  EXPECT_EQ(serving.metric("bulkhead_http_exceptions_total"), 0);
}

TEST(Memory, ABodyThatWasRefusedIsHeardNoMore) {
  const Serving serving = serve({"server.max_memory_mb=64"});
  const Clients large = unfinished_bodies(serving, 4, std::size_t{7} << 20);
  // Each of these takes the room of a larger body.
  const Clients smaller = unfinished_bodies(serving, 4, std::size_t{13} << 19);
  for (const auto& client : large)
    EXPECT_EQ(client->receive().status, 503);
  expect_unheard(serving, large);
}

TEST(SlowSenders, AreHeardNoMoreAfterThe408) {
  const Serving serving = serve();
  Clients bodies, heads;
  for (int i = 0; i < 8; ++i) {
    heads.push_back(std::make_unique<HttpClient>(serving.port));
    heads.back()->send_raw("POST /v1/completions HTTP/1.1\r\n");
    bodies.push_back(std::make_unique<HttpClient>(serving.port));
    bodies.back()->send_raw(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000\r\n\r\n{");
  }
  for (const Clients* const slow : {&bodies, &heads}) {  // a body's time is over before a head's
    for (const auto& client : *slow) {
      const HttpReply reply = client->receive();
      EXPECT_EQ(reply.status, 408);
      EXPECT_EQ(reply.headers.count("x-request-id"), 1U);
    }
    expect_unheard(serving, *slow);
  }
}

}  // namespace
}  // namespace bulkhead::test
