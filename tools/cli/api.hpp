// What the subcommands that talk to a daemon share: the address, waiting until it serves, and one streamed answer.
#pragma once

#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "config/base/error.hpp"
#include "tools/cli/http_client.hpp"

namespace bulkhead::cli {

struct Connection {
  std::string url = "http://127.0.0.1:8484";
  std::string api_key;
  std::optional<double> timeout_s = {};  // --timeout; 0: wait for ever
};

// How long a command waits for an answer that no model computes, unless the user says otherwise.
inline constexpr std::chrono::seconds kUsualTimeout{20};

// Ctrl-C sets this once watch_interrupts() was called; a second Ctrl-C before it is cleared ends the program. A command
// that must restore the terminal before it ends also watches SIGTERM.
extern std::atomic<bool> interrupted;
void watch_interrupts(std::initializer_list<int> signals = {SIGINT});

// Each get() and post() of the client ends after connection.timeout_s or, without that, after `usual`.
Result<HttpClient> make_client(const Connection& connection,
                               std::chrono::milliseconds usual = kUsualTimeout);

// Waits while the daemon says that the model (empty: any) is loading; shows a progress line on stderr if that is a
// terminal. It does not wait for a model that is drained or was given up, because the request's own answer reports
// that.
Status wait_until_ready(HttpClient& client, const std::string& model);

// Makes an Error from the "message" of an OpenAI-shaped error body, or from a readable part of
// another body. The code is kResourceExhausted if the prompt does not fit the model's context.
Error api_error(const HttpResponse& response);

// Orders something from the daemon, such as a worker's restart. Returns the daemon's description of what it is about to
// do. Returns an error unless the answer is a daemon's confirmation: a proxy's page with status 200 is none.
Result<nlohmann::json> post_order(HttpClient& client, const std::string& path,
                                  const nlohmann::json& order);

struct Sampling {
  std::string model;
  std::optional<std::uint32_t> max_tokens;
  std::optional<double> temperature, top_p, min_p;
  std::optional<std::uint32_t> top_k;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;

  void write_to(nlohmann::json& request) const;
};

struct Answer {
  std::string text;
  std::string finish_reason;  // "stop", "length"; empty if it was interrupted
  bool interrupted = false;
  // If the request has stream_options.include_usage and the answer came to its end.
  std::optional<std::uint64_t> prompt_tokens, completion_tokens;
};

using OnPiece = std::function<void(std::string_view)>;
// Posts with "stream": true. Passes each piece of text to `on_text` as it arrives, and each piece of
// reasoning to `on_reasoning`, if that is set. Ctrl-C ends the answer, not the program.
Result<Answer> stream_answer(HttpClient& client, const std::string& path, nlohmann::json request,
                             const OnPiece& on_text, const OnPiece& on_reasoning = {});

// Writes all of the text to stdout. Returns false if stdout's reader has left or the write failed. A failed write is
// reported on stderr once, and makes the program's exit code a failure (output_failed).
bool put(std::string_view text);
// Returns the value as JSON without a line end. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const nlohmann::json& value);
std::string json_text(const nlohmann::ordered_json& value);
// Does what put() does with the value as one line.
bool put_json(const nlohmann::json& value);
extern std::atomic<bool> output_failed;

// Returns whether to write colours to a terminal. NO_COLOR forbids them (no-color.org; an empty value counts as
// unset), and so does a TERM without colours.
bool colours_wanted();

}  // namespace bulkhead::cli
