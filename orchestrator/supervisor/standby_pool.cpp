#include "orchestrator/supervisor/standby_pool.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "config/base/log.hpp"

namespace bulkhead::orchestrator {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

const char* to_string(Spare::State state) {
  switch (state) {
    case Spare::State::kStarting:
      return "starting";
    case Spare::State::kLoading:
      return "loading";
    case Spare::State::kStandby:
      return "standby";
    case Spare::State::kRestarting:
      return "restarting";
    case Spare::State::kFailed:
      return "failed";
  }
  return "unknown";
}

Spare::Spare(EventLoop& loop, const WorkerOptions& options, Vault& vault, CacheFolder& cache,
             std::string name, const Hooks& hooks)
    : loop_(loop),
      options_(options),
      vault_(vault),
      cache_(cache),
      name_(std::move(name)),
      hooks_(hooks),
      timer_(loop) {}

void Spare::set_state(State state) {
  state_ = state;
  hooks_.changed();
}

void Spare::start_in(milliseconds delay) {
  timer_.start(delay, [this] { start(); });
}

void Spare::start() {
  try {
    try_to_start();
  } catch (const std::exception& error) {
    go_on_after("the start of a spare", error);
  }
}

// What was thrown (there is no memory) has ended a call that would have started a process, or had this spare removed.
// Nothing else would do that.
void Spare::go_on_after(const char* what, const std::exception& error) {
  constexpr milliseconds kAgain{1000};
  loop_.caught(what, error);
  if (leaving_) return timer_.start(kAgain, [this] { hooks_.changed(); });
  if (process_ != nullptr || state_ == State::kFailed) return;
  state_ = State::kRestarting;
  start_in(kAgain);
}

void Spare::try_to_start() {
  held_up_ = !hooks_.may_start();
  if (held_up_) {
    spdlog::error("worker {}: not started: too many processes of its worker have not ended", name_);
    return set_state(State::kFailed);
  }
  const bool checked = start_files_.begun() || cache_.passed(cache_check_);
  const StartFilesLook::Paths paths{options_.model_file, options_.chat_template, options_.program};
  if (!checked || !start_files_.passed(paths, name_)) return start_in(CacheFolder::kAskAgain);
  process_ = std::make_unique<WorkerProcess>(loop_, options_, vault_, cache_, name_, true,
                                             static_cast<ProcessEvents&>(*this));
  Status started = process_->start(start_files_.take());
  if (started.ok()) return set_state(State::kStarting);
  process_.reset();
  died({.cause = DeathCause::kFailedStart, .words = "failed start: " + started.error().message()});
}

void Spare::restart() {
  policy_.reset();
  if (process_ != nullptr) return process_->kill("restarted by request");
  start_in(milliseconds(0));
  set_state(State::kRestarting);
}

void Spare::go_on() {
  if (!held_up_ || leaving_) return;
  start_in(milliseconds(0));
  set_state(State::kRestarting);
}

bool Spare::ready(std::uint64_t vault) const {
  if (leaving_ || state_ != State::kStandby) return false;
  return vault == 0 || (process_->imported() && process_->given_vault() == vault);
}

std::unique_ptr<WorkerProcess> Spare::take() {
  if (!ready(0)) return nullptr;
  leaving_ = true;
  return std::move(process_);
}

void Spare::leave(const std::string& why) {
  leaving_ = true;
  timer_.cancel();
  if (process_ == nullptr) return;
  if (process_->stage() == WorkerProcess::Stage::kStandby) return process_->shut_down();
  process_->kill(why);
}

void Spare::kill(const std::string& why) {
  leaving_ = true;
  timer_.cancel();
  if (process_ != nullptr) process_->kill(why);
}

void Spare::process_changed(WorkerProcess& process) {
  const auto stage = process.stage();
  if (stage == WorkerProcess::Stage::kStandby) {
    ready_since_ = steady_clock::now();
    set_state(State::kStandby);
  } else {
    set_state(stage == WorkerProcess::Stage::kLoading ? State::kLoading : State::kStarting);
  }
}

Status Spare::process_tokens(const ipc::SequenceTokensView&) {
  return Error(ErrorCode::kCorrupt, "tokens, though it stands by");
}
Status Spare::process_answer(ipc::FromWorker&&) {
  return Error(ErrorCode::kCorrupt, "an answer, though it stands by");
}

void Spare::process_stuck(WorkerProcess&, const Death& death) {
  hooks_.left_in_kernel(std::move(process_));
  leaving_ ? hooks_.changed() : died(death);
}

void Spare::process_ended(WorkerProcess&, const Death& death) {
  destroy_later(loop_, process_);
  try {
    ended(death);
  } catch (const std::exception& error) {
    go_on_after("what follows the end of a spare's process", error);
  }
}

void Spare::ended(const Death& death) {
  if (leaving_) {
    spdlog::info("worker {}: ended", name_);
    hooks_.changed();
    return;
  }
  if (!death.vault_unusable) return died(death);
  spdlog::warn("worker {}: {}", name_, death.words);
  hooks_.ended(*this, death);
  start_in(milliseconds(0));
  set_state(State::kRestarting);
}

void Spare::died(const Death& death) {
  last_death_ = death.words;
  last_death_cause_ = death.cause;
  spdlog::error("worker {}: died: {}; it had no request", name_, death.words);
  if (death.cause != DeathCause::kAsked) {
    const bool stood_by = state_ == State::kStandby;
    policy_.died(death, false,
                 stood_by ? steady_clock::now() - ready_since_ : steady_clock::duration{});
  }
  hooks_.ended(*this, death);
  if (policy_.spent(options_.crash_budget)) {
    spdlog::error("worker {}: given up after {} deaths; `bulkhead workers restart {}` tries again",
                  name_, policy_.deaths(), name_);
    return set_state(State::kFailed);
  }
  restarts_.add(death.cause);
  // Nothing waits for a spare, so it leaves the machine to the serving processes for a moment.
  start_in(std::max(policy_.delay(), milliseconds(250)));
  set_state(State::kRestarting);
}

StandbyPool::StandbyPool(EventLoop& loop, const WorkerOptions& options, Vault& vault,
                         CacheFolder& cache, Spare::Hooks hooks)
    : loop_(loop),
      options_(options),
      vault_(vault),
      cache_(cache),
      changed_(hooks.changed),
      hooks_{.changed =
                 [this] {
                   remove_gone_later();
                   changed_();
                 },
             .ended = std::move(hooks.ended),
             .left_in_kernel = std::move(hooks.left_in_kernel),
             .may_start = std::move(hooks.may_start)} {}

std::string StandbyPool::free_name() const {
  for (int i = 0;; ++i) {
    std::string name = options_.name + ".standby-" + std::to_string(i);
    if (std::ranges::none_of(spares_, [&](const auto& spare) { return spare->name() == name; }))
      return name;
  }
}

void StandbyPool::keep(std::uint32_t count, milliseconds delay) {
  std::uint32_t have = 0;
  for (auto& spare : spares_) {
    if (spare->leaving()) continue;
    if (++have > count) spare->leave("one spare too many");
  }
  for (; have < count; ++have) {
    spares_.push_back(
        std::make_unique<Spare>(loop_, options_, vault_, cache_, free_name(), hooks_));
    spares_.back()->start_in(delay);
  }
  remove_gone();
}

bool StandbyPool::ready(std::uint64_t vault) const {
  return std::ranges::any_of(spares_, [&](const auto& spare) { return spare->ready(vault); });
}

std::unique_ptr<WorkerProcess> StandbyPool::take(std::uint64_t vault) {
  for (auto& spare : spares_) {
    if (!spare->ready(vault)) continue;
    if (auto process = spare->take()) {
      remove_gone_later();
      return process;
    }
  }
  return nullptr;
}

void StandbyPool::discard(const std::string& why) {
  for (auto& spare : spares_)
    spare->leave(why);
  remove_gone_later();
}

void StandbyPool::discard_imported(const std::string& why) {
  for (auto& spare : spares_) {
    // This spare goes at once: the next process loads cold, and would find no room beside the memory that the spare
    // has imported.
    if (spare->process() != nullptr && spare->process()->given_vault() != 0) spare->kill(why);
  }
  remove_gone_later();
}

void StandbyPool::discard_running(const std::string& why) {
  for (auto& spare : spares_) {
    if (spare->process() != nullptr) spare->kill(why);
  }
  remove_gone_later();
}

void StandbyPool::kill(const std::string& why) {
  for (auto& spare : spares_)
    spare->kill(why);
}

void StandbyPool::go_on() {
  for (auto& spare : spares_)
    spare->go_on();
}

Spare* StandbyPool::find(std::string_view name) {
  auto found = std::ranges::find(
      spares_, name, [](const auto& spare) -> std::string_view { return spare->name(); });
  return found == spares_.end() ? nullptr : found->get();
}

// This runs in a later turn of the loop, because the calling spare may be the one that is removed.
void StandbyPool::remove_gone_later() {
  loop_.post([this, weak = std::weak_ptr(alive_)] {
    if (!weak.expired()) remove_gone();
  });
}

void StandbyPool::remove_gone() {
  if (std::erase_if(spares_, [](const auto& spare) { return spare->gone(); }) > 0) changed_();
}

}  // namespace bulkhead::orchestrator
