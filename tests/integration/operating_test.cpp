// What operators see and do: requests in progress, workers' logs, and the tool's commands for both.
#include <signal.h>

#include <gmock/gmock.h>

#include "tests/integration/terminal.hpp"
#include "tests/integration/tool.hpp"
#include "tests/integration/watching.hpp"

namespace bulkhead::test {
namespace {

json requests(const Serving& serving) {
  return json::parse(serving.get("/v1/requests").body);
}

std::unique_ptr<HttpClient> begin(const Serving& serving, const json& body) {
  auto client = std::make_unique<HttpClient>(serving.port);
  client->send("POST", "/v1/completions", body.dump());
  return client;
}

// People try the command lines of other servers.
TEST(CommandLineOfTheDaemon, SaysWhatToWriteInstead) {
  const Outcome file = run_shell(std::string(BULKHEADD) + " model.gguf");
  EXPECT_EQ(file.code, 2);
  EXPECT_NE(file.out.find("bulkheadd --model model.gguf"), std::string::npos) << file.out;
  const Outcome verb = run_shell(std::string(BULKHEADD) + " serve model.gguf");
  EXPECT_NE(verb.out.find("bulkheadd --model model.gguf"), std::string::npos) << verb.out;
  const Outcome alone = run_shell(std::string(BULKHEADD) + " serve");
  EXPECT_NE(alone.out.find("leave out 'serve'"), std::string::npos) << alone.out;
  const Outcome port = run_shell(std::string(BULKHEADD) + " --port 8080");
  EXPECT_EQ(port.code, 2);
  EXPECT_NE(port.out.find("--set server.port="), std::string::npos) << port.out;
  const auto says = [](const std::string& arguments) {
    return run_shell(std::string(BULKHEADD) + " " + arguments).out;
  };
  using testing::HasSubstr;
  EXPECT_THAT(says("--log-level debug"), HasSubstr("write `--set log.level=VALUE`"));
  EXPECT_THAT(says("--model=a.gguf --port 80"), HasSubstr("write `--set server.port=VALUE`"));
  EXPECT_THAT(says("--ctx-size 4096"), HasSubstr("`bulkheadd --help`"));
  for (const char* dashes : {"-", "-- -", "-- x"}) {
    EXPECT_EQ(run_shell(std::string(BULKHEADD) + " " + dashes).code, 2) << dashes;
  }
  EXPECT_THAT(says("-m model.gguf"), HasSubstr("write `bulkheadd --model model.gguf`"));
  EXPECT_THAT(says("--set server.port 8080"), HasSubstr("write `--set server.port=8080`"));
  EXPECT_THAT(says("--set server.port=0 server.host=x"),
              HasSubstr("write `bulkheadd --set server.host=x`"));
  const Outcome two = run_shell(std::string(BULKHEADD) + " --model a.gguf --model=b.gguf");
  EXPECT_EQ(two.code, 2);
  EXPECT_NE(two.out.find("--set models.0.path=a.gguf --set models.1.path=b.gguf"),
            std::string::npos)
      << two.out;
}

TEST(Operating, RequestsInProgressAreListedAsLongAsTheyLast) {
  const Serving serving = serve();
  EXPECT_EQ(requests(serving), json::array());
  auto slow = begin(serving, stream_of("slow", 2000));
  const std::string id = slow->receive_head().headers.at("x-request-id");
  json resumable = stream_of("slow", 2000);
  resumable["resumable"] = true;
  auto second = begin(serving, resumable);
  EXPECT_EQ(second->receive_head().status, 200);
  auto silent = begin(serving, stream_of("never", 3));
  EXPECT_TRUE(Serving::eventually([&] { return requests(serving).size() == 3; }))
      << requests(serving);
  EXPECT_TRUE(Serving::eventually([&] {
    const json all = requests(serving);
    return all[0]["completion_tokens"] > 3 && all[1]["completion_tokens"] > 3;
  })) << requests(serving);
  const json all = requests(serving);
  EXPECT_EQ(all[0]["id"], id);
  EXPECT_EQ(all[0]["endpoint"], "/v1/completions");
  EXPECT_EQ(all[0]["state"], "answering");
  EXPECT_EQ(all[0]["workers"], json{"builtin-0"});
  EXPECT_EQ(all[0]["prompt_tokens"], 4);
  EXPECT_GT(all[0]["first_token_ms"], 0);
  EXPECT_GT(all[0]["age_ms"], all[2]["age_ms"]);
  EXPECT_EQ(all[2]["state"], "reading");
  EXPECT_TRUE(all[2]["first_token_ms"].is_null());
  EXPECT_EQ(all[2]["tries"], 1);

  const Outcome table = tool(serving, "requests");
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find(id), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("reading"), std::string::npos) << table.out;
  EXPECT_EQ(json::parse(tool(serving, "requests --json").out).size(), 3U);

