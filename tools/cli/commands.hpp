// The subcommands of `bulkhead`. CLI11 (main.cpp) fills in each one's options. Each returns the exit code: 0 for
// success, 1 for failure with one message on stderr. (2 is a wrong command line.)
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/api.hpp"

namespace bulkhead::cli {

struct ChatOptions {
  Connection connection;
  Sampling sampling;
  std::string system;
};
int run_chat(const ChatOptions& options);

struct CompleteOptions {
  Connection connection;
  Sampling sampling;
  std::string prompt;  // empty and !has_prompt: from stdin
  bool has_prompt = false;
  bool echo = false;
  bool json = false;
};
int run_complete(const CompleteOptions& options);

struct WorkersOptions {
  Connection connection;
  std::string action;  // "", "drain", "restart"
  std::string name;
  bool cold = false;  // for a restart
  bool json = false;
};
int run_workers(const WorkersOptions& options);

struct ModelsOptions {
  Connection connection;
  std::string action;  // "" and "list", "load", "unload"
  std::string name;
  bool json = false;
  bool no_wait = false;
};
// Also returns 130 if Ctrl-C ended the waiting.
int run_models(const ModelsOptions& options);

// `top` waits no longer than this for an answer, because the user's keys wait for it, too.
inline constexpr std::chrono::seconds kTopTimeout{5};
struct TopOptions {
  Connection connection;
  std::string sort = "name";
  double interval = 1;  // seconds between two looks
  bool once = false;
  bool json = false;
};
// Also returns 130 if Ctrl-C ended a series of JSON frames.
int run_top(const TopOptions& options);

struct RequestsOptions {
  Connection connection;
  bool json = false;
};
int run_requests(const RequestsOptions& options);

struct LogsOptions {
  Connection connection;
  std::string worker;
  std::size_t lines = 200;
  bool follow = false;
  bool json = false;
};
int run_logs(const LogsOptions& options);

struct LoadTestOptions {
  Connection connection;
  std::string model;  // empty: the first one that the server lists
  std::size_t requests = 64;
  std::size_t concurrency = 8;  // requests at a time, if there is no rate
  double rate = 0;              // requests that arrive per second, at random times; 0: no rate
  std::size_t prompt_words = 64;
  std::uint32_t max_tokens = 64;
  std::uint64_t seed = 1;
  bool completions = false;  // /v1/completions instead of chats
  bool ignore_eos = false;   // answers end at max_tokens, if the server supports ignore_eos
  bool greedy = false;       // temperature 0
  bool json = false;
};
// Also returns 1 if a request failed, and 130 if Ctrl-C ended the test.
int run_load_test(const LoadTestOptions& options);

struct PerplexityOptions {
  Connection connection;
  std::string model;
  std::string file;
  bool token_ids = false;     // the file has ids, not text
  std::size_t context = 512;  // tokens in a chunk
  std::size_t chunks = 0;     // chunks to read; 0: all
  bool json = false;
};
// Also returns 130 if Ctrl-C ended the measurement; it then prints what it has measured.
int run_perplexity(const PerplexityOptions& options);

struct TokenizeOptions {
  std::string model;
  bool no_special = false;
  bool pieces = false;
};
int run_tokenize(const TokenizeOptions& options);

struct ParseAnswerOptions {
  std::string model;  // one of these two names the chat template
  std::string template_file;
  std::size_t pieces = 0;  // characters to feed at a time; 0: all at once
};
int run_parse_answer(const ParseAnswerOptions& options);

struct InspectOptions {
  std::string file;
  bool tensors = false;
  bool json = false;
};
int run_inspect(const InspectOptions& options);

struct ApplyTemplateOptions {
  std::string model;  // this, or template_file
  std::string template_file;
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::string now;  // empty: the present time
  bool as_is = false;
};
int run_apply_template(const ApplyTemplateOptions& options);

struct CheckOptions {
  std::string config;
  std::vector<std::string> assignments;
  bool reference = false;
  bool json = false;
};
int run_check(const CheckOptions& options);

// One of the first three is given.
struct CheckSchemaOptions {
  std::optional<std::string> schema;   // file
  std::optional<std::string> grammar;  // file, in GBNF
  std::optional<std::string> regex;    // may be empty
  bool lenient = false;
};
// Also returns 3 if the schema rejects the text on stdin.
int run_check_schema(const CheckSchemaOptions& options);

struct DoctorOptions {
  Connection connection;
  std::string bundle;  // the archive to write; empty: print a diagnosis
  std::string model;   // a model file: says on which devices it fits; empty: none
  bool json = false;
};
// Returns 1 if no device can serve, if the model fits on no device, or if the bundle could not be written. If a
// daemon does not answer, that is no failure; the bundle says so.
int run_doctor(const DoctorOptions& options);

// What `bulkhead doctor` prints.
struct Diagnosis {
  std::string text;
  std::optional<Error> no_devices;  // why the devices can't be listed
  bool usable = false;              // a device can serve
};
Diagnosis diagnose();
// Writes an archive for a report on a fault (doctor_bundle.cpp).
int write_bundle(const DoctorOptions& options);

struct BenchOptions {
  std::string name;  // empty: list them
  std::vector<std::string> arguments;
};
int run_bench(const BenchOptions& options);

// Prints "bulkhead: MESSAGE" on stderr; returns 1. After Ctrl-C (api.hpp) it prints nothing and returns 130: the error
// is that the user has stopped what went on.
int fail(const Error& error);

// Returns lines that contain text of files, cleaned so that nothing in them controls the terminal.
std::string cleaned_lines(std::string_view text);

// Reads stdin to its end, or until the user presses Ctrl-C (api.hpp).
Result<std::string> read_stdin();

// Reads a whole file. kNotFound: it can't be read.
Result<std::string> read_file(const std::string& path);

}  // namespace bulkhead::cli
