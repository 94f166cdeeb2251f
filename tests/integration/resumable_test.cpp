// Streams that outlive their connection and, with a journal on disk, the daemon.
#include "tests/integration/resumable.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/support/temporary_folder.hpp"

namespace bulkhead::test {
namespace {

class JournalFolder {
 public:
  std::string file() const { return folder_.path() / "journal"; }
  std::string setting() const { return "isolation.journal_path=" + file(); }
  // For the order hold@N: the worker waits until this file is removed.
  std::string hold() const {
    const std::string path = folder_.path() / "hold";
    std::ofstream(path) << "x";
    return path;
  }

 private:
  const TemporaryFolder folder_{"resume"};
};

json resumable(const std::string& prompt, int tokens) {
  return {{"prompt", prompt},
          {"max_tokens", tokens},
          {"seed", 9},
          {"stream", true},
          {"return_token_ids", true},
          {"logprobs", 1},
          {"resumable", true},
          {"stream_options", {{"include_usage", true}}}};
}

void expect_whole(const ResumableClient& client, int tokens) {
  EXPECT_TRUE(client.complete);
  Events events = events_of(client.body());
  EXPECT_TRUE(events.done);
  std::string text;
  std::vector<int> ids, offsets;
  for (const json& chunk : events.chunks) {
    ASSERT_TRUE(chunk.contains("choices")) << chunk;
    EXPECT_EQ(chunk["id"], client.id);
    if (chunk["choices"].empty()) {
      EXPECT_EQ(chunk["usage"]["completion_tokens"], tokens);
      continue;
    }
    const json& choice = chunk["choices"][0];
    text += choice["text"].get<std::string>();
    for (int id : choice["token_ids"])
      ids.push_back(id);
    if (choice["logprobs"].is_object()) {
      for (int offset : choice["logprobs"]["text_offset"])
        offsets.push_back(offset);
    }
  }
  EXPECT_EQ(text, expected_text(9, tokens));
  EXPECT_EQ(ids, expected_ids(tokens));
  int offset = 0;
  ASSERT_EQ(offsets.size(), static_cast<std::size_t>(tokens));
  for (int i = 0; i < tokens; ++i) {
    EXPECT_EQ(offsets[static_cast<std::size_t>(i)], offset);
    offset += static_cast<int>((i == 0 ? "s9" : " t" + std::to_string(i)).size());
  }
}

// Every client that asks for the stream from its beginning must get what `client` got.
void expect_all_of_it_again(const Serving& serving, const ResumableClient& client) {
  ResumableClient reader;
  reader.id = client.id;
  HttpClient connection(serving.port);
  reader.resume(connection);
  reader.read_to_end(connection);
  EXPECT_EQ(reader.body(), client.body());
}

void kill_daemon(Serving& serving) {
  serving.daemon->signal(SIGKILL);
  EXPECT_EQ(serving.daemon->wait_for_exit(), -SIGKILL);
}

TEST(ResumableStream, GoesOnAfterABrokenConnection) {
  for (bool on_disk : {false, true}) {
    JournalFolder folder;
    const std::string hold = folder.hold();
    Serving serving = serve(on_disk ? std::vector{folder.setting()} : std::vector<std::string>{},
                            {{"FAKE_HOLD", hold}});
    ResumableClient client;
    HttpClient first(serving.port);
    // However late this process comes to it, it hangs up in the middle of the answer.
    client.begin(first, "/v1/completions", resumable("slow hold@100", 200));
    client.read_events(first, 20);
    first.hang_up();
    EXPECT_TRUE(Serving::eventually(
        [&] { return serving.metric("bulkhead_clients_lost_total{reason=\"hung_up\"}") == 1; }));
    std::filesystem::remove(hold);
    HttpClient second(serving.port);
    client.resume(second);
    client.read_to_end(second);
    expect_whole(client, 200);

    expect_all_of_it_again(serving, client);
  }
}

TEST(ResumableStream, GoesOnAfterTheDaemonWasKilled) {
  for (const char* transport : {"ipc.transport=shm", "ipc.transport=stdio"}) {
    JournalFolder folder;
    ResumableClient client;
    Serving serving = serve({transport, folder.setting()});
    {
      HttpClient first(serving.port);
      client.begin(first, "/v1/completions", resumable("slow", 300));
      client.read_events(first, 20);
      kill_daemon(serving);
      client.read_to_end(first);  // reads what the kernel still had
      EXPECT_FALSE(client.complete);
    }
    for (int round = 0; round < 4; ++round) {
      serving = serve({transport, folder.setting()});
      HttpClient again(serving.port);
      client.resume(again);
      client.read_events(again, 10);
      kill_daemon(serving);
      client.read_to_end(again);
    }
    serving = serve({transport, folder.setting()});
    HttpClient last(serving.port);
    client.resume(last);
    client.read_to_end(last);
    expect_whole(client, 300);
    EXPECT_EQ(serving.worker()["recovered_requests"], 1);
  }
}

TEST(ResumableStream, IsItsKeysAfterTheDaemonWasKilled) {
  JournalFolder folder;
  const std::string hold = folder.hold();
  const auto start = [&] {
    return serve({folder.setting(), "server.api_key=operator",
                  "server.keys=alice a-secret streams=1,bob b-secret"},
                 {{"FAKE_HOLD", hold}});
  };
  ResumableClient client, operators, bobs;
  client.key = "a-secret";
  operators.key = "operator";
  bobs.key = "b-secret";
  Serving serving = start();
  const auto status_of = [&serving](const ResumableClient& asking) {
    return serving.post("/v1/completions", R"({"prompt":"x","max_tokens":2})", asking.fields())
        .status;
  };
  {
    HttpClient first(serving.port);
    client.begin(first, "/v1/completions", resumable("hold@20", 30));
    client.read_events(first, 10);
    kill_daemon(serving);
    client.read_to_end(first);
  }
  std::ifstream journal(folder.file(), std::ios::binary);
  const std::string written((std::istreambuf_iterator<char>(journal)), {});
  EXPECT_NE(written.find("alice"), std::string::npos);
  EXPECT_EQ(written.find("a-secret"), std::string::npos);

  serving = start();
  const json requests = json::parse(
      HttpClient(serving.port).request("GET", "/v1/requests", "", operators.fields()).body);
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0]["key"], "alice");
  EXPECT_EQ(status_of(client), 429) << "the stream is the only one that the key may have";
  EXPECT_EQ(status_of(bobs), 200);
  std::filesystem::remove(hold);
  HttpClient again(serving.port);
  client.resume(again);
  client.read_to_end(again);
  expect_whole(client, 30);
  EXPECT_TRUE(Serving::eventually([&] { return status_of(client) == 200; }));
  EXPECT_TRUE(Serving::eventually([&] {
    std::istringstream log(serving.daemon->log());
    for (std::string line; std::getline(log, line);) {
      if (line.find(" recovered=true ") != std::string::npos && line.ends_with(" key=alice"))
        return true;
    }
    return false;
  })) << serving.daemon->log();
}

