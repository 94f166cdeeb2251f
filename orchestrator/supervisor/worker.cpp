#include "orchestrator/supervisor/worker.hpp"

#include <signal.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "config/base/log.hpp"

namespace bulkhead::orchestrator {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr int kRecordsPerTurn = 256;  // then other workers and clients get theirs
constexpr milliseconds kExitAfterEndOfFile{
    250};  // a process that closed its channel ends within this, or is made to
constexpr milliseconds kExitAfterShutdown{5000};
constexpr milliseconds kFirstBackoff{250};
constexpr milliseconds kLongestBackoff{30000};
// How often a worker is looked at: a hang is noticed that much late, and twice that where the
// last beat came just after a look. An idle worker is asked for an answer now and then.
constexpr milliseconds kLookAtBusy{25}, kLookAtLoading{250}, kLookAtIdle{1000};
constexpr milliseconds kPingBusy{250};
constexpr int kLoadingPatience = 10;              // a step of loading may take so many heartbeats
constexpr std::uint32_t kDeathsAtFirstStart = 3;  // then the daemon gives up
// Requests that were cancelled and of which the worker has not said the last word.
constexpr std::size_t kMaxCancelled = 65536;
// More than a dead process can have left to be read, whatever the transport, but for its ring.
constexpr std::uint64_t kMostLastBytes = std::uint64_t{20} << 20;

ipc::ChannelStats sum(ipc::ChannelStats a, const ipc::ChannelStats& b) {
  a.records_sent += b.records_sent;
  a.records_received += b.records_received;
  a.bytes_sent += b.bytes_sent;
  a.bytes_received += b.bytes_received;
  a.full_stalls += b.full_stalls;
  a.doorbells_sent += b.doorbells_sent;
  a.sleeps += b.sleeps;
  a.depth_bytes = b.depth_bytes;
  a.max_depth_bytes = std::max(a.max_depth_bytes, b.max_depth_bytes);
  return a;
}

// One for all workers: each kill that is counted ends one of them.
OomKills& oom_kills() {
  static OomKills kills(OomKills::files());
  return kills;
}

Error violation(std::string what) {
  return Error(ErrorCode::kCorrupt, std::move(what));
}

}  // namespace

const char* to_string(WorkerState state) {
  switch (state) {
    case WorkerState::kStarting:
      return "starting";
    case WorkerState::kLoading:
      return "loading";
    case WorkerState::kReady:
      return "ready";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kDrained:
      return "drained";
    case WorkerState::kRestarting:
      return "restarting";
    case WorkerState::kFailed:
      return "failed";
    case WorkerState::kStopped:
      return "stopped";
  }
  return "unknown";
}

Worker::Worker(EventLoop& loop, WorkerOptions options, WorkerEvents& events)
    : loop_(loop),
      options_(std::move(options)),
      events_(events),
      heartbeat_timer_(loop),
      restart_timer_(loop),
      kill_timer_(loop) {}

Worker::~Worker() = default;

void Worker::start() {
  spawn();
}

void Worker::set_state(WorkerState state) {
  if (state_ == state) return;
  state_ = state;
  spdlog::debug("worker {}: {}", name(), to_string(state));
  events_.worker_changed(*this);
}

void Worker::spawn() {
  ++incarnation_;
  oom_kills();  // counts from the first start on
  kill_cause_.clear();
  fatal_.clear();
  asked_to_end_ = false;
  restart_after_drain_ = false;
  last_beat_.reset();
  pong_nonce_ = ping_nonce_;
  progress_ = {};
  stats_ = {};
  chatter_ = {};  // a predecessor's flood is not this process's

  auto pair = ipc::make_channel_pair(options_.ipc);
  Result<Process> process = pair.ok() ? Process::start(options_.program, options_.arguments, *pair)
                                      : Result<Process>(pair.error());
  if (!process.ok()) {
    // Not the worker's doing, and trying again at once won't help.
    last_death_ = "failed start: " + process.error().message();
    last_death_cause_ = DeathCause::kFailedStart;
    spdlog::error("worker {}: {}", name(), last_death_);
    if (!ever_ready_) {
      set_state(WorkerState::kFailed);
      events_.worker_failed(*this, last_death_);
      return;
    }
    ++deaths_without_token_;
    schedule_restart(false);
    return;
  }
  process_ = *std::move(process);
  channel_ = std::move(pair->daemon);
  channel_watch_ = std::make_unique<ReadableWatch>(loop_, channel_->wait_fd());
  exit_watch_ = std::make_unique<ReadableWatch>(loop_, process_.exit_fd());
  exit_watch_->wait([this] { process_ended(); });
  spdlog::info("worker {}: started process {}", name(), process_.pid());
  state_ = WorkerState::kStarting;
  begin_heartbeat();
  watch_channel();
  events_.worker_changed(*this);
}

