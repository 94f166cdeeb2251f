// Runs the bulkhead program as a user does, for the subcommands that need no daemon.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/canned_server.hpp"

namespace bulkhead {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

const std::string kTool = std::string(BULKHEAD_BIN_DIR) + "/bulkhead";
const std::string kMaker = std::string(BULKHEAD_BIN_DIR) + "/make-model";

struct Outcome {
  int code = -1;
  std::string out, err;
};

class Cli : public testing::Test {
 protected:
  Cli()
      : folder_(std::filesystem::temp_directory_path() /
                ("bulkhead-cli-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~Cli() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  static std::string read(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    std::stringstream text;
    text << stream.rdbuf();
    return text.str();
  }
  // Runs a shell command line; `in` is its stdin.
  Outcome run(const std::string& command, const std::string& in = "") const {
    const std::string stdin_file = write("stdin", in);
    const int status = std::system(
        ("(" + command + ") < " + stdin_file + " > " + path("stdout") + " 2> " + path("stderr"))
            .c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status, read(path("stdout")),
            read(path("stderr"))};
  }
  std::string made_model(const std::string& preset, const std::string& type) const {
    const std::string file = path(preset + "-" + type + ".gguf");
    const Outcome made = run(kMaker + " --preset " + preset + " --type " + type + " -o " + file);
    EXPECT_EQ(made.code, 0) << made.err;
    return file;
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(Cli, HelpTeachesWithExamples) {
  for (const char* command :
       {"", "chat", "complete", "workers", "models", "top", "requests", "logs", "load-test",
        "perplexity", "doctor", "tokenize", "inspect", "check", "bench"}) {
    const Outcome help = run(kTool + " " + command + " --help");
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_THAT(help.out, HasSubstr(std::string("bulkhead ") + command)) << command;
    EXPECT_THAT(help.err, IsEmpty());
    // The help's text after the options fits a terminal of 80 columns, except examples.
    std::istringstream lines(help.out);
    bool behind = false;
    for (std::string line; std::getline(lines, line);) {
      behind |= line.starts_with("Example") || line == "Start with:";
      EXPECT_TRUE(!behind || line.size() <= 78 || line.starts_with(' ')) << command << ": " << line;
    }
    EXPECT_TRUE(behind) << command;
  }
}

TEST_F(Cli, AWrongCommandLineIsCode2) {
  EXPECT_EQ(run(kTool).code, 2);
  EXPECT_EQ(run(kTool + " chatter").code, 2);
  EXPECT_EQ(run(kTool + " inspect").code, 2);

  const Outcome typo = run(kTool + " chatter");
  EXPECT_THAT(typo.err, StartsWith("bulkhead: there is no `bulkhead chatter`; there are: chat, "));
  EXPECT_THAT(run(kTool + " workers drian x").err,
              StartsWith("bulkhead: there is no `bulkhead workers drian`; there are: drain, "));
  EXPECT_EQ(run(kTool + " chat --nope").err,
            "bulkhead: The following argument was not expected: --nope\n"
            "See `bulkhead chat --help`.\n");
  EXPECT_EQ(run(kTool + " check-schema schema.json").err,
            "bulkhead: Exactly 1 option from [--schema,--grammar,--regex] is required\n"
            "See `bulkhead check-schema --help`.\n");
  // Numbers of 64 bits have no sign, and -1 is not the largest of them.
  for (const char* command : {"complete --seed -1 hi", "chat --seed -1", "load-test --seed -1",
                              "perplexity m --file f --chunks -1", "parse-answer --pieces -1"}) {
    const Outcome negative = run(kTool + " " + command);
    EXPECT_EQ(negative.code, 2) << command;
    EXPECT_THAT(negative.err, HasSubstr(": -1 is less than 0\n")) << command;
  }
  // A word after a value that may occur several times is not a further value.
  EXPECT_EQ(run(kTool + " check --set log.level=info more").err,
            "bulkhead: The following argument was not expected: more\n"
            "See `bulkhead check --help`.\n");
}

TEST_F(Cli, CheckAcceptsTheReferenceAndNamesMistakes) {
  const Outcome reference = run(kTool + " check --reference");
  EXPECT_EQ(reference.out, read(std::string(BULKHEAD_SOURCE_DIR) + "/config/runtime.yaml"));
  const std::string good = write("good.yaml", reference.out);
  EXPECT_EQ(run(kTool + " check --config " + good).code, 0);

  const std::string bad = write("bad.yaml", "server:\n  prot: 1\n");
  const Outcome wrong = run(kTool + " check --config " + bad);
  EXPECT_EQ(wrong.code, 1);
  EXPECT_EQ(wrong.err,
            "bulkhead: " + bad + ":2: server.prot: unknown setting; did you mean server.port?\n");

  const Outcome set = run(kTool + " check --set engine.numerics=fast --set engine.max_batch=4");
  EXPECT_EQ(set.code, 0);
  EXPECT_THAT(set.out, HasSubstr("engine.numerics: no kernel that depends on the batch is faster"));
}

TEST_F(Cli, CheckSaysWhatADaemonThatRunsWouldRefuse) {
  const std::string check = kTool + " check --config ";
  EXPECT_THAT(run(check + write("empty.yaml", "")).out,
              AllOf(HasSubstr("the file is empty"), HasSubstr("there are none here"),
                    HasSubstr("there is no server.api_key here")));
  const std::string models = "models: [{path: builtin}]\n";
  EXPECT_THAT(run(check + write("cut.yaml", models + "log: {level: info}")).out,
              HasSubstr("as if the file were cut off"));
  const Outcome good = run(check + write("whole.yaml", models + "server: {api_key: \"\"}\n"));
  EXPECT_EQ(good.code, 0);
  EXPECT_THAT(good.out, testing::Not(HasSubstr("refuses")));
}

TEST_F(Cli, InspectDescribesAMadeModel) {
  const std::string model = made_model("tiny-qwen2", "Q4_K_M");
  const Outcome inspect = run(kTool + " inspect --tensors " + model);
  EXPECT_EQ(inspect.code, 0) << inspect.err;
  EXPECT_THAT(inspect.out, HasSubstr("qwen2"));
  EXPECT_THAT(inspect.out, HasSubstr("blk.1.ffn_down.weight"));
  EXPECT_THAT(inspect.out, HasSubstr("Device memory"));
  // The number of sequences in a step depends on the device.
  EXPECT_THAT(inspect.out, AllOf(HasSubstr("engine.max_batch 256)"),
                                 HasSubstr("engine.max_batch: 0 becomes 256 on a GPU of "),
                                 HasSubstr("a CPU device gets 16. With 16:\n  working memory ")));

  EXPECT_THAT(
      inspect.out,
      AllOf(HasSubstr("\nDevices here, by what is free now\n  device 0          fits: it takes "),
            HasSubstr("; the longest context is ")));

  const Outcome fit = run(kTool + " doctor --model " + model);
  EXPECT_EQ(fit.code, 0) << fit.err;
  EXPECT_THAT(fit.out, HasSubstr("\n  device 0          fits: it takes "));
  const Outcome none = run(kTool + " doctor --model /no/such.gguf");
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("/no/such.gguf"));
}

TEST_F(Cli, InspectNamesTheStatesOfConvolutions) {
  const Outcome inspect = run(kTool + " inspect " + made_model("tiny-convolutions", "Q8_0"));
  EXPECT_EQ(inspect.code, 0) << inspect.err;
  EXPECT_THAT(inspect.out,
              HasSubstr("states:       3 layers are short convolutions over 3 positions"));
}

TEST_F(Cli, ParseAnswerGoesOnFromAnotherText) {
  const std::string source = write(
      "thinks.jinja",
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <think> </think> #}");
  const auto parsed = [&](const std::string& json) {
    const Outcome answer = run(kTool + " parse-answer --template " + source, json);
    EXPECT_EQ(answer.code, 0) << answer.err;
    return answer.out;
  };
  const std::string whole = parsed(R"({"raw": "<think>Let me see.</think>Yes."})");
  EXPECT_THAT(whole, AllOf(HasSubstr(R"("content":"Yes.")"),
                           HasSubstr(R"("reasoning_content":"Let me see.")")));
  const std::string rest = parsed(R"({"raw": " me see.</think>Yes.", "continued": "<think>Let"})");
  EXPECT_THAT(rest, AllOf(HasSubstr(R"("content":"Yes.")"),
                          HasSubstr(R"("reasoning_content":" me see.")")));
  const Outcome wrong =
      run(kTool + " parse-answer --template " + source, R"({"raw": "a", "continued": 1})");
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("continued is not a string"));
}

TEST_F(Cli, InspectRefusesABrokenFileInOneMessage) {
  const std::string model = made_model("tiny-llama", "Q8_0");
  const std::string whole = read(model);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{3}, std::size_t{20}, std::size_t{500}, whole.size() / 2}) {
    const Outcome inspect = run(kTool + " inspect " + write("cut.gguf", whole.substr(0, size)));
    EXPECT_EQ(inspect.code, 1) << size;
    EXPECT_THAT(inspect.err, StartsWith("bulkhead: ")) << size;
    EXPECT_EQ(std::count(inspect.err.begin(), inspect.err.end(), '\n'), 1) << inspect.err;
  }
  EXPECT_EQ(run(kTool + " inspect /nonexistent.gguf").code, 1);
}

TEST_F(Cli, TokenizePrintsIdsOnOneLine) {
  const std::string model = made_model("tiny-llama", "Q8_0");
  const Outcome plain = run(kTool + " tokenize --model " + model, "a\nb");
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(std::count(plain.out.begin(), plain.out.end(), '\n'), 1);
  EXPECT_EQ(std::count(plain.out.begin(), plain.out.end(), ' '), 2);
  EXPECT_EQ(run(kTool + " tokenize --model " + model, "").out, "\n");

  // The text of a special token is that token, unless plain text is asked for.
  const Outcome special = run(kTool + " tokenize --model " + model, "<|im_end|>");
  EXPECT_EQ(std::count(special.out.begin(), special.out.end(), ' '), 0) << special.out;
  const Outcome text = run(kTool + " tokenize --no-special --model " + model, "<|im_end|>");
  EXPECT_GT(std::count(text.out.begin(), text.out.end(), ' '), 3) << text.out;

  // The text of each token; for a special token, its name.
  const Outcome pieces = run(kTool + " tokenize --pieces --model " + model, "a\nb<|im_end|>");
  EXPECT_EQ(std::count(pieces.out.begin(), pieces.out.end(), '\n'), 4) << pieces.out;
  EXPECT_THAT(pieces.out, HasSubstr(" \"a\"\n"));
  EXPECT_THAT(pieces.out, HasSubstr(" \"\\n\"\n"));
  EXPECT_THAT(pieces.out, HasSubstr(" \"<|im_end|>\"\n"));

  // The text may have any bytes.
  std::string bytes;
  for (int i = 0; i < 256; ++i)
    bytes += static_cast<char>(i);
  EXPECT_EQ(run(kTool + " tokenize --model " + model, bytes).code, 0);
}

TEST_F(Cli, AFullDiskIsReportedAndIsAFailure) {
  for (const char* command : {"tokenize --model builtin", "inspect builtin", "check", "bench"}) {
    const Outcome full = run(kTool + " " + command + " > /dev/full", "some text");
    EXPECT_EQ(full.code, 1) << command;
    EXPECT_EQ(full.err, "bulkhead: writing to stdout: No space left on device\n") << command;
  }
}

// A file that the program opens must not become its stdin or stdout.
TEST_F(Cli, AClosedStreamIsAFailure) {
  const std::string model = made_model("tiny-qwen2", "Q4_K_M");
  const Outcome input = run(kTool + " tokenize --model " + model + " <&-");
  EXPECT_EQ(input.code, 1) << input.out;
  EXPECT_EQ(input.err, "bulkhead: reading stdin: Bad file descriptor\n");
  for (const std::string& command :
       {" inspect " + model, std::string(" check"), " tokenize --model " + model}) {
    const Outcome output = run(kTool + command + " >&-", "some text");
    EXPECT_EQ(output.code, 1) << command;
    EXPECT_EQ(output.err, "bulkhead: writing to stdout: Bad file descriptor\n") << command;
  }
}

TEST_F(Cli, AKeyWithALinesEndIsNamed) {
  const Outcome models = run("BULKHEAD_API_KEY=\"$(printf 'key\\n.')\" " + kTool + " models");
  EXPECT_EQ(models.code, 1);
  EXPECT_THAT(models.err, HasSubstr("BULKHEAD_API_KEY) has a line's end")) << models.err;
}

TEST_F(Cli, AFolderIsNoEmptyFile) {
  for (const char* command :
       {"check-schema --schema /", "check-schema --grammar /", "apply-template --template /",
        "parse-answer --template /", "perplexity model --file /"}) {
    const Outcome folder = run(kTool + " " + command, "{}");
    EXPECT_EQ(folder.code, 1) << command;
    EXPECT_EQ(folder.err, "bulkhead: read /: Is a directory\n") << command;
  }
}

TEST_F(Cli, CheckNotesWhatIsNoFolder) {
  const std::string file = write("a-file", "");
  const auto checked = [this](const std::string& setting) {
    const Outcome check = run(kTool + " check --set " + setting);
    EXPECT_EQ(check.code, 0) << setting << check.err;
    return check.out;
  };
  EXPECT_THAT(checked("server.models_folder=/no/such"),
              StartsWith("note: server.models_folder: /no/such can't be read from here now\n"));
  EXPECT_THAT(checked("server.models_folder=" + file), HasSubstr("a-file is not a folder\n"));
  EXPECT_THAT(checked("isolation.journal_path=/no/such/j"), HasSubstr("no folder /no/such now\n"));
  EXPECT_THAT(checked("isolation.journal_path=/"), HasSubstr("/ is a folder; name a file\n"));
  EXPECT_THAT(checked("isolation.journal_path=j"), StartsWith("the settings are valid"));
  EXPECT_THAT(checked("server.models_folder=/no/such --json"), HasSubstr("can't be read"));

  // A folder's models are served in place of the built-in one, also after a reload.
  const std::string settings = write("folder.yaml", "server:\n  models_folder: /\n");
  const Outcome folder = run(kTool + " check --config " + settings);
  EXPECT_THAT(folder.out, HasSubstr("is valid: the models of / on 127.0.0.1"));
  EXPECT_THAT(folder.out, Not(HasSubstr("if it serves models")));
  EXPECT_THAT(checked("server.models_folder=/ --set models.0.path=builtin"),
              HasSubstr("the built-in model, the models of / on"));
}

// Only a message that the template itself raises is printed without a prefix, for scripts.
TEST_F(Cli, ApplyTemplateSaysWhoseErrorItIs) {
  const std::string raising = write("raising.jinja", "{{ raise_exception('boo') }}");
  const std::string apply = kTool + " apply-template --template " + raising;
  const std::string request = R"({"messages": [{"role": "user", "content": "a"}]})";
  EXPECT_EQ(run(apply, request).err, "boo\n");
  EXPECT_EQ(run(apply, R"({"messages": []})").err,
            "bulkhead: messages is empty; give at least one\n");
  EXPECT_EQ(run(apply, R"({"messages": )").err,
            "bulkhead: the request is no JSON: at byte 14: parse error at line 1, column 14: "
            "syntax error "
            "while parsing value - unexpected end of input; expected '[', '{', or a literal\n");
  for (const char* time : {"2026-02-31 10:00:00", "2026-02-01 10:00:00 or so", "2026-02-01"})
    EXPECT_THAT(run(apply + " --now '" + time + "'", request).err, HasSubstr("is not a time"));
  EXPECT_EQ(run(apply + " --now 2024-02-29T23:59:59", request).err, "boo\n");
}

TEST_F(Cli, StdinThatCanNotBeReadIsReportedAndIsNotItsEnd) {
  for (const char* command : {"tokenize --model builtin", "complete --url http://127.0.0.1:1"}) {
    const Outcome folder = run(kTool + " " + command + " < /");
    EXPECT_EQ(folder.code, 1) << command;
    EXPECT_EQ(folder.err, "bulkhead: reading stdin: Is a directory\n") << command;
  }
}

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

TEST_F(Cli, TablesHaveStraightColumns) {
  const test::CannedServer server({{test::whole_answer(
      "200 OK",
      R"({"data": [{"id": "é", "state": "loaded"}, {"id": "ab", "state": "loaded"}]})")}});
  const Outcome models = run(kTool + " models --url " + server.url());
  EXPECT_THAT(models.out, HasSubstr("\né      loaded"));
  EXPECT_THAT(models.out, HasSubstr("\nab     loaded"));
}

TEST_F(Cli, BenchNamesWhatThereIs) {
  const Outcome unknown = run(kTool + " bench no-such-benchmark");
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("there is no benchmark 'no-such-benchmark'"));
}