TEST(ResumableStream, TheJournalsFiguresAreReported) {
  JournalFolder folder;
  ResumableClient client;
  Serving serving = serve({folder.setting()});
  {
    HttpClient first(serving.port);
    client.begin(first, "/v1/completions", resumable("slow", 300));
    client.read_events(first, 20);
    EXPECT_EQ(serving.metric("bulkhead_journal_entries"), 1);
    EXPECT_GT(serving.metric("bulkhead_journal_bytes"), 0);
    EXPECT_GE(serving.metric("bulkhead_journal_disk_records_total"), 22);
    EXPECT_GT(serving.metric("bulkhead_journal_disk_commits_total"), 0);
    EXPECT_GT(serving.metric("bulkhead_journal_disk_commit_average_seconds"), 0);
    EXPECT_EQ(serving.metric("bulkhead_journal_disk_torn_bytes_total"), 0);
    const json journal = serving.worker()["journal"];
    EXPECT_EQ(journal["entries"], 1);
    EXPECT_GT(journal["bytes"], 0);
    EXPECT_GT(journal["disk"]["commits"], 0);
    EXPECT_GT(journal["disk"]["average_commit_ms"], 0);
    EXPECT_GT(journal["disk"]["file_bytes"], 0);
    kill_daemon(serving);
    client.read_to_end(first);
  }
  std::ofstream(folder.file(), std::ios::app) << "what was being written";
  serving = serve({folder.setting()});
  EXPECT_GE(serving.metric("bulkhead_journal_disk_torn_bytes_total"), 22);
  EXPECT_EQ(serving.metric("bulkhead_journal_disk_recovered_requests_total"), 1);
  EXPECT_EQ(serving.worker()["journal"]["disk"]["recovered_requests"], 1);
  HttpClient again(serving.port);
  client.resume(again);
  client.read_to_end(again);
  expect_whole(client, 300);
  EXPECT_EQ(serving.metric("bulkhead_journal_entries"), 0);
  EXPECT_TRUE(serve().worker()["journal"]["disk"].is_null());
}

