// `bulkhead`: the command-line tool. This file has its command line; the other files here have its subcommands.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include <CLI/CLI.hpp>

#include "config/base/clean_text.hpp"
#include "config/base/standard_descriptors.hpp"
#include "tools/cli/command_line.hpp"
#include "tools/cli/commands.hpp"

namespace bulkhead::cli {

int fail(const Error& error) {
  constexpr int kInterrupted = 130;
  if (interrupted) return kInterrupted;
  std::fprintf(stderr, "bulkhead: %s\n", cleaned_lines(error.message()).c_str());
  return 1;
}

std::string cleaned_lines(std::string_view text) {
  std::string out;
  for (;;) {
    const std::size_t end = text.find('\n');
    out += cleaned(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    out += '\n';
    text.remove_prefix(end + 1);
  }
}

Result<std::string> read_stdin() {
  std::string text;
  char chunk[1 << 16];
  while (!interrupted) {
    const ssize_t got = ::read(STDIN_FILENO, chunk, sizeof chunk);
    if (got == 0) break;
    if (got > 0) {
      text.append(chunk, static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      return errno_error(ErrorCode::kInternal, "reading stdin", errno);
    }
  }
  return text;
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno_error(ErrorCode::kNotFound, "open " + path, errno);
  std::string text;
  char chunk[16384];
  while (file.read(chunk, sizeof chunk), file.gcount() > 0)
    text.append(chunk, static_cast<std::size_t>(file.gcount()));
  if (file.bad()) return errno_error(ErrorCode::kNotFound, "read " + path, errno);
  return text;
}

namespace {

constexpr int kUsageError = 2;

void add_sampling(CLI::App& command, Sampling& sampling) {
  command.add_option("--model", sampling.model,
                     "Name of the model, where several are served (see /v1/models)");
  command.add_option("-n,--max-tokens", sampling.max_tokens, "Tokens to generate at most");
  command.add_option("-t,--temperature", sampling.temperature,
                     "0 always takes the likeliest token");
  command.add_option("--top-p", sampling.top_p,
                     "Choose among the likeliest tokens that make up this probability");
  command.add_option("--top-k", sampling.top_k, "Choose among this many of the likeliest tokens");
  command.add_option("--min-p", sampling.min_p,
                     "Drop tokens less likely than this share of the likeliest");
  command.add_option("--seed", sampling.seed, "Same seed, same prompt, same text")
      ->check(not_negative());
  command.add_option("--stop", sampling.stop, "End before this text (may be given several times)")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
}

// Prints one message that says what was wrong, and where the right usage is explained. For a mistyped subcommand,
// CLI11 says only "A subcommand is required".
int wrong_usage(CLI::App& app, int argc, char** argv, std::string message) {
  CLI::App* command = &app;
  std::string path = "bulkhead";
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    // Groups of options are subcommands without a name.
    const std::vector<CLI::App*> known =
        command->get_subcommands([](CLI::App* each) { return !each->get_name().empty(); });
    if (known.empty()) break;
    const auto next = std::find_if(known.begin(), known.end(), [&](const CLI::App* each) {
      return each->get_name() == argv[i];
    });
    if (next == known.end()) {
      message = "there is no `" + path + " " + argv[i] + "`; there are:";
      for (const CLI::App* each : known)
        message += (each == known[0] ? " " : ", ") + each->get_name();
      break;
    }
    command = *next;
    path += std::string(" ") + argv[i];
  }
  std::fprintf(stderr, "bulkhead: %s\nSee `%s --help`.\n", cleaned_lines(message).c_str(),
               path.c_str());
  return kUsageError;
}

// ---- the subcommands. The parser fills in `options`, which must outlive it, and then runs the
// subcommand, which sets the program's exit code `code` ----

void add_chat(CLI::App& app, ChatOptions& options, int& code) {
  CLI::App* command =
      app.add_subcommand("chat", "Talk with the model; it remembers the conversation");
  add_connection(*command, options.connection);
  add_sampling(*command, options.sampling);
  command->add_option("--system", options.system, "System message to start with");
  add_footer(
      *command,
      "Examples:\n"
      "  bulkhead chat\n"
      "  bulkhead chat --system 'Answer in one sentence.' --temperature 0.5\n"
      "  printf 'Tell me a story.\\nTell me another.\\n' | bulkhead chat     one message a line\n"
      "At the prompt: /reset, /system TEXT, /quit, /help. Ctrl-C stops an answer. You edit lines "
      "as in a shell. Text that is pasted at once is one message. The arrow keys bring earlier "
      "messages back, which are kept in ~/.local/state/bulkhead/chat_history. At a terminal a "
      "model's reasoning stands before its answer, dimmed; NO_COLOR=1 leaves colours out. "
      "Exit code: 0, 1 for an error, 130 when Ctrl-C ended it.");
  command->callback([&options, &code] { code = run_chat(options); });
}

void add_complete(CLI::App& app, CompleteOptions& options, int& code) {
  CLI::App* command = app.add_subcommand("complete", "Continue a text, streaming");
  add_connection(*command, options.connection);
  add_sampling(*command, options.sampling);
  CLI::Option* prompt =
      command->add_option("prompt", options.prompt, "The text (left out: from stdin)");
  command->add_flag("--echo", options.echo, "Print the prompt before the continuation");
  command->add_flag("--json", options.json,
                    "Print the whole answer as JSON when it has ended: text, finish_reason, "
                    "prompt_tokens, completion_tokens");
  add_footer(*command,
             "Examples:\n"
             "  bulkhead complete --max-tokens 100 'Once upon a time'\n"
             "  bulkhead complete --temperature 0.8 --seed 42 --stop '.' < prompt.txt\n"
             "Exit code: 0, 1 for an error, 130 when Ctrl-C stopped it.");
  command->callback([&options, &code, prompt] {
    options.has_prompt = prompt->count() > 0;
    code = run_complete(options);
  });
}

void add_tokenize(CLI::App& app, TokenizeOptions& options, int& code) {
  CLI::App* command = app.add_subcommand(
      "tokenize", "Turn text on stdin into token ids on stdout; needs no daemon");
  command
      ->add_option("--model", options.model,
                   "GGUF file (one with only a vocabulary will do), or builtin")
      ->required();
  command->add_flag("--no-special", options.no_special,
                    "Add no BOS or EOS, and read special tokens' text as plain text");
  command->add_flag("--pieces", options.pieces,
                    "Print a line for each token: its id and its bytes");
  add_footer(
      *command,
      "Examples:\n"
      "  printf 'Hello world' | bulkhead tokenize --model model.gguf\n"
      "  printf 'Hello world' | bulkhead tokenize --model model.gguf --pieces\n"
      "Prints the ids on one line. With --pieces it prints a line for each token: its id, and its "
      "text in quotes. Bytes that are no whole characters are shown as \\x.., a special token by "
      "its name. stdin may hold any bytes. Exit code: 0, 1 for an error.");
  command->callback([&options, &code] { code = run_tokenize(options); });
}

void add_parse_answer(CLI::App& app, ParseAnswerOptions& options, int& code) {
  CLI::App* command = app.add_subcommand(
      "parse-answer", "Turn a model's raw text into a message with reasoning and tool calls");
  CLI::Option_group* source = command->add_option_group("source", "Where the chat template is");
  source->add_option("--model", options.model, "GGUF file whose chat template shows the family");
  source->add_option("--template", options.template_file, "A file with the chat template's text");
  source->require_option(1);
  command
      ->add_option("--pieces", options.pieces,
                   "Feed this many characters at a time, as a stream does (0: all at once)")
      ->check(not_negative());
  add_footer(
      *command,
      "Example:\n"
      "  echo '{\"raw\": \"<think>Hm.</think>Yes.\"}' | bulkhead parse-answer --model model.gguf\n"
      "stdin: {\"raw\", \"ended\": \"stop\" or \"length\", \"prompt_ends_with\", \"continued\", "
      "\"tools\"}; only raw is needed. continued: the text that raw continues; the prompt "
      "has it after prompt_ends_with.\n"
      "stdout: {\"content\", \"reasoning_content\", \"tool_calls\", \"finish_reason\"}.\n"
      "Exit code: 0, 1 for an error.");
  command->callback([&options, &code] { code = run_parse_answer(options); });
}

void add_inspect(CLI::App& app, InspectOptions& options, int& code) {
  CLI::App* command =
      app.add_subcommand("inspect", "Show a model file's metadata, tensors and memory need");
  command
      ->add_option("file", options.file, "GGUF file (of a split model, its first part), or builtin")
      ->required();
  command->add_flag("--tensors", options.tensors, "List every tensor");
  command->add_flag("--json", options.json, "Print the facts as JSON; sizes are bytes");
  add_footer(
      *command,
      "Examples:\n"
      "  bulkhead inspect model.gguf\n"
      "  bulkhead inspect builtin --tensors\n"
      "Exit code: 0 if the file can be read; otherwise 1, with a message that says what is wrong "
      "and where.");
  command->callback([&options, &code] { code = run_inspect(options); });
}

void add_check_schema(CLI::App& app, CheckSchemaOptions& options, int& code) {
  CLI::App* command = app.add_subcommand(
      "check-schema",
      "Say whether a text on stdin passes a schema, grammar or expression; needs no daemon");
  CLI::Option_group* what = command->add_option_group("what");
  what->add_option("--schema", options.schema,
                   "File with a JSON schema, as response_format has it");
  what->add_option("--grammar", options.grammar,
                   "File with a grammar in llama.cpp's format (GBNF)");
  what->add_option("--regex", options.regex, "An expression that the whole text must match");
  what->require_option(1);
  command->add_flag("--lenient", options.lenient,
                    "Leave out keywords that can't be enforced, with a line on stderr for each");
  add_footer(
      *command,
      "Example:\n"
      "  printf '{\"a\": 1}' | bulkhead check-schema --schema schema.json\n"
      "Exit code: 0 if the whole text is accepted; 3 with \"rejected at byte N\" if not (N is the "
      "text's size if more text must follow); 1 if the schema is refused, with the keyword.");
  command->callback([&options, &code] { code = run_check_schema(options); });
}

void add_apply_template(CLI::App& app, ApplyTemplateOptions& options, int& code) {
  CLI::App* command = app.add_subcommand(
      "apply-template",
      "Turn a chat request's JSON on stdin into the prompt's exact text; needs no daemon");
  CLI::Option* model = command->add_option("--model", options.model,
                                           "GGUF file whose chat template to use, or builtin");
  command->add_option("--template", options.template_file, "File with a chat template (Jinja)")
      ->excludes(model);
  command->add_option("--bos", options.bos, "Text of bos_token (default: the model file's)");
  command->add_option("--eos", options.eos, "Text of eos_token (default: the model file's)");
  command->add_option("--now", options.now,
                      "Time that the template gets, as \"2026-01-15 12:00:00\" (default: now)");
  command->add_flag("--as-is", options.as_is,
                    "Give the messages to the template as they are, and nothing that transformers "
                    "doesn't offer");
  add_footer(
      *command,
      "Example:\n"
      "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' |\n"
      "    bulkhead apply-template --model model.gguf\n"
      "Reads messages, tools, documents, add_generation_prompt (true), continue_final_message and "
      "chat_template_kwargs. Exit code: 0, 1 where the template refuses the request, with its "
      "message.");
  command->callback([&options, &code] {
    if (options.model.empty() && options.template_file.empty())
      throw CLI::RequiredError("--model or --template");
    code = run_apply_template(options);
  });
}

void add_check(CLI::App& app, CheckOptions& options, int& code) {
  CLI::App* command = app.add_subcommand("check", "Check settings without starting anything");
  command->add_option("--config", options.config, "Settings file")->envname("BULKHEAD_CONFIG");
  command
      ->add_option("--set", options.assignments,
                   "KEY=VALUE, as for bulkheadd (may be given several times)")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--reference", options.reference,
                    "Print every setting with its default (config/runtime.yaml)");
  command->add_flag(
      "--json", options.json,
      "Print the verdict as JSON: valid, error, notes, models, models_folder, host, port");
  add_footer(*command,
             "Examples:\n"
             "  bulkhead check --config my.yaml\n"
             "  bulkhead check --set gpu_optimizations.memory_pool.heap_size_mb=64\n"
             "  bulkhead check --reference > my.yaml\n"
             "Exit code: 0 where a daemon would take the settings, 1 where it would not.");
  command->callback([&options, &code] { code = run_check(options); });
}

void add_doctor(CLI::App& app, DoctorOptions& options, int& code) {
  CLI::App* command = app.add_subcommand(
      "doctor", "List the Vulkan devices and what they lack; write an archive for a report");
  add_connection(*command, options.connection);
  CLI::Option* const bundle =
      command->add_option("--bundle", options.bundle,
                          "Write a tar archive of versions, settings, metrics, logs and the last "
                          "crashes, without keys and prompts; -: to stdout");
  command->add_option("--model", options.model, "Say on which devices this model file fits")
      ->excludes(bundle);
  command->add_flag("--json", options.json, "Print the diagnosis as JSON; sizes are bytes")
      ->excludes(bundle);
  add_footer(
      *command,
      "Examples:\n"
      "  bulkhead doctor\n"
      "  bulkhead doctor --model FILE            and on which of the devices the model fits\n"
      "  bulkhead doctor --bundle report.tar     asks the daemon at --url; without one, what is "
      "known here\n"
      "Exit code: 0 when a device can serve (with --model, that model); with --bundle, when the "
      "archive was written.");
  command->callback([&options, &code] { code = run_doctor(options); });
}

void add_bench(CLI::App& app, BenchOptions& options, int& code) {
  CLI::App* command = app.add_subcommand("bench", "List the benchmarks, or run one");
  // There are no positional arguments, because CLI11 would take them out of the order of the benchmark's own options.
  command->prefix_command();
  add_footer(*command,
             "Examples:\n"
             "  bulkhead bench                                   lists them\n"
             "  bulkhead bench ipc-latency --json result.json    runs one\n"
             "Arguments after a benchmark's name go to the benchmark, --help too. "
             "Exit code: that of the benchmark; 1 if there is none of that name.");
  command->callback([&options, &code, command] {
    for (const std::string& word : command->remaining()) {
      if (options.name.empty()) {
        options.name = word;
      } else {
        options.arguments.push_back(word);
      }
    }
    code = run_bench(options);
  });
}

int run(int argc, char** argv) {
  CLI::App app{"Talks to bulkheadd, and looks at model files, settings and devices.", "bulkhead"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "bulkhead " BULKHEAD_VERSION);
  add_footer(
      app,
      "Start with:\n"
      "  bulkheadd                        serve the built-in model on 127.0.0.1:8484\n"
      "  bulkhead chat                    talk to it\n"
      "  bulkhead SUBCOMMAND --help       options and examples\n"
      "BULKHEAD_URL and BULKHEAD_API_KEY stand in for --url and --api-key. A command that the "
      "daemon does not answer in time (--timeout) ends with an error.\n"
      "Exit code: 0; 1 for an error, with a message on stderr; 2 for a wrong command line; 3 where "
      "check-schema rejects the text; 130 when Ctrl-C ended it.");

  struct {
    ChatOptions chat;
    CompleteOptions complete;
    OperatingOptions operating;
    TokenizeOptions tokenize;
    ParseAnswerOptions parse_answer;
    InspectOptions inspect;
    ApplyTemplateOptions apply_template;
    CheckOptions check;
    CheckSchemaOptions check_schema;
    DoctorOptions doctor;
    BenchOptions bench;
  } options;
  int code = 0;
  add_chat(app, options.chat, code);
  add_complete(app, options.complete, code);
  add_operating(app, options.operating, code);
  add_tokenize(app, options.tokenize, code);
  add_parse_answer(app, options.parse_answer, code);
  add_inspect(app, options.inspect, code);
  add_apply_template(app, options.apply_template, code);
  add_check(app, options.check, code);
  add_check_schema(app, options.check_schema, code);
  add_doctor(app, options.doctor, code);
  add_bench(app, options.bench, code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return wrong_usage(app, argc, argv, error.what());
  }
  return code == 0 && output_failed ? 1 : code;
}

}  // namespace
}  // namespace bulkhead::cli

int main(int argc, char** argv) {
  // Reading a closed stdin and writing to a closed stdout are errors.
  bulkhead::open_standard_descriptors(O_WRONLY, O_RDONLY);
  ::signal(SIGPIPE,
           SIG_IGN);  // if the reader leaves, write() fails and the program continues
  try {
    return bulkhead::cli::run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "bulkhead: internal error: %s\n", failure.what());
    return 1;
  }
}