// ---- receiving ----

void Worker::watch_channel() {
  if (!kill_cause_.empty()) return;  // nothing that a condemned process says counts
  Result<bool> asleep = channel_->prepare_sleep();
  if (asleep.ok() && *asleep) {
    channel_watch_->wait([this] {
      ++token_traffic_.wakeups;
      channel_->finish_sleep();
      receive();
    });
    return;
  }
  if (!asleep.ok() && asleep.error().code() == ErrorCode::kCorrupt)
    return violated(asleep.error().message());
  // Something is there already (or the end is): look at it in a turn of its own.
  loop_.post([this, incarnation = incarnation_] {
    if (incarnation != incarnation_ || channel_ == nullptr) return;
    channel_->finish_sleep();
    receive();
  });
}

void Worker::receive() {
  flush();
  for (int i = 0; i < kRecordsPerTurn && kill_cause_.empty(); ++i) {
    auto record = channel_->try_receive();
    if (!record.ok()) {
      if (record.error().code() == ErrorCode::kUnavailable) return channel_ended();
      return violated(record.error().message());
    }
    if (record->empty()) {
      // Woken for nothing: by descriptors, perhaps. None are expected: closed here.
      if (i == 0) channel_->take_descriptors();
      break;
    }
    Status handled = receive_record(*record);
    channel_->release();
    if (!handled.ok()) return violated(handled.error().message());
  }
  watch_channel();
}

Status Worker::receive_record(std::span<const std::byte> record) {
  bool serving = state_ == WorkerState::kReady || state_ == WorkerState::kDraining ||
                 state_ == WorkerState::kDrained;
  Status verdict;
  bool with_logprobs = false, forward = false;
  auto visited = ipc::visit_tokens(record, [&](const ipc::SequenceTokensView& view) {
    if (!verdict.ok()) return;
    token_traffic_.tokens += view.tokens.size();
    if (!serving) {
      verdict = violation("tokens before it was ready");
    } else if (view.logprob_count > 0) {
      with_logprobs = true;  // handle() takes these sequences: the view does not carry logprobs
      forward |= has(view.request);
    } else if (has(view.request)) {
      forward |= !view.tokens.empty();
      verdict = events_.worker_tokens(*this, view, {});
    } else if (!cancelled_.contains(view.request)) {
      verdict = violation(
          fmt::format("tokens of request {}, which it does not have", view.request.value));
    }
  });
  if (!visited.ok()) return visited.error();
  BULKHEAD_RETURN_IF_ERROR(verdict);
  if (*visited) ++token_traffic_.records;
  if (*visited && !forward) BULKHEAD_RETURN_IF_ERROR(chatter());
  if (forward) last_sign_of_life_ = steady_clock::now();
  if (*visited && !with_logprobs) return {};
  BULKHEAD_TRY(ipc::FromWorker message, ipc::decode_from_worker(record));
  return handle(std::move(message));
}

Status Worker::chatter() {
  if (chatter_.allow(steady_clock::now())) return {};
  return violation(fmt::format("more than {} messages in a second that bring nothing forward",
                               ChatterLimit::kPerSecond));
}

