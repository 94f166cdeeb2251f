#include "orchestrator/http/answer.hpp"

#include <algorithm>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/overloaded.hpp"
#include "config/base/random.hpp"
#include "orchestrator/http/key_limits.hpp"
#include "orchestrator/tracing/span_export.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kPromptBytesPerTurn = std::size_t{1} << 20;
// Copies of prompts that are not counted: translated bodies become somewhat longer.
constexpr std::size_t kUncountedBytes = std::size_t{64} << 10;

}  // namespace

std::size_t bytes_of(const Prompt& prompt) {
  return std::visit(Overloaded{
                        [](const std::string& text) { return text.size(); },
                        [](const std::vector<ipc::TokenId>& tokens) {
                          return tokens.size() * sizeof(ipc::TokenId);
                        },
                        [](const std::vector<ipc::ChatMessage>& messages) {
                          std::size_t bytes = 0;
                          for (const ipc::ChatMessage& each : messages)
                            bytes += each.role.size() + each.content.size();
                          return bytes;
                        },
                        [](const ipc::ChatPrompt& chat) { return chat.json.size(); },
                        [](const ipc::InfillPrompt& infill) {
                          std::size_t bytes = infill.prefix.size() + infill.suffix.size();
                          for (const ipc::InfillFile& file : infill.files)
                            bytes += file.name.size() + file.text.size();
                          return bytes;
                        },
                    },
                    prompt);
}

std::size_t bytes_of_parameters(const ipc::Submit& parameters) {
  std::size_t bytes = parameters.constraint.text.size() + parameters.tool_name.size() +
                      parameters.logit_bias.size() * sizeof(ipc::TokenBias) +
                      parameters.stop_tokens.size() * sizeof(ipc::TokenId);
  for (const auto* texts : {&parameters.stop, &parameters.allowed_tools}) {
    for (const std::string& each : *texts)
      bytes += each.size();
  }
  return bytes;
}

std::string_view Answer::key_name() const {
  return ticket_ == nullptr ? std::string_view() : ticket_->name();
}

void Answer::charge(std::uint64_t tokens) {
  if (ticket_ != nullptr) ticket_->charge(tokens);
}

void Answer::add_warnings(Exchange& exchange, std::span<const std::string> warnings) {
  for (const std::string& each : warnings) {
    const bool told = std::ranges::any_of(exchange.extra_headers, [&each](const auto& field) {
      return field.second == each;  // another choice of the same prompt has already added it
    });
    if (!told) exchange.extra_headers.emplace_back("X-Bulkhead-Warning", each);
  }
}

void Answer::watch(Exchange& exchange) {
  // This comes first: if there is no memory for the rest, the connection's end ends the answer.
  exchange.on_lost = [weak = weak_from_this()](Exchange::Lost how) {
    if (auto self = weak.lock()) self->lost(how);
  };
  if (std::exchange(knows_request_, true)) return;
  request_id_ = exchange.request_id();
  method_ = exchange.method;
  trace_ = exchange.trace;
  began_ = exchange.arrived;
}

void Answer::start_deadline(std::chrono::seconds timeout) {
  using std::chrono::microseconds;
  const auto left = std::chrono::duration_cast<microseconds>(began_ + timeout - Clock::now());
  deadline_.start(std::max(left, microseconds(0)), [this, timeout] {
    auto self = shared_from_this();
    fail(to_api_error({ipc::FailureCode::kTimeout,
                       fmt::format("The request took more than {} s (server.request_timeout_s).",
                                   timeout.count()),
                       ""}));
  });
}

void Answer::watch_silence(std::function<void()> send) {
  if (services_.keep_alive == std::chrono::seconds(0)) return;
  spoke_ = false;
  silence_.start(services_.keep_alive, [this, send = std::move(send)] {
    if (!spoke_) send();
    watch_silence(send);
  });
}

void Answer::tokens_came(Clock::time_point& last, std::size_t count) {
  const Clock::time_point now = Clock::now();
  if (first_token_ == Clock::time_point{}) {
    first_token_ = now;
    if (counts_first_token_) services_.metrics.time(events::kFirstToken, now - began_);
  }
  if (last != Clock::time_point{} && count > 0) {
    const std::chrono::duration<double> each = now - last;
    services_.metrics.time(events::kInterToken, each / static_cast<double>(count), count);
  }
  last = now;
  charge(count);
}

const char* Answer::count_lost(Exchange::Lost how) {
  if (how == Exchange::Lost::kTooSlow) {
    services_.metrics.count(events::kClientsLost, {"slow"});
    return "client too slow";
  }
  services_.metrics.count(events::kClientsLost, {"hung_up"});
  return "client hung up";
}

