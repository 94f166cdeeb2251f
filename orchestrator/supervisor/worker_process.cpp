#include "orchestrator/supervisor/worker_process.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/worker_users.hpp"
#include "orchestrator/supervisor/worker_log.hpp"

namespace bulkhead::orchestrator {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr int kRecordsPerTurn =
    256;  // after this many records, other workers and clients get their turn
// A process that has closed its channel must end within this time, or it is killed.
constexpr milliseconds kExitAfterEndOfFile{250};
constexpr milliseconds kExitAfterShutdown{5000};
// Cancelled requests whose end the worker has not confirmed.
constexpr std::size_t kMaxCancelled = 65536;
Error violation(std::string what) {
  return Error(ErrorCode::kCorrupt, std::move(what));
}

// The id of the user that a confined process becomes, or why it has none of its own.
std::string words_for_user(config::WorkerUserMode mode, const CacheFolder& cache) {
  if (mode == config::WorkerUserMode::kOff) return "isolation.worker_user is off";
  const std::optional<std::uint32_t> user = cache.worker_user();
  return user.has_value() ? std::to_string(*user) : worker_users_gap();
}

}  // namespace

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

WorkerProcess::WorkerProcess(EventLoop& loop, const WorkerOptions& options, Vault& vault,
                             CacheFolder& cache, std::string name, bool standby,
                             ProcessEvents& events)
    : loop_(loop),
      options_(options),
      vault_(vault),
      cache_(cache),
      name_(std::move(name)),
      events_(&events),
      standby_(standby),
      heartbeat_timer_(loop),
      kill_timer_(loop),
      stop_timer_(loop),
      exit_timer_(loop),
      alive_(std::make_shared<bool>(true)) {}

Status WorkerProcess::start(StartFiles files) {
  try {
    return begin(std::move(files));
  } catch (const std::exception& error) {  // there is no memory, or no thread for workers' logs
    loop_.caught("the start of a worker's process", error);
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("the daemon had no means to start it: {}", error.what()));
  }
}

Status WorkerProcess::begin(StartFiles files) {
  OomKills::of_workers();  // counts from the first start on
  file_mark_ = std::move(files.file_mark);
  template_mark_ = std::move(files.template_mark);
  if (vault_.closer()->full()) {
    return Error(
        ErrorCode::kResourceExhausted,
        fmt::format("{} descriptors that its predecessors sent are still to be closed; closing one "
                    "may wait for a device or a disk",
                    vault_.closer()->unclosed()));
  }
  BULKHEAD_TRY(ipc::ChannelPair pair, ipc::make_channel_pair(options_.ipc, vault_.closer()));
  std::vector<std::string> arguments = options_.arguments;
  std::ranges::move(cache_.arguments(), std::back_inserter(arguments));
  if (options_.user.has_value())
    arguments.insert(arguments.end(), {"--user", words_for_user(*options_.user, cache_)});
  if (standby_) arguments.push_back("--standby");
  asked_for_vault_ = options_.vault;
  if (asked_for_vault_) arguments.push_back("--vault");
  BULKHEAD_TRY(UniqueFd log, WorkerLogs::instance().open(name_));
  if (options_.groups != nullptr) group_ = options_.groups->make(name_, options_.most_memory_bytes);
  BULKHEAD_TRY(process_, Process::start(options_.program, std::move(arguments), pair, log.get(),
                                        options_.pid_namespace));
  group_.join(process_.pid());
  channel_ = std::move(pair.daemon);
  channel_watch_ = std::make_unique<ReadableWatch>(loop_, channel_->wait_fd());
  exit_watch_ = std::make_unique<ReadableWatch>(loop_, process_.exit_fd());
  exit_watch_->wait([this] { ended(); });
  spdlog::info("worker {}: started process {}", name_, process_.pid());
  if (asked_for_vault_) {
    const ipc::Vault given = vault_.give(*channel_);
    given_vault_ = given.epoch;
    given_file_mark_ = vault_.file_mark();
    send(given);
  }
  begin_heartbeat();
  watch_channel();
  return {};
}

void WorkerProcess::promote(std::string name, bool unsettled) {
  spdlog::info("worker {}: process {}, which stood by, takes over", name, process_.pid());
  name_ = std::move(name);
  promoted_ = true;
  stage_ = Stage::kLoading;
  unsettled_ = unsettled;
  vault_.close_slabs();  // processes that stand by import none
  send(ipc::Promote{vault_.may_adopt_kv() && vault_.epoch() == given_vault_, unsettled});
  begin_heartbeat();
}