TEST(ResumableStream, ManyGoOnTogetherAndAWorkerMayDieToo) {
  JournalFolder folder;
  Serving serving = serve({folder.setting()});
  std::vector<ResumableClient> clients(12);
  {
    std::vector<std::unique_ptr<HttpClient>> connections;
    for (std::size_t i = 0; i < clients.size(); ++i) {
      connections.push_back(std::make_unique<HttpClient>(serving.port));
      clients[i].begin(*connections[i], "/v1/completions",
                       resumable(i == 5 ? "slow kill@90" : "slow", 120));
    }
    for (std::size_t i = 0; i < clients.size(); ++i)
      clients[i].read_events(*connections[i], 3 + i);
    kill_daemon(serving);
  }
  serving = serve({folder.setting()});
  for (ResumableClient& client : clients) {
    HttpClient connection(serving.port);
    client.resume(connection);
    client.read_to_end(connection);
    expect_whole(client, 120);
  }
}

TEST(ResumableStream, ChatGoesOnToo) {
  JournalFolder folder;
  ResumableClient client, undisturbed;
  json request = {{"messages", {{{"role", "user"}, {"content", "slow"}}}},
                  {"max_tokens", 60},
                  {"seed", 9},
                  {"stream", true},
                  {"logprobs", true},
                  {"top_logprobs", 2},
                  {"resumable", true}};
  Serving serving = serve({folder.setting()});
  {
    HttpClient first(serving.port);
    client.begin(first, "/v1/chat/completions", request);
    client.read_events(first, 10);
    kill_daemon(serving);
  }
  serving = serve({folder.setting()});
  HttpClient second(serving.port), other(serving.port);
  client.resume(second);
  client.read_to_end(second);
  undisturbed.begin(other, "/v1/chat/completions", request);
  undisturbed.read_to_end(other);
  ASSERT_EQ(client.data.size(), undisturbed.data.size());
  for (std::size_t i = 0; i + 1 < client.data.size(); ++i) {
    EXPECT_EQ(json::parse(client.data[i].substr(6))["choices"],
              json::parse(undisturbed.data[i].substr(6))["choices"]);
  }
  EXPECT_EQ(client.data.back(), "data: [DONE]");
}