// Programs that run the benchmarks from outside know only `bench-NAME --json FILE`.
TEST_F(Cli, EveryBenchmarkNeedsNoOption) {
  for (const char* name : {"ipc-latency", "serving-overhead", "decode", "roofline", "recovery"}) {
    const std::string program = std::string(BULKHEAD_BIN_DIR) + "/bench-" + name;
    const Outcome help = run(program + " --help");
    EXPECT_EQ(help.code, 0) << name;
    EXPECT_THAT(help.out, HasSubstr("--json")) << name;
    EXPECT_THAT(help.out, Not(HasSubstr("REQUIRED"))) << name;
    const Outcome mistake = run(program + " --nope");
    EXPECT_EQ(mistake.code, 2) << name;
    EXPECT_THAT(mistake.err, HasSubstr("--nope")) << name;
  }
}

TEST_F(Cli, BenchHandsArgumentsOnAsTheyStand) {
  const Outcome help = run(kTool + " bench decode --help");
  EXPECT_EQ(help.code, 0) << help.err;
  EXPECT_THAT(help.out, HasSubstr("--profile"));
  const Outcome none =
      run(kTool + " bench decode --json " + path("x.json") + " --device no-such-gpu");
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("device 'no-such-gpu'"));
}

TEST_F(Cli, MakeModelNamesMistakes) {
  EXPECT_EQ(run(kMaker + " --preset tiny-llama").code, 2);
  EXPECT_EQ(run(kMaker + " --preset nope -o " + path("x")).code, 1);
  EXPECT_EQ(run(kMaker + " --type Q9 -o " + path("x")).code, 1);
  EXPECT_FALSE(std::filesystem::exists(path("x")));
  EXPECT_FALSE(std::filesystem::exists(path("x.partial")));
}

