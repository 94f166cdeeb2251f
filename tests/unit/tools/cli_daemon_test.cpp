// The subcommands that ask a daemon: without one, and with servers that answer otherwise.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/canned_server.hpp"
#include "tests/unit/tools/cli_runs.hpp"

namespace bulkhead {
namespace {

using namespace std::string_literals;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST_F(Cli, WithoutADaemonEachCommandSaysHowToStartOne) {
  for (const char* command : {"chat", "complete hello", "workers", "workers drain w0", "models",
                              "models load m", "top --once", "requests", "logs w0"}) {
    const Outcome none = run(kTool + " " + command + " --url http://127.0.0.1:1");
    EXPECT_EQ(none.code, 1) << command;
    EXPECT_THAT(none.err, HasSubstr("start it with `bulkheadd`")) << command;
  }
  EXPECT_EQ(run(kTool + " load-test http://127.0.0.1:1").code, 1);
  EXPECT_EQ(run(kTool + " load-test --url http://127.0.0.1:1").code, 1);
  const Outcome bundle =
      run(kTool + " doctor --bundle " + path("report.tar") + " --url http://127.0.0.1:1");
  EXPECT_EQ(bundle.code, 0) << bundle.err;
  EXPECT_THAT(bundle.err, StartsWith("bulkhead: not in the archive: health.json, settings.yaml, "));
  EXPECT_EQ(std::ranges::count(bundle.err, '\n'), 1) << bundle.err;
  EXPECT_EQ(run(kTool + " load-test --rate 3 --concurrency 4 http://127.0.0.1:1").code, 2);
}

// The server takes connections and answers none.
TEST_F(Cli, ADaemonThatHangsIsGivenUp) {
  const std::vector<std::vector<std::string>> no_answers;
  const test::CannedServer server(no_answers);
  const std::string text = write("text", "one");
  const std::string wanted = "bulkhead: " + server.url() + " does not answer within 0.1 s\n";
  for (const std::string& command :
       {"chat"s, "complete hello"s, "workers"s, "workers drain w0"s, "models"s, "models load m"s,
        "top --once"s, "requests"s, "logs w0"s, "logs w0 --follow"s,
        "perplexity m --file " + text}) {
    const Outcome none = run(kTool + " " + command + " --timeout 0.1 --url " + server.url());
    EXPECT_EQ(none.code, 1) << command;
    EXPECT_EQ(none.err, wanted) << command;
  }
  EXPECT_EQ(run(kTool + " workers --timeout -1").code, 2);
  const Outcome bundle = run(kTool + " doctor --bundle " + path("report.tar") +
                             " --timeout 0.1 --url " + server.url());
  EXPECT_EQ(bundle.code, 0);
  EXPECT_EQ(bundle.err,
            "bulkhead: not in the archive: health.json, settings.yaml, metrics.txt, models.json, "
            "requests.json, crashes.json, workers.json: " +
                server.url() + " does not answer within 0.1 s\n");
}

// The command waits for the model, however long that takes, but not for a daemon that has begun to hang.
TEST_F(Cli, ADaemonThatHangsWhileAModelLoadsIsGivenUp) {
  const std::string loading = R"({"id": "m", "state": "loading"})";
  const test::CannedServer server({{test::whole_answer("202 Accepted", loading)},
                                   {test::whole_answer("200 OK", loading)},
                                   {test::whole_answer("200 OK", loading)}});
  const Outcome load = run(kTool + " models load m --timeout 0.3 --url " + server.url());
  EXPECT_EQ(load.code, 1);
  EXPECT_THAT(load.err, HasSubstr("does not answer within 0.3 s"));
}

// A server of another kind is no daemon without work, and what it sends is not the API's JSON.
TEST_F(Cli, AnAnswerThatIsNotADaemonsIsAFailure) {
  for (const char* command :
       {"workers", "workers --json", "models", "models --json", "requests", "requests --json",
        "top --once --interval 0.1", "top --once --interval 0.1 --json"}) {
    const std::string page = test::whole_answer("200 OK", "<html></html>");
    const test::CannedServer server({{page}, {page}, {page}, {page}});
    const Outcome other = run(kTool + " " + command + " --url " + server.url());
    EXPECT_EQ(other.code, 1) << command << other.out;
    EXPECT_THAT(other.out, IsEmpty()) << command;
    EXPECT_THAT(other.err, HasSubstr("the answer of " + server.url())) << command;
  }
}

// A proxy before the daemon may answer an order with a page of its own.
TEST_F(Cli, AnOrderThatNoDaemonHasTakenIsAFailure) {
  for (const char* command :
       {"workers drain w", "workers restart w --json", "models load m", "models unload m --json",
        "models load m --no-wait", "models load m --no-wait --json"}) {
    for (const std::string& answer : {test::whole_answer("200 OK", "<html></html>"),
                                      test::whole_answer("202 Accepted", "accepted")}) {
      const test::CannedServer server({{answer}});
      const Outcome other = run(kTool + " " + command + " --url " + server.url());
      EXPECT_EQ(other.code, 1) << command << other.out;
      EXPECT_THAT(other.out, IsEmpty()) << command;
      EXPECT_THAT(other.err, HasSubstr("agrees to nothing")) << command;
    }
  }
}

// The daemon was started again between two looks: its lines have small numbers, and only their time is a later one.
TEST_F(Cli, FollowedLogsGoOnWithTheNextDaemon) {
  const auto lines = [](const std::string& list) {
    return test::whole_answer("200 OK", R"({"worker": "w", "lines": [)" + list + "]}");
  };
  const std::string before = R"({"number": 70, "time": "2026-01-01T00:00:00.000Z", "text": "old"})";
  const std::string after = R"({"number": 3, "time": "2026-01-01T00:00:01.000Z", "text": "new"})";
  const test::CannedServer server({{lines(before)}, {lines(after)}, {lines(after)}, {""}});
  const Outcome followed = run(kTool + " logs w --follow --url " + server.url());
  EXPECT_EQ(followed.code, 1) << "the last answer breaks off";
  EXPECT_EQ(followed.out, "2026-01-01T00:00:00.000Z old\n2026-01-01T00:00:01.000Z new\n");
}

// vLLM's name for what most servers call reasoning_content.
TEST_F(Cli, ALoadTestTakesReasoningForTokensWhateverItIsCalled) {
  for (const std::string name : {"content", "reasoning_content", "reasoning"}) {
    const std::string body =
        R"(data: {"choices": [{"delta": {")" + name + R"(": "a"}}]})" + "\n\ndata: [DONE]\n\n";
    const test::CannedServer server({{test::whole_answer("200 OK", body)}});
    const Outcome test =
        run(kTool + " load-test --requests 1 --model m --json --url " + server.url());
    EXPECT_EQ(test.code, 0) << test.out << test.err;
    EXPECT_GT(nlohmann::json::parse(test.out)["first_token_ms"]["max"], 0) << name;
  }
}

TEST_F(Cli, ACompletionForAScriptSaysHowItEnded) {
  const std::string ready = test::whole_answer("200 OK", R"({"status": "ok"})");
  const std::string events =
      R"(data: {"choices": [{"text": " upon"}]})"
      "\n\n"
      R"(data: {"choices": [{"text": " a\u00e9", "finish_reason": "length"}]})"
      "\n\n"
      R"(data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})"
      "\n\ndata: [DONE]\n\n";
  for (const bool echo : {false, true}) {
    const test::CannedServer server({{ready}, {test::whole_answer("200 OK", events)}});
    const Outcome done =
        run(kTool + " complete Once --json --url " + server.url() + (echo ? " --echo" : ""));
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_EQ(nlohmann::json::parse(done.out),
              (nlohmann::json{{"text", echo ? "Once upon a\u00e9" : " upon a\u00e9"},
                              {"finish_reason", "length"},
                              {"prompt_tokens", 3},
                              {"completion_tokens", 2}}));
    EXPECT_THAT(server.request(1), HasSubstr("include_usage"));
  }
}

TEST_F(Cli, ANameThatIsNotUtf8EndsNoCommand) {
  const std::string refusal =
      test::whole_answer("404 Not Found", R"({"error": {"message": "no such model"}})");
  for (const char* command : {"models load 'a\xff'", "models unload 'a\xff'"}) {
    const test::CannedServer server({{refusal}});
    const Outcome named = run(kTool + " " + command + " --url " + server.url());
    EXPECT_EQ(named.code, 1) << command;
    EXPECT_EQ(named.err, "bulkhead: no such model\n") << command;
  }
  const test::CannedServer server({{refusal}});
  const Outcome load = run(kTool + " load-test --requests 1 --model 'a\xff' " + server.url());
  EXPECT_EQ(load.code, 1);
  EXPECT_THAT(load.err + load.out, HasSubstr("no such model"));
}

// The daemon is asked about the name itself, and not about what a terminal shows of it.
TEST_F(Cli, AModelsNameMayHaveALineEnd) {
  const test::CannedServer server(
      {{test::whole_answer("202 Accepted", R"({"id": "a\nb", "state": "loading"})")},
       {test::whole_answer("200 OK", R"({"id": "a\nb", "state": "loaded"})")}});
  const Outcome load = run(kTool + " models load 'a\nb' --url " + server.url());
  EXPECT_EQ(load.code, 0) << load.err;
  EXPECT_EQ(load.out, "a\\nb: loaded\n");
  EXPECT_THAT(server.request(1), StartsWith("GET /v1/models/a%0Ab "));
}

TEST_F(Cli, LoadingADrainedModelSaysWhatToDo) {
  const std::string drained = R"({"id": "m", "state": "drained"})";
  const test::CannedServer server(
      {{test::whole_answer("202 Accepted", drained)}, {test::whole_answer("200 OK", drained)}});
  const Outcome load = run(kTool + " models load m --url " + server.url());
  EXPECT_EQ(load.code, 1);
  EXPECT_EQ(load.err,
            "bulkhead: the workers of the model m are drained; `bulkhead workers restart NAME` "
            "starts one again\n");
}

// As root, `--bundle /dev/null` took the device from all other users.
TEST_F(Cli, ABundleTakesNoPipeFromOthers) {
  const std::string pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(::chmod(pipe.c_str(), 0666), 0);
  const Outcome bundle = run("cat " + pipe + " > " + path("copy.tar") + " & " + kTool +
                             " doctor --bundle " + pipe + " --url http://127.0.0.1:1; wait");
  EXPECT_THAT(read(path("copy.tar")), HasSubstr("README.txt")) << bundle.err;
  struct stat status {};
  ASSERT_EQ(::stat(pipe.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0666U);
}

TEST_F(Cli, ABundleMayGoToStdout) {
  const Outcome bundle = run("cd " + path("") + " && " + kTool +
                             " doctor --bundle - --url http://127.0.0.1:1 | tar -tf -");
  EXPECT_EQ(bundle.code, 0);
  EXPECT_THAT(bundle.out, StartsWith("README.txt\nversions.txt\n"));
  EXPECT_THAT(bundle.err, StartsWith("bulkhead: not in the archive: "));
  EXPECT_FALSE(std::filesystem::exists(path("-")));
}

TEST_F(Cli, TablesHaveStraightColumns) {
  const test::CannedServer server({{test::whole_answer(
      "200 OK",
      R"({"data": [{"id": "é", "state": "loaded"}, {"id": "ab", "state": "loaded"},
                   {"id": "模型", "state": "loaded"}, {"id": "e\u0301", "state": "loaded"}]})")}});
  const Outcome models = run(kTool + " models --url " + server.url());
  EXPECT_THAT(models.out, HasSubstr("\né      loaded"));
  EXPECT_THAT(models.out, HasSubstr("\nab     loaded"));
  EXPECT_THAT(models.out, HasSubstr("\n模型   loaded"));
  EXPECT_THAT(models.out, HasSubstr("\ne\u0301      loaded"));
}

}  // namespace
}  // namespace bulkhead
