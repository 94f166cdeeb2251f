// A journal on disk without room, without its name, or with a damaged record. The daemon continues by itself, and
// says meanwhile what is wrong.
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/integration/resumable.hpp"
#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

class JournalFaults : public testing::Test {
 protected:
  std::string file() const { return folder_ + "/journal"; }
  Serving start() const { return serve({"isolation.journal_path=" + file()}); }
  static json resumable(const std::string& prompt, int tokens) {
    return {{"prompt", prompt},
            {"max_tokens", tokens},
            {"seed", 9},
            {"stream", true},
            {"resumable", true}};
  }
  static void kill_daemon(Serving& serving) {
    serving.daemon->signal(SIGKILL);
    serving.daemon->wait_for_exit();
  }
  // From now on, no file of the daemon can grow beyond this size.
  static void limit_files(const Serving& serving, rlim_t bytes) {
    rlimit limit{};
    limit.rlim_cur = bytes;
    limit.rlim_max = RLIM_INFINITY;
    ASSERT_EQ(::prlimit(serving.daemon->pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  }
  static bool written(const Serving& serving) {
    return serving.metric("bulkhead_journal_disk_written") == 1;
  }
  static void expect_text(const ResumableClient& client, int tokens) {
    EXPECT_TRUE(client.complete);
    const Events events = events_of(client.body());
    EXPECT_TRUE(events.done);
    EXPECT_EQ(text_of(events), expected_text(9, tokens));
  }
  // Continues the client's stream to its end.
  static void expect_rest(const Serving& serving, ResumableClient& client, int tokens) {
    HttpClient connection(serving.port);
    client.resume(connection);
    client.read_to_end(connection);
    expect_text(client, tokens);
  }

  const TemporaryFolder temporary_{"journal"};
  const std::string folder_ = temporary_.path();
};

TEST_F(JournalFaults, AFullDiskPassesAndTheJournalIsWholeAgain) {
  Serving serving = start();
  ResumableClient client;
  HttpClient first(serving.port);
  client.begin(first, "/v1/completions", resumable("slow", 1000));
  client.read_events(first, 5);
  limit_files(serving, 100);
  ASSERT_TRUE(Serving::eventually([&] { return !written(serving); }));
  const json health = json::parse(serving.get("/health").body);
  EXPECT_EQ(health["status"], "ok");
  EXPECT_NE(health["problems"][0].get<std::string>().find("journal"), std::string::npos);
  HttpReply refused = serving.complete(resumable("x", 3));
  EXPECT_EQ(refused.status, 503);
  EXPECT_FALSE(refused.headers["retry-after"].empty());
  client.read_events(first, 5);  // running streams continue
  limit_files(serving, RLIM_INFINITY);
  ASSERT_TRUE(Serving::eventually([&] { return written(serving); }));
  EXPECT_FALSE(json::parse(serving.get("/health").body).contains("problems"));
  client.read_events(first, 5);
  kill_daemon(serving);
  serving = start();
  expect_rest(serving, client, 1000);
}

TEST_F(JournalFaults, ADeletedFileIsNoticedAndWrittenAnew) {
  Serving serving = start();
  ResumableClient client;
  HttpClient first(serving.port);
  client.begin(first, "/v1/completions", resumable("slow", 400));
  client.read_events(first, 5);
  std::filesystem::remove(file());
  client.read_events(first, 5);
  EXPECT_TRUE(Serving::eventually([&] { return std::filesystem::exists(file()); }));
  client.read_events(first, 5);
  kill_daemon(serving);
  serving = start();
  expect_rest(serving, client, 400);
  // The same happens while nothing is written, and when another file has the name; that file is kept.
  std::filesystem::remove(file());
  std::ofstream(file()) << "somebody else's";
  EXPECT_TRUE(Serving::eventually([&] { return std::filesystem::exists(file() + ".other"); }));
  EXPECT_TRUE(Serving::eventually([&] { return std::filesystem::exists(file()); }));
  EXPECT_TRUE(written(serving));
}

TEST_F(JournalFaults, ASpoiltRecordCostsItsRequestAlone) {
  Serving serving = start();
  ResumableClient one, two;
  for (ResumableClient* client : {&one, &two}) {
    HttpClient connection(serving.port);
    client->begin(connection, "/v1/completions", resumable("x", 30));
    client->read_to_end(connection);
  }
  serving.daemon->signal(SIGTERM);
  ASSERT_EQ(serving.daemon->wait_for_exit(), 0);
  // In the first record after the header, which belongs to the first request.
  std::fstream stream(file(), std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(60);
  stream.put('\x7f').put('\x7f');
  stream.close();
  serving = start();
  EXPECT_EQ(serving.get("/v1/requests/" + one.id + "/events").status, 404);
  HttpClient again(serving.port);
  ResumableClient reader;
  reader.id = two.id;
  reader.resume(again);
  reader.read_to_end(again);
  expect_text(reader, 30);
  EXPECT_GT(serving.metric("bulkhead_journal_disk_damaged_bytes_total"), 0);
  EXPECT_TRUE(std::filesystem::exists(file() + ".damaged"));
}

TEST_F(JournalFaults, AStreamThatCatchesUpIsToBeAskedForAgain) {
  const Serving serving = start();
  ResumableClient client;
  HttpClient first(serving.port);
  client.begin(first, "/v1/completions", resumable("slow", 400));
  client.read_events(first, 3);
  HttpReply reply =
      HttpClient(serving.port)
          .request("GET", "/v1/requests/" + client.id + "/events", "", {"Last-Event-ID: 100000"});
  EXPECT_EQ(reply.status, 503);
  EXPECT_FALSE(reply.headers["retry-after"].empty());
  client.read_to_end(first);
  reply =
      HttpClient(serving.port)
          .request("GET", "/v1/requests/" + client.id + "/events", "", {"Last-Event-ID: 100000"});
  EXPECT_EQ(reply.status, 400);
}

}  // namespace
}  // namespace bulkhead::test