Status Worker::handle(ipc::FromWorker&& message) {
  BULKHEAD_RETURN_IF_ERROR(check_limits(message));
  tidy(message);
  bool serving = state_ == WorkerState::kReady || state_ == WorkerState::kDraining ||
                 state_ == WorkerState::kDrained;
  bool loading = state_ == WorkerState::kLoading;
  auto* pong = std::get_if<ipc::Pong>(&message);
  if (pong != nullptr) pong_nonce_ = pong->nonce;
  if (pong == nullptr || !last_beat_.has_value()) {
    last_sign_of_life_ =
        steady_clock::now();  // with a step counter, a pong alone proves no progress
  }

  if (auto* hello = std::get_if<ipc::Hello>(&message)) {
    if (state_ != WorkerState::kStarting) return violation("a second hello");
    if (hello->protocol != ipc::kProtocolVersion) {
      fatal_ = fmt::format(
          "the worker program speaks protocol {}, this daemon {}: install both from one build",
          hello->protocol, ipc::kProtocolVersion);
      return violation(fatal_);
    }
    recovery.greeted();
    set_state(WorkerState::kLoading);
    return {};
  }
  if (auto* fatal = std::get_if<ipc::Fatal>(&message)) {
    fatal_ = fatal->message.empty() ? "no reason given" : fatal->message;
    return {};  // its exit follows
  }
  if (state_ == WorkerState::kStarting) return violation("its first message was no hello");
  if (auto* stats = std::get_if<ipc::Stats>(&message)) {
    stats_ = std::move(*stats);
    return chatter();
  }
  if (std::holds_alternative<ipc::Pong>(message)) return chatter();
  if (loading) {
    if (auto* progress = std::get_if<ipc::Progress>(&message)) {
      progress_ = std::move(*progress);
      events_.worker_changed(*this);
      return chatter();
    }
    if (auto* ready = std::get_if<ipc::Ready>(&message)) {
      constexpr std::uint32_t kMaxContext = 1U << 24;
      if (ready->context_limit == 0 || ready->context_limit > kMaxContext)
        return violation("an impossible context limit");
      ready_ = std::move(*ready);
      ever_ready_ = true;
      recovery.ready(Recovery::Way::kLoaded);
      spdlog::info("worker {}: ready: {} on {}, context {}, loaded in {} ms", name(),
                   ready_.model_name, ready_.device, ready_.context_limit,
                   ready_.load_milliseconds);
      for (const ipc::Optimization& optimization : ready_.optimizations) {
        if (!optimization.active) {
          spdlog::warn("worker {}: {} is off: {}", name(), optimization.name, optimization.reason);
        }
      }
      set_state(WorkerState::kReady);
      return {};
    }
  }
  if (!serving) return violation("an answer before it was ready");
  if (std::holds_alternative<ipc::Drained>(message)) {
    if (state_ == WorkerState::kReady) return violation("drained, but was not asked to drain");
    return chatter();
  }
  if (auto* batch = std::get_if<ipc::TokenBatch>(&message)) {
    for (const ipc::SequenceTokens& sequence : batch->sequences) {
      if (sequence.logprobs.empty()) continue;  // receive_record() has taken it
      if (!has(sequence.request)) {
        if (cancelled_.contains(sequence.request)) continue;
        return violation(
            fmt::format("tokens of request {}, which it does not have", sequence.request.value));
      }
      ipc::SequenceTokensView view{sequence.request, sequence.first_index, sequence.tokens,
                                   sequence.text,
                                   static_cast<std::uint32_t>(sequence.logprobs.size())};
      BULKHEAD_RETURN_IF_ERROR(events_.worker_tokens(*this, view, sequence.logprobs));
    }
    return {};
  }

  auto request_of = [](const auto& answer) -> std::optional<RequestId> {
    if constexpr (requires { answer.request; }) return answer.request;
    return std::nullopt;
  };
  std::optional<RequestId> request = std::visit(request_of, message);
  if (!request.has_value()) return violation("a message that does not belong here");
  if (cancelled_.contains(*request)) {
    if (!std::holds_alternative<ipc::Accepted>(message)) cancelled_.erase(*request);
    return chatter();
  }
  if (!has(*request))
    return violation(
        fmt::format("an answer to request {}, which it does not have", request->value));
  return events_.worker_answer(*this, std::move(message));
}