TEST(ResumableStream, AFinishedOneCanBeReadAgainByTheNextDaemon) {
  JournalFolder folder;
  ResumableClient client;
  Serving serving = serve({folder.setting()});
  {
    HttpClient first(serving.port);
    client.begin(first, "/v1/completions", resumable("x", 30));
    client.read_to_end(first);
    expect_whole(client, 30);
    serving.daemon->signal(SIGTERM);
    EXPECT_EQ(serving.daemon->wait_for_exit(), 0);
  }
  struct stat info {};
  ASSERT_EQ(::stat(folder.file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  serving = serve({folder.setting()});
  expect_all_of_it_again(serving, client);
}

TEST(ResumableStream, ATornJournalIsCutAndTheStreamGoesOn) {
  JournalFolder folder;
  ResumableClient client;
  Serving serving = serve({folder.setting()});
  {
    HttpClient first(serving.port);
    client.begin(first, "/v1/completions", resumable("slow", 100));
    client.read_events(first, 20);
    kill_daemon(serving);
  }
  std::ofstream(folder.file(), std::ios::binary | std::ios::app) << "half a rec";
  serving = serve({folder.setting()});
  EXPECT_TRUE(serving.daemon->says("a record's head is cut off")) << serving.daemon->log();
  HttpClient second(serving.port);
  client.resume(second);
  client.read_to_end(second);
  expect_whole(client, 100);
}

TEST(ResumableStream, AnotherWayOfComputingEndsItWithAnError) {
  JournalFolder folder;
  ResumableClient client;
  Serving serving = serve({folder.setting()}, {{"FAKE_NUMERICS_BY_PID", "1"}});
  {
    HttpClient first(serving.port);
    client.begin(first, "/v1/completions", resumable("slow", 100));
    client.read_events(first, 20);
    kill_daemon(serving);
  }
  serving = serve({folder.setting()}, {{"FAKE_NUMERICS_BY_PID", "1"}});
  HttpClient second(serving.port);
  client.resume(second);
  client.read_to_end(second);
  json last = json::parse(client.data.back().substr(6));
  EXPECT_EQ(last["error"]["code"], "not_resumable") << last;
  EXPECT_EQ(serving.worker()["restarts"], 0);
}

TEST(ResumableStream, OfAModelThatIsGoneEndsWithItsName) {
  JournalFolder folder;
  const std::string file = folder.file() + ".gguf";
  std::ofstream(file) << "the scripted worker does not read it";
  ResumableClient client;
  Serving serving = serve(
      {folder.setting(), "models.0.path=builtin", "models.1.path=" + file, "models.1.name=mine"});
  {
    HttpClient first(serving.port);
    json request = resumable("slow", 100);
    request["model"] = "mine";
    client.begin(first, "/v1/completions", request);
    client.read_events(first, 20);
    kill_daemon(serving);
  }
  serving = serve({folder.setting()});
  EXPECT_TRUE(serving.daemon->says("journal: 0 stream(s) go on, 0 can be read again, 1 ended"))
      << serving.daemon->log();
  HttpClient second(serving.port);
  client.resume(second);
  client.read_to_end(second);
  const json error = json::parse(client.data.back().substr(6))["error"];
  EXPECT_EQ(error["code"], "not_resumable");
  EXPECT_NE(error["message"].get<std::string>().find("the model 'mine'"), std::string::npos)
      << error;
}

TEST(ResumableStream, EndsWhenNobodyResumesIt) {
  JournalFolder folder;
  Serving serving = serve({folder.setting(), "isolation.resume_window_s=1"});
  ResumableClient client;
  HttpClient first(serving.port);
  client.begin(first, "/v1/completions", resumable("slow", 100000));
  client.read_events(first, 3);
  first.hang_up();
  const std::string path = "/v1/requests/" + client.id + "/events";
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 0; }));
  EXPECT_EQ(serving.get(path).status, 404);
  EXPECT_TRUE(serving.daemon->says("nobody resumed it"));
  kill_daemon(serving);
  serving = serve({folder.setting(), "isolation.resume_window_s=1"});
  // The kill may have come before the stream's end was on disk. Then the new daemon continues the stream for as long.
  if (serving.daemon->log().find("1 stream(s) go on") != std::string::npos) {
    EXPECT_TRUE(Serving::eventually(
        [&] { return serving.daemon->log().find("nobody resumed it") != std::string::npos; }));
  }
  EXPECT_EQ(serving.get(path).status, 404);
}

TEST(ResumableStream, HasOneReaderTheLatest) {
  Serving serving = serve();
  ResumableClient client, rest;
  HttpClient first(serving.port), second(serving.port);
  client.begin(first, "/v1/completions", resumable("slow", 100));
  client.read_events(first, 5);
  ResumableClient later = client;
  later.resume(second);
  client.read_to_end(first);
  EXPECT_TRUE(client.complete);
  EXPECT_NE(client.data.back(), "data: [DONE]");
  later.read_to_end(second);
  expect_whole(later, 100);
}