TEST_F(Cli, AnExpressionMayBeEmpty) {
  EXPECT_EQ(run(kTool + " check-schema --regex ''").code, 0);
  const Outcome more = run(kTool + " check-schema --regex ''", "x");
  EXPECT_EQ(more.code, 3) << more.err;
  EXPECT_EQ(more.out, "rejected at byte 0\n");
}

// A page's or a name's refusal has nothing to do with the key.
TEST_F(Cli, TheKeyIsNamedWhereItIsWrong) {
  const auto told = [this](const char* status, const char* code) {
    const std::string body =
        R"({"error": {"message": "no", "code": ")" + std::string(code) + "\"}}";
    const test::CannedServer server({{test::whole_answer(status, body)}});
    return run(kTool + " workers --url " + server.url()).err;
  };
  EXPECT_THAT(told("401 Unauthorized", "invalid_api_key"), HasSubstr("--api-key"));
  EXPECT_THAT(told("403 Forbidden", "not_allowed"), HasSubstr("--api-key"));
  EXPECT_EQ(told("403 Forbidden", "forbidden_origin"), "bulkhead: no\n");
}

// Text of a file or a command line must not control the terminal.
TEST_F(Cli, PrintsNoEscapeSequences) {
  constexpr const char* kClear = "\x1b[2J";
  std::string bytes = read(made_model("tiny-qwen2", "Q4_K_M"));
  constexpr std::size_t kTypeAndLength = 12;
  const std::string key = "general.name";
  const std::size_t name = bytes.find(key) + key.size() + kTypeAndLength;
  ASSERT_LT(name + 4, bytes.size());
  bytes.replace(name, 4, kClear);
  const Outcome inspect = run(kTool + " inspect " + write("escape.gguf", bytes));
  EXPECT_EQ(inspect.code, 0) << inspect.err;
  EXPECT_THAT(inspect.out, HasSubstr("\\x1b[2J"));
  const std::string missing = "'/tmp/no\x1b[2Jmodel'";
  for (const std::string& command : {" inspect " + missing, " tokenize --model " + missing,
                                     " check --set models.0.path=" + missing,
                                     " check --config " + missing, " check --set " + missing}) {
    const Outcome outcome = run(kTool + command);
    EXPECT_THAT(outcome.out + outcome.err, HasSubstr("\\x1b[2J")) << command;
    EXPECT_THAT(outcome.out + outcome.err, Not(HasSubstr(kClear))) << command;
  }
  EXPECT_THAT(inspect.out, Not(HasSubstr(kClear)));
}

