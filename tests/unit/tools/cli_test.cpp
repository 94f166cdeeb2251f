// The subcommands that need no daemon.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/canned_server.hpp"
#include "tests/unit/tools/cli_runs.hpp"

namespace bulkhead {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

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