TEST(ResumableStream, LongOneIsGivenToItsReaderInPieces) {
  // This is much more than a connection may have unsent.
  Serving serving = serve();
  ResumableClient client;
  HttpClient first(serving.port);
  json request = {
      {"prompt", "big"}, {"max_tokens", 4000}, {"seed", 9}, {"stream", true}, {"resumable", true}};
  client.begin(first, "/v1/completions", request);
  client.read_events(first, 1);
  first.hang_up();
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 0; }));
  HttpClient second(serving.port);
  client.resume(second);
  client.read_to_end(second);
  EXPECT_TRUE(client.complete);
  EXPECT_EQ(client.data.back(), "data: [DONE]");
}

TEST(ResumableStream, OrdinaryErrorsAndHangUpsStayOrdinary) {
  JournalFolder folder;
  Serving serving = serve({folder.setting()});
  EXPECT_EQ(serving.complete(resumable("toolong", 5)).status, 400);
  for (json change : {json{{"stream", false}, {"stream_options", nullptr}}, json{{"n", 2}},
                      json{{"prompt", {"a", "b"}}}, json{{"resumable", "yes"}}}) {
    json request = resumable("x", 5);
    request.update(change);
    HttpReply reply = serving.complete(request);
    EXPECT_EQ(reply.status, 400) << change;
    EXPECT_EQ(json::parse(reply.body)["error"]["param"], "resumable") << reply.body;
  }
  HttpClient client(serving.port);
  json plain = resumable("slow", 100000);
  plain.erase("resumable");
  client.send("POST", "/v1/completions", plain.dump());
  HttpReply head = client.receive_head();
  // The request has an id, but the stream can't be resumed by it.
  EXPECT_EQ(serving.get("/v1/requests/" + head.headers["x-request-id"] + "/events").status, 404);
  client.hang_up();
  EXPECT_TRUE(Serving::eventually([&] { return serving.worker()["outstanding_requests"] == 0; }));
}

TEST(ResumableStream, EventsAreGivenToWhomMayHaveThem) {
  Serving serving = serve({"server.api_key=secret"});
  const std::vector<std::string> key = {"Authorization: Bearer secret"};
  HttpReply done = serving.post("/v1/completions", resumable("x", 5).dump(), key);
  ASSERT_EQ(done.status, 200);
  const std::string path = "/v1/requests/" + done.headers["x-request-id"] + "/events";
  auto get = [&](const std::string& method, const std::string& target,
                 std::vector<std::string> fields) {
    return HttpClient(serving.port).request(method, target, "", fields).status;
  };
  EXPECT_EQ(get("GET", path, key), 200);
  EXPECT_EQ(get("GET", path, {}), 401);
  EXPECT_EQ(get("HEAD", path, key), 405);
  EXPECT_EQ(get("GET", path, {key[0], "Origin: http://evil.example"}), 403);
  EXPECT_EQ(get("GET", "/v1/requests/cmpl-0/events", key), 404);
  EXPECT_EQ(get("GET", path, {key[0], "Last-Event-ID: 3"}), 200);
  for (const char* wrong : {"Last-Event-ID: 1000", "Last-Event-ID: x", "Last-Event-ID: -1"})
    EXPECT_EQ(get("GET", path, {key[0], wrong}), 400) << wrong;
}

TEST(JournalOnDisk, SaysAtTheStartWhatIsWrongWithIt) {
  JournalFolder folder;
  std::ofstream(folder.file()) << "something of somebody's";
  for (const auto& [path, words] :
       {std::pair<std::string, std::string>{folder.file(), "no journal of Bulkhead's"},
        {folder.file() + "/below", "isolation.journal_path"}}) {
    Daemon::Options options;
    options.arguments = {"--set", "isolation.journal_path=" + path};
    options.environment["BULKHEAD_WORKER"] = FAKE_WORKER;
    Daemon daemon(BULKHEADD, options);
    EXPECT_EQ(daemon.wait_for_exit(), 1);
    EXPECT_TRUE(daemon.says(words)) << daemon.log();
  }
}

}  // namespace
}  // namespace bulkhead::test