// ---- sending ----

Status Worker::submit(RequestId request, const ipc::ToWorker& message) {
  if (channel_ == nullptr)
    return Error(ErrorCode::kUnavailable, "worker " + name() + " is not running");
  std::size_t bytes = ipc::encoded_bound(message);
  if (bytes > channel_->max_record_bytes()) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the request takes {} bytes, but the channel carries at most {} (ipc.ring_kib)",
                    bytes, channel_->max_record_bytes()));
  }
  bool was_idle = outstanding_.empty();
  outstanding_.insert(request);
  outbox_.push_back({request, message});
  flush();
  if (was_idle) begin_heartbeat();
  return {};
}

void Worker::flush() {
  while (!outbox_.empty() && channel_ != nullptr && kill_cause_.empty()) {
    Result<bool> sent = ipc::try_send(*channel_, outbox_.front().message);
    if (!sent.ok()) {
      if (sent.error().code() == ErrorCode::kUnavailable) return;  // its death is noticed elsewhere
      // From a timer of its own: the caller may be in the middle of something.
      loop_.post([this, incarnation = incarnation_, rule = sent.error().message()] {
        if (incarnation == incarnation_ && channel_ != nullptr) violated(rule);
      });
      return;
    }
    if (!*sent) return;  // the channel wakes us when there is room
    outbox_.pop_front();
  }
}

void Worker::cancel(RequestId request) {
  if (outstanding_.erase(request) == 0) return;
  auto queued = std::ranges::find(outbox_, request, &Outgoing::request);
  if (queued != outbox_.end()) {
    outbox_.erase(queued);
  } else if (channel_ != nullptr) {
    cancelled_.insert(request);
    if (cancelled_.size() > kMaxCancelled)
      violated("it does not answer when requests are cancelled");
    outbox_.push_back({RequestId{}, ipc::Cancel{request}});
    flush();
  }
  end_after_drain();
}

void Worker::finished(RequestId request) {
  outstanding_.erase(request);
  end_after_drain();
}

// ---- ending and starting again ----

void Worker::drain() {
  if (state_ != WorkerState::kReady) return;
  set_state(WorkerState::kDraining);
  outbox_.push_back({RequestId{}, ipc::Drain{}});
  flush();
  end_after_drain();
}

bool Worker::profile() {
  if (state_ != WorkerState::kReady) return false;
  outbox_.push_back({RequestId{}, ipc::Profile{}});
  flush();
  return true;
}

void Worker::restart() {
  if (state_ == WorkerState::kStopped || asked_to_end_) return;
  if (state_ == WorkerState::kRestarting || state_ == WorkerState::kFailed) {
    schedule_restart(true);
    events_.worker_changed(*this);
    return;
  }
  if (state_ == WorkerState::kStarting || state_ == WorkerState::kLoading) {
    kill("restarted by request while loading");
    return;
  }
  restart_after_drain_ = true;
  if (state_ == WorkerState::kReady) return drain();
  end_after_drain();
}

void Worker::end_after_drain() {
  if (state_ != WorkerState::kDraining && state_ != WorkerState::kDrained) return;
  if (!outstanding_.empty()) return;
  set_state(WorkerState::kDrained);
  if (!restart_after_drain_ || asked_to_end_) return;
  asked_to_end_ = true;
  outbox_.push_back({RequestId{}, ipc::Shutdown{}});
  flush();
  kill_timer_.start(kExitAfterShutdown, [this] { kill("did not end when asked to"); });
}

void Worker::stop() {
  restart_timer_.cancel();
  heartbeat_timer_.cancel();
  bool serving = state_ == WorkerState::kReady || state_ == WorkerState::kDraining ||
                 state_ == WorkerState::kDrained;
  set_state(WorkerState::kStopped);
  if (channel_ == nullptr) return;
  if (!serving) return kill("stopped while loading");  // it reads no message now
  asked_to_end_ = true;
  outbox_.push_back({RequestId{}, ipc::Shutdown{}});
  flush();
  kill_timer_.start(kExitAfterShutdown, [this] { kill("did not end when asked to"); });
}