void WorkerProcess::settle() {
  if (std::exchange(unsettled_, false)) send(ipc::Settled{});
}

// ---- receiving ----

void WorkerProcess::watch_channel() {
  // The daemon ignores what a process says after it was condemned. It has read all that a stopped process said.
  if (!kill_cause_.empty() || stopped_.has_value()) return;
  Result<bool> asleep = channel_->prepare_sleep();
  if (asleep.ok() && *asleep) {
    channel_watch_->wait([this] {
      ++traffic_.wakeups;
      channel_->finish_sleep();
      receive();
    });
    return;
  }
  if (!asleep.ok() && asleep.error().code() == ErrorCode::kCorrupt)
    return violated(asleep.error().message());
  // A message, or the channel's end, may be there already: this looks for it in a later turn of the loop.
  loop_.post([this, weak = std::weak_ptr(alive_)] {
    if (weak.expired() || channel_ == nullptr || stopped_.has_value()) return;
    channel_->finish_sleep();
    receive();
  });
}

void WorkerProcess::receive() {
  try {
    receive_all();
  } catch (const std::exception& error) {
    missed(error);
  }
}

// The receiver of a message catches what is about one request, and fails that request. Any other exception (there was
// no memory for a message or its descriptors) leaves the daemon without a message of the process. The process is not
// to blame, so it keeps its caches; its successor gets the requests as the journal has them.
void WorkerProcess::missed(const std::exception& error) {
  loop_.caught("the reading of a worker's message", error);
  kill("the daemon could not take a message of it");
}

Status WorkerProcess::take_record(std::span<const std::byte> record) {
  try {
    return receive_record(record);
  } catch (const std::exception& error) {
    missed(error);
    return {};
  }
}

void WorkerProcess::receive_all() {
  flush();
  for (int i = 0; i < kRecordsPerTurn && kill_cause_.empty(); ++i) {
    auto record = channel_->try_receive();
    if (!record.ok()) {
      if (record.error().code() == ErrorCode::kUnavailable) return channel_ended();
      return violated(record.error().message());
    }
    if (record->empty()) {
      // Descriptors of a vault or of a slab arrive before the message that they belong to, and wait for it.
      if (!may_offer() && !may_change_slabs() && channel_->waiting_descriptors() != 0)
        return violated("descriptors that nobody asked for");
      break;
    }
    Status handled = take_record(*record);
    channel_->release();
    if (!handled.ok()) return violated(handled.error().message());
  }
  watch_channel();
}

Status WorkerProcess::receive_record(std::span<const std::byte> record) {
  Status verdict;
  bool forward = false;
  auto visited = ipc::visit_tokens(record, [&](const ipc::SequenceTokensView& view) {
    if (!verdict.ok()) return;
    traffic_.tokens += view.tokens.size();
    if (stage_ != Stage::kServing) {
      verdict = violation("tokens before it was ready");
    } else if (has(view.request)) {
      forward |= !view.tokens.empty();
      verdict = events_->process_tokens(view);
    } else if (!cancelled_.contains(view.request)) {
      verdict = violation(
          fmt::format("tokens of request {}, which it does not have", view.request.value));
    }
  });
  if (!visited.ok()) return visited.error();
  BULKHEAD_RETURN_IF_ERROR(verdict);
  if (*visited) ++traffic_.records;
  if (*visited && !forward) BULKHEAD_RETURN_IF_ERROR(chatter());
  if (forward) heartbeat_.sign_of_life(steady_clock::now());
  if (*visited) return {};
  BULKHEAD_TRY(ipc::FromWorker message, ipc::decode_from_worker(record));
  return handle(std::move(message));
}

Status WorkerProcess::chatter() {
  if (chatter_.allow(steady_clock::now())) return {};
  return violation(fmt::format("more than {} messages in {} seconds that bring nothing forward",
                               ChatterLimit::kMost, ChatterLimit::kWindow.count()));
}

Status WorkerProcess::handle_hello(const ipc::Hello& hello) {
  if (stage_ != Stage::kStarting) return violation("a second hello");
  if (hello.protocol != ipc::protocol_version()) {
    fatal_ = fmt::format(
        "the worker program speaks protocol {}, this daemon {}: install both from one build",
        hello.protocol, ipc::protocol_version());
    return violation(fatal_);
  }
  stage_ = Stage::kLoading;
  events_->process_changed(*this);
  return {};
}