void Answer::fail(const ApiError& error) {
  end_with(error.status, error.code, [&] { tell(error); });
}

void Answer::lost(Exchange::Lost how) {
  if (over_) return;
  end_with(499, generates() ? count_lost(how) : "", [] {});
}

void Answer::end_with(int status, std::string_view how, const std::function<void()>& tell_client) {
  if (std::exchange(over_, true)) return;
  auto self = shared_from_this();
  // The answer ends whatever its steps throw, such as for lack of memory: nothing else would ever end it.
  const auto done = [this](const auto& step) {
    try {
      step();
      return true;
    } catch (const std::exception& error) {
      services_.loop.caught("a step of an answer's end", error);
      return false;
    }
  };
  done([this] { cancel(); });
  if (!done(tell_client)) {
    const ErrorKind& kind = error_kind(ipc::FailureCode::kInternal);
    status = kind.status;
    how = kind.code;
    done([this] { tell_exception(); });
  }
  done([&] { count_end(status, how); });
  done([this] { ended(); });
}

void Answer::count_end(int status, std::string_view how) {
  using log::Field;
  deadline_.cancel();
  silence_.cancel();
  const Facts facts = this->facts();
  charge(facts.usage.prompt_tokens);  // the answer's tokens were charged as they came
  RequestLine line = line_of(status);
  if (generates()) {
    services_.metrics.count(events::kTokens, {"prompt"}, facts.usage.prompt_tokens);
    services_.metrics.count(events::kTokens, {"completion"}, facts.usage.completion_tokens);
    services_.metrics.time(events::kRequest, line.took);
    const std::chrono::duration<double, std::milli> first_token = first_token_ - began_;
    line.more = {Field::quoted("model", facts.model),
                 Field::flag("stream", facts.stream),
                 Field::number("choices", facts.choices),
                 Field::quoted("end", how),
                 Field::number("prompt_tokens", facts.usage.prompt_tokens),
                 Field::number("cached_tokens", facts.usage.cached_tokens),
                 Field::number("completion_tokens", facts.usage.completion_tokens),
                 Field::milliseconds(
                     "ttft_ms", first_token_ == Clock::time_point{} ? -1.0 : first_token.count())};
    if (facts.recovered) line.more.push_back(Field::flag("recovered", true));
    if (services_.spans != nullptr) export_span(status, how, facts);
  }
  end_request(services_.metrics, std::move(line));
  ticket_.reset();
}

void Answer::queue_ended(Clock::time_point first_token, const ipc::Finished& finished) {
  if (first_token == Clock::time_point{}) return;
  const auto reading = std::chrono::microseconds(
      std::min<std::uint64_t>(finished.prefill_microseconds, std::uint64_t{1} << 40));
  services_.metrics.time(events::kPrefill, reading);
  services_.metrics.time(events::kQueue,
                         std::max<Clock::duration>(first_token - admitted_ - reading, {}));
  const Clock::time_point reading_began = std::max(admitted_, first_token - reading);
  if (reading_began_ == Clock::time_point{} || reading_began < reading_began_)
    reading_began_ = reading_began;
}

// A client that does not record its trace gets no span in it. A request without a trace begins one.
void Answer::export_span(int status, std::string_view how, const Facts& facts) const {
  if (trace_.known() && !trace_.sampled()) return;
  const auto now = Clock::now();
  const auto wall_now = GenerationSpan::Time::clock::now();
  const auto wall = [&](Clock::time_point time) {
    if (time == Clock::time_point{}) return GenerationSpan::Time{};
    return wall_now - std::chrono::duration_cast<GenerationSpan::Time::duration>(now - time);
  };
  const auto random_hex = [] { return fmt::format("{:016x}", random_u64() | 1); };
  GenerationSpan span;
  span.trace_id = trace_.known() ? std::string(trace_.trace_id()) : random_hex() + random_hex();
  span.span_id = trace_.known() ? trace_.span_id : random_hex();
  if (trace_.known()) span.parent_id = trace_.parent_id();
  span.name = method_.empty() ? endpoint_ : method_ + " " + endpoint_;
  span.began = wall(began_);
  span.ended = wall_now;
  span.reading_began = wall(reading_began_);
  span.first_token = wall(first_token_);
  span.status = status;
  span.end = how;
  span.request_id = facts.id;
  span.model = facts.model;
  span.prompt_tokens = facts.usage.prompt_tokens;
  span.cached_tokens = facts.usage.cached_tokens;
  span.completion_tokens = facts.usage.completion_tokens;
  services_.spans->add(std::move(span));
}

RequestLine Answer::line_of(int status) const {
  return {.method = method_,
          .endpoint = endpoint_,
          .status = status,
          .took = Clock::now() - began_,
          .trace = &trace_,
          .key = key_name(),
          .id = id()};
}

