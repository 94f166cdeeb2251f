// The command line of the subcommands for operators.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/command_line.hpp"
#include "tools/cli/top_view.hpp"

namespace bulkhead::cli {

namespace {

void take_environment(const char* name, std::string& value) {
  const char* const given = std::getenv(name);
  if (given != nullptr && *given != '\0') value = given;
}

}  // namespace

// The environment is read here, before the command line, and not by CLI11's envname(). A command shares its connection
// with its subcommands. CLI11 would read the environment for options that do not come after the subcommand's name, and
// so replace what the user wrote before that name.
void add_connection(CLI::App& command, Connection& connection, std::chrono::seconds usual_timeout) {
  const std::string usual = Connection().url;
  take_environment("BULKHEAD_URL", connection.url);
  take_environment("BULKHEAD_API_KEY", connection.api_key);
  command.add_option("--url", connection.url, "Address of the daemon")
      ->option_text("TEXT=" + usual + " (Env:BULKHEAD_URL)");
  command.add_option("--api-key", connection.api_key, "API key, if the daemon needs one")
      ->option_text("TEXT (Env:BULKHEAD_API_KEY)");
  command
      .add_option("--timeout", connection.timeout_s,
                  "Seconds to wait for an answer that no model computes; 0: for ever")
      ->check(CLI::Range(0.0, 86400.0))
      ->option_text("FLOAT=" + std::to_string(usual_timeout.count()));
}

void add_footer(CLI::App& command, std::string text) {
  constexpr std::size_t kColumns = 78;
  constexpr std::string_view kCodes = " Exit code:";
  for (std::size_t at = 0; (at = text.find(kCodes, at)) != std::string::npos; ++at)
    text[at] = '\n';
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::size_t blank = text.rfind(' ', begin + kColumns);
    const bool example = text[begin] == ' ';
    if (example || end - begin <= kColumns || blank == std::string::npos || blank <= begin) {
      begin = end + 1;
    } else {
      text[blank] = '\n';
      begin = blank + 1;
    }
  }
  command.footer(text);
}

CLI::Validator not_negative() {
  return CLI::Validator(
      [](const std::string& text) {
        return text.starts_with('-') ? text + " is less than 0" : std::string();
      },
      "");
}

