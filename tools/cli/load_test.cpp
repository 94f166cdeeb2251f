// `bulkhead load-test`: many streamed requests to a server, a thread each, and when their parts came.
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>

#include <nlohmann/json.hpp>

#include "tools/cli/commands.hpp"
#include "tools/cli/load_figures.hpp"
#include "tools/cli/load_request.hpp"
#include "tools/cli/sse.hpp"

namespace bulkhead::cli {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t kMostThreads = 2048;
constexpr std::chrono::milliseconds kShowEvery{200};

// Says whether an event brings text; the event is a completion's or a chat's.
bool has_text(const json& event) {
  if (!event.contains("choices") || !event["choices"].is_array()) return false;
  for (const json& choice : event["choices"]) {
    if (!choice.is_object()) continue;
    const json& from =
        choice.contains("delta") && choice["delta"].is_object() ? choice["delta"] : choice;
    for (const char* key : {"text", "content", "reasoning_content", "reasoning"}) {
      if (from.contains(key) && from[key].is_string() && from[key] != "") return true;
    }
  }
  return false;
}

class LoadTest {
 public:
  LoadTest(const LoadTestOptions& options, HttpClient client, std::string model)
      : options_(options), client_(std::move(client)), model_(std::move(model)) {}

  std::vector<LoadRecord> run() {
    const bool show = ::isatty(STDERR_FILENO) != 0;
    std::thread progress;
    if (show) progress = std::thread([this] { show_progress(); });
    if (options_.rate > 0) {
      arrive();
    } else {
      for (std::size_t i = 0; i < std::min(options_.concurrency, options_.requests); ++i)
        threads_.emplace_back([this] { ask_on(); });
    }
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    if (show) progress.join();
    return std::move(records_);
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

  // Sends one request after another until all have been sent.
  void ask_on() {
    while (!interrupted) {
      std::size_t number = 0;
      {
        std::lock_guard lock(mutex_);
        if (next_ == options_.requests) return;
        number = next_++;
      }
      ask(number);
    }
  }

  // Starts requests at random times, on average `rate` a second (a Poisson process), however many
  // are unfinished.
  void arrive() {
    std::mt19937_64 random(options_.seed);
    std::exponential_distribution<double> pause(options_.rate);
    double due = 0;
    for (std::size_t i = 0; i < options_.requests && !interrupted; ++i) {
      while (now() < due && !interrupted)
        std::this_thread::sleep_for(std::min(std::chrono::duration<double>(due - now()),
                                             std::chrono::duration<double>(0.05)));
      const std::size_t slot = free_slot();
      threads_[slot] = std::thread([this, i, slot] {
        ask(i);
        std::lock_guard lock(mutex_);
        ended_.push_back(slot);
        changed_.notify_all();
      });
      due += pause(random);
    }
  }

  // Returns a place in threads_ for one more thread. If kMostThreads requests are in progress, this
  // function waits until one of them ends.
  std::size_t free_slot() {
    std::unique_lock lock(mutex_);
    if (ended_.empty() && threads_.size() < kMostThreads) {
      threads_.emplace_back();
      return threads_.size() - 1;
    }
    changed_.wait(lock, [this] { return !ended_.empty(); });
    const std::size_t slot = ended_.back();
    ended_.pop_back();
    lock.unlock();
    threads_[slot].join();
    return slot;
  }

  void ask(std::size_t number) {
    LoadRecord record;
    SseParser parser;
    bool done = false;
    record.began = now();
    const auto on_data = [&](std::string_view data) {
      if (data == "[DONE]") {
        done = true;
        return;
      }
      const json event = json::parse(data, nullptr, false);
      if (!event.is_object()) return;
      if (event.contains("error")) record.error = api_error({200, "", std::string(data)}).message();
      if (has_text(event)) record.texts.push_back(now());
      if (!event.contains("usage") || !event["usage"].is_object()) return;
      const json tokens = event["usage"].value("completion_tokens", json());
      if (tokens.is_number_unsigned()) record.tokens = tokens.get<std::uint64_t>();
    };
    HttpClient client = client_;
    const char* const path = options_.completions ? "/v1/completions" : "/v1/chat/completions";
    const Result<HttpResponse> response = client.post_streaming(
        path, json_text(load_request(options_, model_, number)),
        [&](std::string_view bytes) -> Status {
          if (!parser.push(bytes, on_data))
            return Error(ErrorCode::kCorrupt, "the server sent an event above 16 MiB");
          return {};
        });
    record.ended = now();
    if (!response.ok()) {
      record.error = response.error().message();
    } else if (response->status != 200) {
      record.error = api_error(*response).message();
    } else if (!done && record.error.empty()) {
      record.error = "the answer broke off";
    }
    std::lock_guard lock(mutex_);
    if (interrupted && !record.error.empty()) return;  // ended by the user: says nothing
    records_.push_back(std::move(record));
  }

  void show_progress() {
    constexpr std::size_t kWidth = 30;
    std::unique_lock lock(mutex_);
    while (!over_) {
      const std::size_t filled = records_.size() * kWidth / options_.requests;
      std::fprintf(stderr, "\r\033[K[%s%s] %zu/%zu", std::string(filled, '#').c_str(),
                   std::string(kWidth - filled, '.').c_str(), records_.size(), options_.requests);
      changed_.wait_for(lock, kShowEvery);
    }
    std::fprintf(stderr, "\r\033[K");
  }

  const LoadTestOptions& options_;
  const HttpClient client_;
  const std::string model_;
  const Clock::time_point began_ = Clock::now();
  std::vector<std::thread> threads_;
  std::vector<std::size_t> ended_;  // indexes of threads that have nothing more to do
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_ = 0;
  bool over_ = false;
  std::vector<LoadRecord> records_;
};

Result<std::string> first_model(HttpClient& client) {
  BULKHEAD_TRY(const HttpResponse response, client.get("/v1/models"));
  if (response.status != 200) return api_error(response);
  const json body = json::parse(response.body, nullptr, false);
  const json data = body.is_object() ? body.value("data", json()) : json();
  if (!data.is_array() || data.empty() || !data[0].is_object() ||
      !data[0].value("id", json()).is_string())
    return Error(ErrorCode::kNotFound, client.url() + " lists no model; name one with --model");
  return data[0]["id"].get<std::string>();
}

}  // namespace

int run_load_test(const LoadTestOptions& options) {
  watch_interrupts();
  Result<HttpClient> client = make_client(options.connection);
  if (!client.ok()) return fail(client.error());
  std::string model = options.model;
  if (model.empty()) {
    Result<std::string> found = first_model(*client);
    if (!found.ok()) return fail(found.error());
    model = *found;
  }
  const LoadFigures figures = figures_of(LoadTest(options, *client, model).run());
  json out = to_json(figures);
  out["model"] = model;
  put(options.json ? json_text(out) + "\n" : to_text(figures));
  if (interrupted) return 130;
  return figures.failed == 0 && figures.requests == options.requests ? 0 : 1;
}

}  // namespace bulkhead::cli