// ---- for as long as its client's connection ----

void ConnectedAnswer::begin(std::chrono::seconds timeout) {
  hold();
  watch(*exchange_);
  start_deadline(timeout);
}

void ConnectedAnswer::ended() {
  services_.router.expect_no_more(*this);
  release();
}

void ConnectedAnswer::start_each(std::size_t model, std::size_t count, StartOne start_one) {
  services_.router.expect(*this, model, count, count);
  start_from(0, count, start_one);
}

void ConnectedAnswer::start_from(std::size_t index, std::size_t count, const StartOne& start_one) {
  for (std::size_t bytes = 0; index < count && bytes < kPromptBytesPerTurn; ++index)
    bytes += start_one(index);
  if (index == count) return;
  services_.loop.post([this, weak = weak_from_this(), index, count, start_one] {
    const auto self = weak.lock();
    if (self == nullptr || over()) return;
    try {
      start_from(index, count, start_one);
    } catch (const std::exception& error) {
      services_.loop.caught("the start of an answer", error);
      fail(to_api_error({ipc::FailureCode::kInternal,
                         "The server could not begin the answer; it may lack memory.", ""}));
    }
  });
}

void ConnectedAnswer::begin_stream_in_time(const StreamStart& start) {
  if (streaming_) return;
  bool all = true;
  for (std::size_t first = 0; all && first < start.count; first += start.n) {
    bool any = false;
    for (std::size_t i = first; !any && i < first + start.n; ++i)
      any = start.accepted(i);
    all = any;
  }
  if (!all && std::exchange(watched_, true)) return;
  if (all) {
    streaming_ = true;
    start.begin();
  }
  watch_silence([this, begin = start.begin, send = start.send] {
    std::exchange(streaming_, true) ? send() : begin();
  });
}

bool ConnectedAnswer::hold_prompts(const GenerationRequest& request) {
  std::size_t bytes = 0;
  for (const Prompt& prompt : request.prompts)
    bytes += bytes_of(prompt);
  const std::size_t parameters = bytes_of_parameters(request.parameters);
  // Each answer has two copies of its prompt and of the parameters: one in the journal, and one in the message to a
  // worker. What the body holds covers the copies of one answer, except of stored items that the request only names.
  const std::size_t copies = 2 * (bytes + parameters * request.prompts.size()) * request.n;
  const std::size_t more = copies - std::min(copies, exchange_->held_bytes() + kUncountedBytes);
  if (more == 0 || exchange_->hold_more(more)) return true;
  const std::size_t answers = request.prompts.size() * request.n;
  const std::string copied = fmt::format(
      "copies of {} KiB of prompts{} for {}", bytes >> 10,
      parameters >> 10 == 0 ? "" : fmt::format(" and {} KiB of other parameters", parameters >> 10),
      answers == 1 ? "one answer" : fmt::format("{} answers", answers));
  const char* const parameter = request.n > 1 ? "n" : "";
  if (const std::size_t most = exchange_->most_to_hold(); copies > most + kUncountedBytes) {
    fail(to_api_error(
        {ipc::FailureCode::kInvalidRequest,
         fmt::format(
             "The {} take {} MiB, and server.max_memory_mb leaves {} MiB even if there is no other "
             "request; ask for fewer answers (n) at a time, or shorten the prompts.",
             copied, copies >> 20, most >> 20),
         parameter}));
  } else {
    fail(api_error(
        kOutOfMemory,
        fmt::format("The server has no room now for {} (server.max_memory_mb); try again, or ask "
                    "for fewer answers (n) at a time.",
                    copied),
        parameter));
  }
  return false;
}

void ConnectedAnswer::finish(std::string_view how, std::string_view last_events) {
  HttpResponse response;
  if (!streaming_)
    response.body = whole();  // if there is no memory for it, the answer can still fail
  end_with(200, how, [&] {
    exchange_->on_lost = nullptr;
    if (!streaming_) return exchange_->respond(std::move(response));
    if (!last_events.empty()) exchange_->write(last_events);
    exchange_->end_stream(false);
  });
}

void ConnectedAnswer::tell_exception() {
  tell(to_api_error({ipc::FailureCode::kInternal,
                     "The server could not send the answer; it may lack memory.", ""}));
}

void ConnectedAnswer::tell(const ApiError& error) {
  exchange_->on_lost = nullptr;
  if (!streaming_) return exchange_->respond(refuse_(error, exchange_->request_id()));
  if (const std::string event = failure(error); !event.empty()) exchange_->write(event);
  exchange_->end_stream(true);
}

}  // namespace bulkhead::orchestrator