namespace {

void add_workers(CLI::App& app, WorkersOptions& options, int& code) {
  CLI::App* command =
      app.add_subcommand("workers", "Show the worker processes: state, deaths, restarts");
  add_connection(*command, options.connection);
  command->add_flag("--json", options.json, "Print the API's JSON");
  for (const char* action : {"drain", "restart"}) {
    const bool drain = std::string(action) == "drain";
    CLI::App* of_one = command->add_subcommand(
        action, drain ? "Let a worker finish its requests and give it no new ones"
                      : "Replace a worker; its requests go on in the successor or a peer");
    add_connection(*of_one, options.connection);
    of_one->add_option("name", options.name, "Name, as `bulkhead workers` lists it")->required();
    if (!drain) {
      of_one->add_flag("--cold", options.cold,
                       "Keep nothing: the successor loads the model, computes prompts and compiles "
                       "kernels again");
    }
    of_one->add_flag("--json", options.json, "Print the API's JSON");
    add_footer(
        *of_one,
        "Returns at once; `bulkhead workers` shows the progress. Exit code: 0 when the daemon has "
        "agreed, 1 for an error.");
    of_one->callback([&options, action] { options.action = action; });
  }
  command->require_subcommand(0, 1);
  add_footer(*command,
             "Examples:\n"
             "  bulkhead workers\n"
             "  bulkhead workers restart NAME\n"
             "Exit code: 0, 1 for an error.");
  command->final_callback([&options, &code] { code = run_workers(options); });
}

void add_models(CLI::App& app, ModelsOptions& options, int& code) {
  CLI::App* command = app.add_subcommand("models", "Show the models; load and unload them");
  add_connection(*command, options.connection);
  command->add_flag("--json", options.json, "Print the API's JSON");
  CLI::App* list = command->add_subcommand("list", "Show the models and which are loaded");
  add_connection(*list, options.connection);
  list->add_flag("--json", options.json, "Print the API's JSON");
  for (const char* action : {"load", "unload"}) {
    const bool load = std::string(action) == "load";
    CLI::App* of_one =
        command->add_subcommand(action, load ? "Load a model, or a file of server.models_folder"
                                             : "Unload a model when its last request is over");
    add_connection(*of_one, options.connection);
    of_one->add_option("name", options.name, "Name, as `bulkhead models` lists it")->required();
    of_one->add_flag("--no-wait", options.no_wait, "Return at once");
    of_one->add_flag("--json", options.json, "Print the API's JSON");
    add_footer(
        *of_one,
        "Waits until the model is loaded or unloaded. Exit code: 0, 1 for an error, 130 when "
        "Ctrl-C ended the waiting.");
    of_one->callback([&options, action] { options.action = action; });
  }
  command->require_subcommand(0, 1);
  add_footer(*command,
             "Examples:\n"
             "  bulkhead models\n"
             "  bulkhead models load qwen2.5-7b-q4_k_m\n"
             "Exit code: 0, 1 for an error.");
  command->final_callback([&options, &code] { code = run_models(options); });
}

void add_top(CLI::App& app, TopOptions& options, int& code) {
  CLI::App* command =
      app.add_subcommand("top", "Show live what the workers do; keys sort, drain and restart them");
  add_connection(*command, options.connection, kTopTimeout);
  command->add_option("--sort", options.sort, "Order of the workers")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kTopOrders), std::end(kTopOrders))))
      ->capture_default_str();
  command->add_option("--interval", options.interval, "Seconds between two looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->add_flag("--once", options.once, "Print one frame as plain text, after one interval");
  command->add_flag("--json", options.json, "Print frames as JSON, a line each");
  add_footer(
      *command,
      "Examples:\n"
      "  bulkhead top\n"
      "  bulkhead top --once --json\n"
      "Keys: up and down (or k and j) select a worker, s sorts by the next column, d drains, r "
      "restarts, q quits. Rates and times to tokens are those of the last interval. Without a "
      "terminal it works as with --once. NO_COLOR=1 leaves colours out. Exit code: 0, 1 for an "
      "error, 130 when Ctrl-C ended --json.");
  command->callback([&options, &code] { code = run_top(options); });
}

void add_requests(CLI::App& app, RequestsOptions& options, int& code) {
  CLI::App* command =
      app.add_subcommand("requests", "Show the requests in progress, the oldest first");
  add_connection(*command, options.connection);
  command->add_flag("--json", options.json, "Print the API's JSON");
  add_footer(
      *command,
      "Examples:\n"
      "  bulkhead requests\n"
      "STATE: waiting (for a worker), reading (the prompt), answering. TRIES: how many workers "
      "have had the request; more than 1 if one died. Exit code: 0, 1 for an error.");
  command->callback([&options, &code] { code = run_requests(options); });
}

void add_logs(CLI::App& app, LogsOptions& options, int& code) {
  CLI::App* command =
      app.add_subcommand("logs", "Show what a worker wrote, and what the daemon's log says of it");
  add_connection(*command, options.connection);
  command->add_option("worker", options.worker, "Name, as `bulkhead workers` lists it")->required();
  command->add_option("-n,--lines", options.lines, "Lines at most, of those that the daemon keeps")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_flag("-f,--follow", options.follow, "Go on with new lines until Ctrl-C");
  command->add_flag("--json", options.json, "Print each line as JSON");
  add_footer(
      *command,
      "Examples:\n"
      "  bulkhead logs NAME --follow\n"
      "The daemon keeps the last 64 KiB of lines for each name, those of dead processes too. Times "
      "are UTC. Exit code: 0, also when Ctrl-C ended --follow; 1 for an error.");
  command->callback([&options, &code] { code = run_logs(options); });
}