// For scripts there are the same facts and the same exit codes.
TEST_F(Cli, InspectCheckAndDoctorSpeakJson) {
  const Outcome inspected = run(kTool + " inspect builtin --tensors --json");
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  const auto file = nlohmann::json::parse(inspected.out);
  EXPECT_EQ(file["runs"], true);
  EXPECT_EQ(file["tensors"].size(), file["tensor_count"]);
  EXPECT_GT(file["memory_bytes"]["weights"], 0);
  EXPECT_GT(file["context"], 0);
  EXPECT_EQ(run(kTool + " inspect --json " + write("broken", "GGUF")).code, 1);

  Outcome checked = run(kTool + " check --json --set server.port=99");
  EXPECT_EQ(checked.code, 0);
  EXPECT_EQ(nlohmann::json::parse(checked.out)["valid"], true);
  EXPECT_EQ(nlohmann::json::parse(checked.out)["port"], 99);
  checked = run(kTool + " check --json --set server.prt=99");
  EXPECT_EQ(checked.code, 1);
  EXPECT_EQ(nlohmann::json::parse(checked.out)["valid"], false);
  EXPECT_THAT(nlohmann::json::parse(checked.out)["error"].get<std::string>(), HasSubstr("port"));

  const Outcome examined = run(kTool + " doctor --json --model builtin");
  const auto diagnosis = nlohmann::json::parse(examined.out);
  EXPECT_EQ(examined.code, diagnosis["usable"] == true ? 0 : 1);
  EXPECT_FALSE(diagnosis["protections"].empty());
  for (const auto& device : diagnosis["devices"])
    EXPECT_TRUE(device["memory_bytes"].is_number()) << device;
}

}  // namespace
}  // namespace bulkhead