  // After their worker's death they are the same requests, and the next worker has them.
  send_signal(find(serving, "builtin-0")["pid"].get<pid_t>(), SIGKILL);
  EXPECT_TRUE(Serving::eventually([&] { return requests(serving)[0]["tries"] == 2; }));
  EXPECT_EQ(requests(serving)[0]["id"], id);
  slow.reset();
  silent.reset();
  second.reset();  // the stream continues without a reader
  EXPECT_TRUE(Serving::eventually([&] { return requests(serving).size() == 1; }));
}

TEST(Operating, ARequestThatNoWorkerHasWaits) {
  const Serving serving =
      serve({"models.0.name=one", "models.0.load=first_use"}, {{"FAKE_LOAD_MS", "700"}});
  auto client = begin(serving, stream_of("hello", 3));
  EXPECT_TRUE(Serving::eventually([&] { return requests(serving).size() == 1; }));
  const json waiting = requests(serving)[0];
  EXPECT_EQ(waiting["state"], "waiting");
  EXPECT_EQ(waiting["workers"], json::array());
  EXPECT_EQ(waiting["model"], "one");
  EXPECT_EQ(client->receive_head().status, 200);
  expect_whole(rest_of(*client), 3);
}

TEST(Operating, AWorkersLogOutlivesItsProcess) {
  const Serving serving = serve();
  EXPECT_EQ(serving.complete({{"prompt", "scribble"}, {"max_tokens", 2}}).status, 200);
  const auto log = [&] {
    std::string text;
    const json body = json::parse(serving.get("/v1/workers/builtin-0/log").body);
    for (const json& line : body["lines"])
      text += line["text"].get<std::string>() + "\n";
    return text;
  };
  EXPECT_TRUE(Serving::eventually([&] { return log().find("\\x1b") != std::string::npos; }))
      << log();
  EXPECT_EQ(log().find('\x1b'), std::string::npos);
  send_signal(find(serving, "builtin-0")["pid"].get<pid_t>(), SIGKILL);
  EXPECT_TRUE(Serving::eventually([&] { return log().find("died: ") != std::string::npos; }))
      << log();
  EXPECT_NE(log().find("\\x1b"), std::string::npos);

  const Outcome last = tool(serving, "logs builtin-0 --lines 2");
  EXPECT_EQ(last.code, 0);
  EXPECT_EQ(std::ranges::count(last.out, '\n'), 2) << last.out;
  const Outcome whole = tool(serving, "logs builtin-0");
  EXPECT_NE(whole.out.find("died: "), std::string::npos) << whole.out;
  EXPECT_EQ(serving.get("/v1/workers/other-0/log").status, 404);
  EXPECT_EQ(tool(serving, "logs other-0").code, 1);
  // 124 is the code of `timeout`: the command would wait for the next line.
  const Outcome left =
      run_shell("bash -c \"timeout 20 " BULKHEAD_TOOL " logs builtin-0 --follow --url " +
                url_of(serving) + " | head -1 >/dev/null; exit \\${PIPESTATUS[0]}\"");
  EXPECT_EQ(left.code, 0) << left.out;
}

// The load test sends more requests than it may have threads at a time.
TEST(Operating, ALoadTestByRateSendsAllItsRequests) {
  const Serving serving = serve({"server.max_queue=4096"});
  const Outcome done = run_shell(BULKHEAD_TOOL " load-test " + url_of(serving) +
                                 " --completions --rate 10000 --requests 2100 --prompt-words 1 "
                                 "--max-tokens 1 --json");
  const std::size_t begin = done.out.find('{');
  ASSERT_NE(begin, std::string::npos) << done.out;
  EXPECT_EQ(json::parse(done.out.substr(begin))["requests"], 2100) << done.out;
}

// Subcommands have the same options as their command, and must not let the environment override the command line.
TEST(Operating, TheLineCountsMoreThanTheEnvironment) {
  Serving serving = serve({}, {{"BULKHEAD_API_KEY", "secret"}});
  for (const char* command : {"workers", "models", "models list", "requests"}) {
    const std::string line = std::string(BULKHEAD_TOOL) + " " + command;
    const std::string url = url_of(serving);
    const std::string elsewhere = "BULKHEAD_URL=http://127.0.0.1:1 BULKHEAD_API_KEY=wrong ";
    EXPECT_EQ(run_shell(elsewhere + line + " --url " + url + " --api-key secret").code, 0)
        << command;
    EXPECT_EQ(run_shell("BULKHEAD_URL=" + url + " BULKHEAD_API_KEY=secret " + line).code, 0)
        << command;
    EXPECT_EQ(run_shell("BULKHEAD_URL='' " + line + " --url " + url + " --api-key secret").code, 0);
  }
  EXPECT_NE(run_shell("BULKHEAD_URL=http://127.0.0.1:1 " BULKHEAD_TOOL " workers").out.find(":1;"),
            std::string::npos);
}

TEST(Operating, DrainAndRestartPrintTheApisJson) {
  const Serving serving = serve();
  for (const char* action : {"restart", "drain"}) {
    EXPECT_TRUE(
        Serving::eventually([&] { return find(serving, "builtin-0")["state"] == "ready"; }));
    const Outcome done = tool(serving, "workers "s + action + " builtin-0 --json");
    EXPECT_EQ(done.code, 0) << done.out;
    EXPECT_TRUE(json::parse(done.out).is_object()) << done.out;
  }
  EXPECT_EQ(tool(serving, "workers drain nobody --json").code, 1);
}

TEST(Operating, TopPrintsAFrameForScripts) {
  const Serving serving = serve();
  auto slow = begin(serving, stream_of("slow", 4000));
  EXPECT_EQ(slow->receive_head().status, 200);
  const Outcome once = tool(serving, "top --once --json --interval 0.3");
  EXPECT_EQ(once.code, 0) << once.out;
  const json frame = json::parse(once.out);
  EXPECT_EQ(frame["requests"], 1);
  EXPECT_GT(frame["tokens_per_second"], 0);
  EXPECT_GT(frame["inter_token_ms"], 0);
  ASSERT_EQ(frame["workers"].size(), 1U);
  EXPECT_EQ(frame["workers"][0]["name"], "builtin-0");
  EXPECT_EQ(frame["workers"][0]["state"], "ready");
  const Outcome text =
      tool(serving, "top --interval 0.1");  // the output is not a terminal, so there is one frame
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.out.find('\x1b'), std::string::npos);
  EXPECT_NE(text.out.find("builtin-0"), std::string::npos) << text.out;
  EXPECT_EQ(tool(serving, "top --once --sort colour").code, 2);
}

