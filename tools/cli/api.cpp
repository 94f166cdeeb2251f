#include "tools/cli/api.hpp"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <nlohmann/json.hpp>

#include "config/access_key.hpp"
#include "config/base/percent.hpp"
#include "tools/cli/sse.hpp"

namespace bulkhead::cli {

using nlohmann::json;

std::atomic<bool> interrupted{false};

namespace {

// Pauses; Ctrl-C ends the pause early.
void nap(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!interrupted && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Returns the workers in /health's answer for which a user of `model` waits. If no worker has that name, it may be an
// alias, so all workers count.
json concerned(const json& health, const std::string& model) {
  if (!health.is_object() || !health.contains("workers") || !health["workers"].is_array())
    return health;
  json own = json::array();
  for (const json& worker : health["workers"]) {
    if (worker.is_object() && worker.value("model", json()) == model) own.push_back(worker);
  }
  json all = health;
  if (!own.empty()) all["workers"] = std::move(own);
  return all;
}

// Returns a text such as "warm-up 43 %" from what /health says about the first worker that is not ready.
std::string progress_of(const json& health) {
  if (!health.is_object() || !health.contains("workers") || !health["workers"].is_array())
    return "";
  for (const json& worker : health["workers"]) {
    if (!worker.is_object() || worker.value("state", json()) == "ready") continue;
    std::string text = "the model is loading";
    if (worker.contains("stage") && worker["stage"].is_string() && worker["stage"] != "")
      text = worker["stage"];
    const json done = worker.value("done", json()), total = worker.value("total", json());
    if (done.is_number_unsigned() && total.is_number_unsigned() && total != 0)
      text += " " +
              std::to_string(percent_of(done.get<std::uint64_t>(), total.get<std::uint64_t>())) +
              " %";
    return text;
  }
  return "";
}

// Says whether /health names a worker that will become ready by itself. A drained or failed worker won't.
bool awaited(const json& health) {
  if (!health.is_object() || !health.contains("workers") || !health["workers"].is_array())
    return true;
  for (const json& worker : health["workers"]) {
    if (!worker.is_object()) continue;
    const std::string state =
        worker.contains("state") && worker["state"].is_string() ? worker["state"] : "";
    if (state != "ready" && state != "drained" && state != "draining" && state != "failed" &&
        state != "stopped") {
      return true;
    }
  }
  return false;
}

}  // namespace

void watch_interrupts(std::initializer_list<int> signals) {
  struct sigaction action {};
  action.sa_handler = [](int) {
    if (interrupted.exchange(true)) ::_exit(130);
  };
  sigemptyset(
      &action.sa_mask);  // without SA_RESTART, so that a read at the prompt notices the signal
  for (const int number : signals)
    ::sigaction(number, &action, nullptr);
}

Result<HttpClient> make_client(const Connection& connection, std::chrono::milliseconds usual) {
  BULKHEAD_TRY(Url url, parse_url(connection.url));
  if (const std::string why = config::why_never_sent(connection.api_key); !why.empty())
    return Error(ErrorCode::kInvalidArgument, "the API key (--api-key or BULKHEAD_API_KEY) " + why);
  HttpClient client(connection.url, std::move(url), connection.api_key, &interrupted);
  const double asked = connection.timeout_s.value_or(0);
  if (!connection.timeout_s) {
    client.answer_within(usual);
  } else if (asked > 0) {
    client.answer_within(std::chrono::milliseconds(static_cast<std::int64_t>(asked * 1000)));
  }
  return client;
}

Error api_error(const HttpResponse& response) {
  const json body = json::parse(response.body, nullptr, false);
  std::string message;
  bool outgrown = false, about_key = true;
  if (body.is_object() && body.contains("error")) {
    const json& error = body["error"];
    const json kind = error.is_object() ? error.value("code", json()) : json();
    outgrown = kind == "context_length_exceeded";
    about_key = kind != "forbidden_origin";
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      message = error["message"];
    if (error.is_string()) message = error;
  }
  if (message.empty()) {
    message = "the server answered with status " + std::to_string(response.status);
    if (!response.body.empty()) message += ": " + response.body.substr(0, 300);
  }
  ErrorCode code = ErrorCode::kInternal;
  if (response.status == 401 || response.status == 403) {
    code = ErrorCode::kInvalidArgument;
    if (about_key && message.ends_with('.')) message.pop_back();
    if (about_key) message += " (the key is --api-key or BULKHEAD_API_KEY)";
  } else if (outgrown) {
    code = ErrorCode::kResourceExhausted;
  } else if (response.status == 404) {
    code = ErrorCode::kNotFound;
  } else if (response.status == 429 || response.status == 503) {
    code = ErrorCode::kUnavailable;
  } else if (response.status >= 400 && response.status < 500) {
    code = ErrorCode::kInvalidArgument;
  }
  return Error(code, message);
}

Result<json> post_order(HttpClient& client, const std::string& path, const json& order) {
  constexpr int kAccepted = 202;
  BULKHEAD_TRY(const HttpResponse response, client.post(path, json_text(order)));
  if (response.status < 200 || response.status > 299) return api_error(response);
  json description = json::parse(response.body, nullptr, false);
  if (response.status == kAccepted && description.is_object()) return description;
  return Error(ErrorCode::kCorrupt,
               "the answer of " + client.url() + path + " agrees to nothing: is it a bulkheadd?");
}

Status wait_until_ready(HttpClient& client, const std::string& model) {
  const bool show = ::isatty(STDERR_FILENO) != 0;
  std::string shown;
  const auto clear = [&] {
    if (show && !shown.empty()) std::fprintf(stderr, "\r\033[K");
  };
  for (;;) {
    const Result<HttpResponse> health = client.get("/health");
    if (!health.ok()) {
      clear();
      return health.error();
    }
    if (health->status != 503) {
      clear();
      return {};  // 200, or the server has no /health; the request itself will show whether it serves
    }
    const json body = concerned(json::parse(health->body, nullptr, false), model);
    const json status = body.is_object() ? body.value("status", json()) : json();
    if (status == "draining") {
      clear();
      return Error(ErrorCode::kUnavailable,
                   "the server at " + client.url() + " is ending and takes no requests");
    }
    if (!awaited(body)) {
      clear();
      return {};  // for example a drained worker; the request's own answer says what is wrong
    }
    std::string text = progress_of(body);
    if (text.empty()) text = "the model is loading";
    if (show && text != shown) {
      std::fprintf(stderr, "\r\033[K%s ...", text.c_str());
      shown = text;
    } else if (!show && shown.empty()) {
      std::fprintf(stderr, "waiting: the model is loading\n");
      shown = text;
    }
    nap(std::chrono::milliseconds(200));
    if (interrupted) {
      clear();
      return Error(ErrorCode::kUnavailable, "stopped");
    }
  }
}

void Sampling::write_to(json& request) const {
  if (!model.empty()) request["model"] = model;
  if (max_tokens) request["max_tokens"] = *max_tokens;
  if (temperature) request["temperature"] = *temperature;
  if (top_p) request["top_p"] = *top_p;
  if (min_p) request["min_p"] = *min_p;
  if (top_k) request["top_k"] = *top_k;
  if (seed) request["seed"] = *seed;
  if (!stop.empty()) request["stop"] = stop;
}

namespace {

// Returns the member if it is a text that is not empty; otherwise null.
const std::string* text_in(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return nullptr;
  const auto* text = found->get_ptr<const std::string*>();
  return text->empty() ? nullptr : text;
}

std::optional<std::uint64_t> number_in(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<std::uint64_t>();
}

// Takes what one choice of an event brings: a completion's text, or a part of a chat's message.
void take_choice(const json& choice, Answer& answer, const OnPiece& on_text,
                 const OnPiece& on_reasoning) {
  if (!choice.is_object()) return;
  const auto delta = choice.find("delta");
  const bool chat = delta != choice.end() && delta->is_object();
  // vLLM calls the second one `reasoning`.
  for (const char* name : {"reasoning_content", "reasoning"}) {
    const std::string* thought = chat && on_reasoning ? text_in(*delta, name) : nullptr;
    if (thought == nullptr) continue;
    on_reasoning(*thought);
    break;
  }
  if (const std::string* text = chat ? text_in(*delta, "content") : text_in(choice, "text")) {
    answer.text += *text;
    on_text(*text);
  }
  if (const std::string* reason = text_in(choice, "finish_reason")) answer.finish_reason = *reason;
}

}  // namespace

Result<Answer> stream_answer(HttpClient& client, const std::string& path, json request,
                             const OnPiece& on_text, const OnPiece& on_reasoning) {
  request["stream"] = true;
  Answer answer;
  SseParser parser;
  std::optional<Error> failure;
  bool done = false;
  const auto on_data = [&](std::string_view data) {
    if (data == "[DONE]") {
      done = true;
      return;
    }
    const json event = json::parse(data, nullptr, false);
    if (event.is_discarded() || !event.is_object()) {
      failure = Error(ErrorCode::kCorrupt, "the server sent an event that is not JSON: " +
                                               std::string(data.substr(0, 200)));
      return;
    }
    if (event.contains("error")) {
      failure = api_error({200, "", std::string(data)});
      return;
    }
    if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
      answer.prompt_tokens = number_in(*usage, "prompt_tokens");
      answer.completion_tokens = number_in(*usage, "completion_tokens");
    }
    if (!event.contains("choices") || !event["choices"].is_array()) return;
    for (const json& choice : event["choices"])
      take_choice(choice, answer, on_text, on_reasoning);
  };
  const Result<HttpResponse> response =
      client.post_streaming(path, json_text(request), [&](std::string_view bytes) -> Status {
        if (!parser.push(bytes, on_data))
          return Error(ErrorCode::kCorrupt, "the server sent an event above 16 MiB");
        if (failure) return *failure;
        return {};
      });
  if (!response.ok()) {
    if (!client.stopped()) return response.error();
    answer.interrupted = true;
    return answer;
  }
  if (response->status != 200) return api_error(*response);
  if (!done && answer.finish_reason.empty()) {
    return Error(ErrorCode::kUnavailable,
                 "the answer broke off: the server closed the stream before its end");
  }
  return answer;
}

std::atomic<bool> output_failed{false};

bool put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      // A reader that has left needs no message; a full disk must be reported.
      if (errno != EPIPE && !output_failed.exchange(true))
        std::fprintf(stderr, "bulkhead: writing to stdout: %s\n", std::strerror(errno));
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

bool colours_wanted() {
  const char* const no_colour = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  const bool dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
  return !dumb && (no_colour == nullptr || *no_colour == '\0');
}

std::string json_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

bool put_json(const json& value) {
  return put(json_text(value) + "\n");
}

}  // namespace bulkhead::cli