void Worker::kill(const std::string& words, DeathCause cause) {
  if (process_.pid() < 0 || !kill_cause_.empty()) return;
  kill_cause_ = words;
  kill_kind_ = cause;
  recovery.noticed();
  process_.kill();  // its end comes through the pidfd
}

void Worker::violated(const std::string& rule) {
  kill("protocol violation: " + rule, DeathCause::kProtocolViolation);
}

void Worker::channel_ended() {
  recovery.noticed();
  // The exit follows within moments; a process that only closed its end is no use to anyone.
  kill_timer_.start(kExitAfterEndOfFile, [this] { kill("closed its channel without ending"); });
}

// Before anything of the process is forgotten.
Worker::Death Worker::how_it_ended(const Exit& exit) const {
  if (!kill_cause_.empty()) return {kill_kind_, kill_cause_};
  const std::string words = describe_exit(exit.code, exit.status);
  if (exit.killed_by(SIGKILL) && oom_kills().grew())
    return {DeathCause::kOutOfMemory, "out of memory: " + words + " by the kernel's OOM killer"};
  const std::string said = fatal_.empty() ? words : fatal_ + " (" + words + ")";
  if (!fatal_.empty() && exit.exited_with(kExitDeviceLost)) {
    const bool told = fatal_.find("device lost") != std::string::npos;
    return {DeathCause::kDeviceLost, told ? said : "device failure: " + said};
  }
  if (exit.code != CLD_EXITED) return {DeathCause::kSignal, said};
  if (state_ == WorkerState::kStarting || state_ == WorkerState::kLoading)
    return {DeathCause::kFailedStart, "failed start: " + said};
  return {DeathCause::kExit, said};
}

void Worker::process_ended() {
  recovery.noticed();
  // What it sent before it died counts: those tokens are accepted, and the client gets them.
  // A process of its own making may still write: it is not listened to for long.
  const std::uint64_t most_bytes = kMostLastBytes + std::uint64_t{options_.ipc.ring_kib} * 1024;
  std::uint64_t bytes = 0;
  for (int i = 0; channel_ != nullptr && i < 65536 && bytes < most_bytes && kill_cause_.empty();
       ++i) {
    auto record = channel_->try_receive();
    if (!record.ok() || record->empty()) break;
    bytes += record->size();
    Status handled = receive_record(*record);
    channel_->release();
    if (!handled.ok()) break;
  }

  std::optional<Exit> exit = process_.ended();
  if (!exit.has_value()) {  // a spurious wake-up
    exit_watch_->wait([this] { process_ended(); });
    return;
  }
  const auto [kind, cause] = how_it_ended(*exit);
  bool at_first_start = !ever_ready_;
  bool wanted = asked_to_end_ && kill_cause_.empty();
  ended_as_asked_ = wanted;

  heartbeat_timer_.cancel();
  kill_timer_.cancel();
  channel_watch_.reset();
  exit_watch_.reset();
  if (channel_ != nullptr) ended_channels_ = sum(ended_channels_, channel_->stats());
  channel_.reset();
  process_ = Process();
  ++incarnation_;

  std::vector<WorkerEvents::Orphan> orphans;
  for (RequestId request : outstanding_) {
    bool queued = std::ranges::find(outbox_, request, &Outgoing::request) != outbox_.end();
    orphans.push_back({request, !queued});
  }
  std::ranges::sort(orphans, {}, [](const WorkerEvents::Orphan& orphan) { return orphan.request; });
  outbox_.clear();
  outstanding_.clear();
  cancelled_.clear();

  if (state_ == WorkerState::kStopped) {
    events_.worker_changed(*this);
    return;
  }
  if (!wanted) {
    last_death_ = cause;
    last_death_cause_ = kind;
    spdlog::error("worker {}: died: {}; {} unfinished request(s)", name(), cause, orphans.size());
    ++deaths_without_token_;
    recovery.ended(orphans.size());
  } else {
    recovery.ended_as_asked();
    spdlog::info("worker {}: ended as asked", name());
  }
  if (at_first_start && !wanted &&
      (!fatal_.empty() || deaths_without_token_ >= kDeathsAtFirstStart)) {
    set_state(WorkerState::kFailed);
    events_.worker_died(*this, cause, std::move(orphans));
    events_.worker_failed(*this, fatal_.empty() ? cause : fatal_);
    return;
  }
  state_ = WorkerState::kRestarting;
  events_.worker_died(*this, cause, std::move(orphans));
  if (state_ != WorkerState::kRestarting) return;  // stopped from within
  schedule_restart(wanted);
  events_.worker_changed(*this);
}