void add_load_test(CLI::App& app, LoadTestOptions& options, int& code) {
  CLI::App* command = app.add_subcommand(
      "load-test", "Measure any OpenAI-compatible server: first token, tokens between, throughput");
  command->add_option("url,--url", options.connection.url, "Address of the server")
      ->envname("BULKHEAD_URL")
      ->capture_default_str();
  command->add_option("--api-key", options.connection.api_key, "API key, if the server needs one")
      ->envname("BULKHEAD_API_KEY");
  command->add_option("--model", options.model,
                      "Name of the model (default: the first one listed)");
  command->add_option("--requests", options.requests, "Requests in all")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  CLI::Option* concurrency =
      command->add_option("--concurrency", options.concurrency, "Requests at a time")
          ->check(CLI::Range(1, 2048))
          ->capture_default_str();
  command
      ->add_option("--rate", options.rate,
                   "Requests that arrive in a second, at random times, however many are unfinished")
      ->check(CLI::Range(0.001, 10000.0))
      ->excludes(concurrency);
  command->add_option("--prompt-words", options.prompt_words, "Words in a prompt")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--max-tokens", options.max_tokens, "Tokens of an answer at most")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_option("--seed", options.seed, "The same seed makes the same prompts and arrivals")
      ->check(not_negative())
      ->capture_default_str();
  command->add_flag("--completions", options.completions, "Ask /v1/completions, not for chats");
  command->add_flag(
      "--ignore-eos", options.ignore_eos,
      "Ask for answers of exactly --max-tokens (ignore_eos, which not every server supports)");
  command->add_flag("--greedy", options.greedy, "Ask for the likeliest tokens (temperature 0)");
  command->add_flag("--json", options.json, "Print the figures as JSON");
  add_footer(
      *command,
      "Examples:\n"
      "  bulkhead load-test http://127.0.0.1:8484 --concurrency 16 --requests 200\n"
      "  bulkhead load-test http://server:8000 --rate 4 --prompt-words 500 --max-tokens 200 "
      "--json\n"
      "No two prompts begin alike. Exit code: 0, 1 where a request failed, 130 when Ctrl-C ended "
      "it.");
  command->callback([&options, &code] { code = run_load_test(options); });
}

void add_perplexity(CLI::App& app, PerplexityOptions& options, int& code) {
  CLI::App* command = app.add_subcommand(
      "perplexity", "Measure how well a served model foresees a text, as llama.cpp does");
  add_connection(*command, options.connection);
  command->add_option("model", options.model, "Name, as `bulkhead models` lists it")->required();
  command->add_option("--file", options.file, "File with the text")->required();
  command->add_flag("--token-ids", options.token_ids,
                    "The file has token ids, as `bulkhead tokenize` prints them");
  command->add_option("-c,--context", options.context, "Tokens of a chunk")
      ->check(CLI::Range(4, 1 << 24))
      ->capture_default_str();
  command->add_option("--chunks", options.chunks, "Chunks at most; 0: all")
      ->check(not_negative())
      ->capture_default_str();
  command->add_flag("--json", options.json, "Print the figures as JSON");
  add_footer(
      *command,
      "Examples:\n"
      "  bulkhead perplexity llama-3.2-1b --file wiki.test.raw\n"
      "  bulkhead tokenize --model m.gguf < book.txt > ids\n"
      "  bulkhead perplexity m --file ids --token-ids --chunks 20\n"
      "The perplexity is what llama-perplexity computes: the text is cut into chunks, the model "
      "reads each chunk alone, and the second half of each chunk counts. Only figures of the same "
      "text, context and number of chunks can be compared.\n"
      "Exit code: 0, 1 for an error, 130 when Ctrl-C ended it.");
  command->callback([&options, &code] { code = run_perplexity(options); });
}

}  // namespace

void add_operating(CLI::App& app, OperatingOptions& options, int& code) {
  add_workers(app, options.workers, code);
  add_models(app, options.models, code);
  add_top(app, options.top, code);
  add_requests(app, options.requests, code);
  add_logs(app, options.logs, code);
  add_load_test(app, options.load_test, code);
  add_perplexity(app, options.perplexity, code);
}

}  // namespace bulkhead::cli