Status WorkerProcess::handle_ready(ipc::Ready&& ready) {
  constexpr std::uint32_t kMaxContext = 1U << 24;
  if (ready.context_limit == 0 || ready.context_limit > kMaxContext)
    return violation("an impossible context limit");
  ready_ = std::move(ready);
  if (!promoted_) {
    spdlog::info("worker {}: {}: {} on {}, context {}, loaded in {} ms", name_,
                 standby_ ? "stands by" : "ready", ready_.model_name, ready_.device,
                 ready_.context_limit, ready_.load_milliseconds);
    for (const ipc::Optimization& optimization : ready_.optimizations) {
      if (!optimization.active)
        spdlog::warn("worker {}: {} is off: {}", name_, optimization.name, optimization.reason);
    }
  }
  stage_ = standby_ && !promoted_ ? Stage::kStandby : Stage::kServing;
  watch_threads();
  events_->process_changed(*this);
  return {};
}

bool WorkerProcess::may_offer() const {
  if (!asked_for_vault_ || offered_vault_ || given_vault_ != 0 || (standby_ && !promoted_))
    return false;
  return loading() ||
         (stage_ == Stage::kServing && ready_.vault.state == ipc::VaultState::kWaiting);
}

Status WorkerProcess::handle_offer(const ipc::VaultOffer& offer) {
  if (!may_offer()) return violation("a vault that nobody asked for");
  offered_vault_ = true;
  const Status taken = vault_.take(*channel_, offer, file_mark_);
  if (!taken.ok() && taken.error().code() == ErrorCode::kResourceExhausted) {
    spdlog::warn("worker {}: no vault: {}; a successor will have to load the model", name_,
                 taken.error().message());
    return {};
  }
  BULKHEAD_RETURN_IF_ERROR(taken);
  if (stage_ == Stage::kServing) {
    ready_.vault.state = ipc::VaultState::kKept;
    ready_.vault.reason.clear();
    events_->process_offered(*this);
  }
  return {};
}

// The memory of a cache grows while it serves from a vault of its own, or from one that it imported.
bool WorkerProcess::may_change_slabs() const {
  return stage_ == Stage::kServing && (offered_vault_ || given_vault_ != 0);
}

Status WorkerProcess::handle(ipc::FromWorker&& message) {
  BULKHEAD_RETURN_IF_ERROR(check_limits(message));
  tidy(message);
  const auto now = steady_clock::now();
  if (const auto* pong = std::get_if<ipc::Pong>(&message)) {
    heartbeat_.answered(pong->nonce, now);
  } else {
    heartbeat_.sign_of_life(now);
  }

  if (const auto* hello = std::get_if<ipc::Hello>(&message)) return handle_hello(*hello);
  if (auto* fatal = std::get_if<ipc::Fatal>(&message)) {
    fatal_ = fatal->message.empty() ? "no reason given" : fatal->message;
    return {};  // the process's exit follows
  }
  if (stage_ == Stage::kStarting) return violation("its first message was no hello");
  if (auto* stats = std::get_if<ipc::Stats>(&message)) {
    stats_ = std::move(*stats);
    return chatter();
  }
  if (std::holds_alternative<ipc::Pong>(message)) return chatter();
  if (const auto* offer = std::get_if<ipc::VaultOffer>(&message)) return handle_offer(*offer);
  if (const auto* slab = std::get_if<ipc::VaultSlab>(&message)) {
    if (!may_change_slabs()) return violation("a slab of a vault that it does not have");
    BULKHEAD_RETURN_IF_ERROR(vault_.change_slab(*channel_, *slab));
    return chatter();
  }
  if (stage_ == Stage::kLoading) {
    if (auto* progress = std::get_if<ipc::Progress>(&message)) {
      progress_ = std::move(*progress);
      events_->process_changed(*this);
      return chatter();
    }
    if (auto* ready = std::get_if<ipc::Ready>(&message)) return handle_ready(std::move(*ready));
  }
  if (stage_ == Stage::kStandby) return violation("an answer, though it stands by");
  if (stage_ != Stage::kServing) return violation("an answer before it was ready");
  if (std::holds_alternative<ipc::Drained>(message)) {
    if (!asked_to_drain_) return violation("drained, but was not asked to drain");
    return chatter();
  }
  auto request_of = [](const auto& answer) -> std::optional<RequestId> {
    if constexpr (requires { answer.request; }) return answer.request;
    return std::nullopt;
  };
  std::optional<RequestId> request = std::visit(request_of, message);
  if (!request.has_value()) return violation("a message that does not belong here");
  if (cancelled_.contains(*request)) {
    const bool more_comes = std::holds_alternative<ipc::Accepted>(message) ||
                            std::holds_alternative<ipc::PromptTokens>(message);
    if (!more_comes) cancelled_.erase(*request);
    return chatter();
  }
  if (!has(*request))
    return violation(
        fmt::format("an answer to request {}, which it does not have", request->value));
  return events_->process_answer(std::move(message));
}