void Worker::schedule_restart(bool immediately) {
  milliseconds delay{0};
  if (!immediately && deaths_without_token_ > 1) {
    std::uint32_t doublings = std::min(deaths_without_token_ - 2, 10U);
    delay = std::min(kFirstBackoff * (1 << doublings), kLongestBackoff);
    spdlog::warn("worker {}: {} deaths without a token in between; next start in {} ms", name(),
                 deaths_without_token_, delay.count());
  }
  state_ = WorkerState::kRestarting;
  restart_timer_.start(delay, [this] {
    ++restarts_;
    spawn();
  });
}

void Worker::token_accepted() {
  deaths_without_token_ = 0;
}

// ---- heartbeat ----

void Worker::begin_heartbeat() {
  last_sign_of_life_ = steady_clock::now();
  look_again();
}

void Worker::look_again() {
  const bool loading = state_ == WorkerState::kStarting || state_ == WorkerState::kLoading;
  const milliseconds most = loading ? kLookAtLoading
                            : outstanding_.empty()
                                ? std::max(kLookAtIdle, options_.heartbeat_timeout / 2)
                                : kLookAtBusy;
  const milliseconds least = !loading && outstanding_.empty() ? kLookAtIdle : milliseconds(5);
  heartbeat_timer_.start(std::clamp(options_.heartbeat_timeout / 4, least, most),
                         [this] { check_heartbeat(); });
}

void Worker::check_heartbeat() {
  if (channel_ == nullptr || !kill_cause_.empty()) return;
  const bool loading = state_ == WorkerState::kStarting || state_ == WorkerState::kLoading;
  if (!loading && outstanding_.empty()) {
    // It has no step to count, but one that can't answer would only be found out by the next
    // request, which would wait for it.
    if (!asked_to_end_ && !answers_pings())
      return kill(
          fmt::format("hang: idle, and no answer for {} ms", options_.heartbeat_timeout.count()),
          DeathCause::kHang);
    return look_again();
  }
  const auto now = steady_clock::now();
  std::optional<std::uint64_t> beat = channel_->last_beat();
  if (beat != last_beat_) {
    last_beat_ = beat;
    last_sign_of_life_ = now;
  }
  milliseconds patience = options_.heartbeat_timeout * (loading ? kLoadingPatience : 1);
  if (now - last_sign_of_life_ > patience) {
    return kill(fmt::format("hang: no progress for {} ms{}", patience.count(),
                            loading ? " while loading" : ""),
                DeathCause::kHang);
  }
  // Over a transport without a step counter, an answered ping is the sign of life.
  const milliseconds between_pings = std::min(kPingBusy, options_.heartbeat_timeout / 4);
  if (!loading && !beat.has_value() && outbox_.empty() && now - pinged_ >= between_pings) {
    pinged_ = now;
    outbox_.push_back({RequestId{}, ipc::Ping{++ping_nonce_}});
    flush();
  }
  look_again();
}

// Whether it has answered the last ping, or has time left to; if it has, it gets another.
bool Worker::answers_pings() {
  const auto now = steady_clock::now();
  if (pong_nonce_ != ping_nonce_) return now - pinged_ <= options_.heartbeat_timeout;
  if (!outbox_.empty()) return true;
  pinged_ = now;
  outbox_.push_back({RequestId{}, ipc::Ping{++ping_nonce_}});
  flush();
  return true;
}

ipc::ChannelStats Worker::channel_stats() const {
  return channel_ == nullptr ? ended_channels_ : sum(ended_channels_, channel_->stats());
}

}  // namespace bulkhead::orchestrator
