// Decides whether a worker process is alive: its step counter moves, its messages bring requests forward, or it
// answers pings. Has no timers, no channel and no process of its own.
//
// Loading:  a beat or a message is a sign of life; a step of loading may take ten timeouts.
// Busy:     the step counter, or a message that brings a request forward, is a sign of life; over a transport without a
//           counter (stdio) the answer to a ping is, too.
// Idle:     there are no steps to count, so the daemon pings now and then; otherwise the next request would be the
//           first to notice a process that can't answer, and would wait for it.
//
// Time during which the daemon did not look does not count as silence. Otherwise a daemon that was stopped or starved
// would declare all its workers hung while their signs of life were still unread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace bulkhead::orchestrator {

class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kLoading, kBusy, kIdle };

  // A new process, or the first request of an idle one: its time begins now.
  void begin(Clock::time_point now) {
    sign_of_life(now);
    looked_at_ = now;
  }
  void sign_of_life(Clock::time_point now) {
    last_sign_ = now;
    waited_longer_ = 0;
  }
  void answered(std::uint64_t nonce, Clock::time_point now) {
    answered_ = nonce;
    // With a step counter, a pong alone does not prove progress.
    if (!beat_.has_value()) sign_of_life(now);
  }
  // Returns whether the process has left a ping unanswered for longer than an idle process that
  // works would.
  bool waits_for_answer(Clock::time_point now) const {
    return answered_ != pinged_ && now - pinged_at_ > kPromptAnswer;
  }
  static constexpr std::chrono::milliseconds kPromptAnswer{500};
  // Overrules a verdict: gives the process the same time once more. Returns false if it has had that too often
  // without a sign of life in between.
  bool wait_longer(Clock::time_point now) {
    if (waited_longer_ == kMostWaits) return false;
    ++waited_longer_;
    last_sign_ = pinged_at_ = now;
    return true;
  }
  static constexpr int kMostWaits = 4;

  struct Verdict {
    std::string hang;                   // in words; empty: it is alive, or has time left
    std::optional<std::uint64_t> ping;  // to be sent now
    bool doubtful = false;              // silent for half of its patience
    bool overdue = false;  // loading, and silent for one timeout of the ten that it has
  };
  // `can_send`: no message waits to be sent before a ping.
  Verdict look(Clock::time_point now, Phase phase, std::optional<std::uint64_t> beat, bool can_send,
               std::chrono::milliseconds timeout);

  // Returns when to look again. A hang is noticed this much late, or twice this much if the last beat came just after
  // a look.
  static std::chrono::milliseconds next_look(Phase phase, std::chrono::milliseconds timeout);

 private:
  // Returns how late this look is; that time is subtracted from every silence.
  Clock::duration forgive_own_absence(Clock::time_point now, Phase phase,
                                      std::chrono::milliseconds timeout);
  std::uint64_t ping(Clock::time_point now) {
    pinged_at_ = now;
    return ++pinged_;
  }

  Clock::time_point last_sign_{}, pinged_at_{}, looked_at_{};
  std::optional<std::uint64_t> beat_;
  std::uint64_t pinged_ = 0, answered_ = 0;  // nonces of the last ping and the last answer
  int waited_longer_ = 0;
};

}  // namespace bulkhead::orchestrator