// ---- sending ----

Status WorkerProcess::submit(RequestId request, ipc::ToWorker message) {
  if (channel_ == nullptr)
    return Error(ErrorCode::kUnavailable, "worker " + name_ + " is not running");
  std::size_t bytes = ipc::encoded_bound(message);
  if (bytes > channel_->max_record_bytes()) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the request takes {} bytes, but the channel carries at most {} (ipc.ring_kib)",
                    bytes, channel_->max_record_bytes()));
  }
  bool was_idle = outstanding_.empty();
  outstanding_.insert(request);
  outbox_.push_back({request, std::move(message)});
  flush();
  if (was_idle) begin_heartbeat();
  return {};
}

void WorkerProcess::send(const ipc::ToWorker& message) {
  asked_to_drain_ |= std::holds_alternative<ipc::Drain>(message);
  outbox_.push_back({RequestId{}, message});
  flush();
}

void WorkerProcess::flush() {
  // Nothing more is sent to a stopped process, so no request is blamed for its death.
  while (!outbox_.empty() && channel_ != nullptr && kill_cause_.empty() && !stopped_.has_value()) {
    Result<bool> sent = ipc::try_send(*channel_, outbox_.front().message);
    if (!sent.ok()) {
      if (sent.error().code() == ErrorCode::kUnavailable)
        return;  // another place notices its death
      // This runs in a later turn of the loop, because the caller may be in the middle of its own work.
      loop_.post([this, weak = std::weak_ptr(alive_), rule = sent.error().message()] {
        if (!weak.expired() && channel_ != nullptr) violated(rule);
      });
      return;
    }
    if (!*sent) return;  // the channel wakes the loop when it has room
    outbox_.pop_front();
  }
}

void WorkerProcess::cancel(RequestId request) {
  if (outstanding_.erase(request) == 0) return;
  auto queued = std::ranges::find(outbox_, request, &Outgoing::request);
  if (queued != outbox_.end()) {
    outbox_.erase(queued);
  } else if (channel_ != nullptr) {
    cancelled_.insert(request);
    if (cancelled_.size() > kMaxCancelled)
      violated("it does not answer when requests are cancelled");
    send(ipc::Cancel{request});
  }
}

std::vector<WorkerProcess::Unfinished> WorkerProcess::unfinished() const {
  std::vector<Unfinished> all;
  for (RequestId request : outstanding_) {
    const bool queued = std::ranges::find(outbox_, request, &Outgoing::request) != outbox_.end();
    all.push_back({request, !queued});
  }
  std::ranges::sort(all, {}, &Unfinished::request);
  return all;
}

std::vector<WorkerProcess::Unfinished> WorkerProcess::take_unfinished() {
  std::vector<Unfinished> all = unfinished();
  outstanding_.clear();
  outbox_.clear();
  return all;
}

// ---- ending ----

void WorkerProcess::shut_down() {
  if (asked_to_end_) return;
  if (loading()) return kill("stopped while loading");  // a process that loads reads no messages
  asked_to_end_ = true;
  send(ipc::Shutdown{});
  kill_timer_.start(kExitAfterShutdown, [this] { kill("did not end when asked to"); });
}

void WorkerProcess::kill(const std::string& words, DeathCause cause) {
  if (process_.pid() < 0 || !kill_cause_.empty()) return;
  kill_cause_ = words;
  kill_kind_ = cause;
  dying();
  process_.kill();  // the pidfd reports its end
  lost();
}

void WorkerProcess::violated(const std::string& rule) {
  kill("protocol violation: " + rule, DeathCause::kProtocolViolation);
}

void WorkerProcess::dying() {
  dying_ = true;
  events_->process_dying(*this);
  if (exit_timer_.running() || stuck_) return;
  exit_timer_.start(options_.exit_timeout, [this] { exit_took_too_long(); });
}

void WorkerProcess::channel_ended() {
  dying();
  look_whether_stopped();
  if (stopped_.has_value()) return;
  if (asked_to_end_) return;  // it has already been given its time to end
  // The exit usually follows within moments. A process that has only closed its end can do nothing useful.
  kill_timer_.start(kExitAfterEndOfFile, [this] {
    look_whether_stopped();
    if (!stopped_.has_value()) kill("closed its channel without ending");
  });
}

// ---- figures ----

ipc::ChannelStats WorkerProcess::channel_stats() const {
  return channel_ == nullptr ? last_channel_stats_ : channel_->stats();
}

}  // namespace bulkhead::orchestrator