// `timeout 60 bulkhead top`, for example, must not leave a terminal without a cursor.
TEST(Operating, TopGivesTheTerminalBackWhenItIsTerminated) {
  const Serving serving = serve();
  const Home home;
  Terminal terminal({"top", "--url", url_of(serving), "--interval", "0.1"}, home.path);
  ASSERT_TRUE(terminal.shows("builtin-0")) << terminal.shown();
  EXPECT_FALSE(terminal.edits_lines());
  terminal.signal(SIGTERM);
  EXPECT_TRUE(terminal.shows("\033[?25h\033[?1049l")) << terminal.shown();
  EXPECT_EQ(terminal.exit_code(), 0);
}

// While the shell has the terminal, it must be as the shell left it.
TEST(Operating, TopStopsAtCtrlZAndComesBack) {
  const Serving serving = serve();
  const Home home;
  const std::string top = BULKHEAD_TOOL " top --interval 0.1 --url "s + url_of(serving);
  Terminal terminal("set -m; " + top + "; echo in the shell; read line; fg", home.path);
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(terminal.shows("\033[?1049h")) << terminal.shown();
    ASSERT_TRUE(terminal.shows("builtin-0")) << terminal.shown();
    EXPECT_FALSE(terminal.edits_lines());
    if (round > 0) break;
    terminal.type("\x1a");
    ASSERT_TRUE(terminal.shows("\033[?25h\033[?1049l")) << terminal.shown();
    ASSERT_TRUE(terminal.shows("in the shell")) << terminal.shown();
    EXPECT_TRUE(terminal.edits_lines());
    terminal.type("\n");
  }
  terminal.type("q");
  EXPECT_EQ(terminal.exit_code(), 0);
}

// An operator looks at `top` because the daemon hangs.
TEST(Operating, TopEndsAndSaysSoWhenTheDaemonHangs) {
  const Serving serving = serve();
  const Home home;
  Terminal terminal({"top", "--url", url_of(serving), "--interval", "0.1", "--timeout", "1"},
                    home.path);
  ASSERT_TRUE(terminal.shows("builtin-0")) << terminal.shown();
  serving.daemon->signal(SIGSTOP);
  EXPECT_TRUE(terminal.shows("does not answer within 1 s")) << terminal.shown();
  terminal.type("q");
  EXPECT_EQ(terminal.exit_code(), 0);
  serving.daemon->signal(SIGCONT);
}

TEST(Operating, TopsKeysDrainAndRestart) {
  const Serving serving = serve();
  const Home home;
  Terminal terminal({"top", "--url", url_of(serving), "--interval", "0.1"}, home.path);
  ASSERT_TRUE(terminal.shows("builtin-0")) << terminal.shown();
  terminal.type("js");  // several keys at once, as after a wait for a slow daemon
  ASSERT_TRUE(terminal.shows("(sorted by state)")) << terminal.shown();
  terminal.type("dy");  // pasted: the second key is no answer to a question that nobody has seen
  ASSERT_TRUE(terminal.shows("drain builtin-0? y/n")) << terminal.shown();
  terminal.type("n");
  ASSERT_TRUE(terminal.shows("(sorted by state)")) << terminal.shown();
  EXPECT_EQ(find(serving, "builtin-0")["state"], "ready");
  terminal.type("d");
  ASSERT_TRUE(terminal.shows("drain builtin-0? y/n")) << terminal.shown();
  terminal.type("n");
  ASSERT_TRUE(terminal.shows("(sorted by state)")) << terminal.shown();
  EXPECT_EQ(find(serving, "builtin-0")["state"], "ready");
  terminal.type("d");
  ASSERT_TRUE(terminal.shows("drain builtin-0? y/n"));
  terminal.type("y");
  ASSERT_TRUE(terminal.shows("builtin-0 is draining")) << terminal.shown();
  ASSERT_TRUE(terminal.shows("drained")) << terminal.shown();
  EXPECT_EQ(find(serving, "builtin-0")["state"], "drained");
  terminal.type("r");
  ASSERT_TRUE(terminal.shows("restart builtin-0? y/n"));
  terminal.type("y");
  ASSERT_TRUE(terminal.shows("ready")) << terminal.shown();
  terminal.type("q");
  EXPECT_EQ(terminal.exit_code(), 0);
}

}  // namespace
}  // namespace bulkhead::test
