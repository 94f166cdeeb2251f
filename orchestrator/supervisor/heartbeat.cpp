#include "orchestrator/supervisor/heartbeat.hpp"

#include <algorithm>
#include <utility>

#include <spdlog/fmt/fmt.h>

namespace bulkhead::orchestrator {

using std::chrono::milliseconds;

namespace {

constexpr milliseconds kLookAtBusy{25}, kLookAtLoading{250}, kLookAtIdle{1000};
constexpr milliseconds kPingBusy{250};
constexpr int kLoadingPatience = 10;  // a step of loading may take this many timeouts

}  // namespace

Heartbeat::Verdict Heartbeat::look(Clock::time_point now, Phase phase,
                                   std::optional<std::uint64_t> beat, bool can_send,
                                   milliseconds timeout) {
  // If the daemon itself did not run for long, messages of the process are still unread, so there is no verdict yet.
  if (forgive_own_absence(now, phase, timeout) > timeout / 2) return {};
  if (phase == Phase::kIdle) {
    if (answered_ != pinged_) {
      if (now - pinged_at_ <= timeout) return {"", {}, now - pinged_at_ > timeout / 2};
      return {fmt::format("hang: idle, and no answer for {} ms", timeout.count()), {}, true};
    }
    if (!can_send) return {};
    return {"", ping(now), false};
  }
  if (beat != beat_) {
    beat_ = beat;
    sign_of_life(now);
  }
  const bool loading = phase == Phase::kLoading;
  const milliseconds patience = timeout * (loading ? kLoadingPatience : 1);
  if (now - last_sign_ > patience) {
    return {fmt::format("hang: no progress for {} ms{}", patience.count(),
                        loading ? " while loading" : ""),
            {},
            true};
  }
  const bool doubtful = now - last_sign_ > patience / 2;
  if (loading) return {"", {}, doubtful, now - last_sign_ > timeout};
  const milliseconds between_pings = std::min(kPingBusy, timeout / 4);
  if (!beat.has_value() && can_send && now - pinged_at_ >= between_pings)
    return {"", ping(now), doubtful};
  return {"", {}, doubtful};
}

Heartbeat::Clock::duration Heartbeat::forgive_own_absence(Clock::time_point now, Phase phase,
                                                          milliseconds timeout) {
  const auto late = now - std::exchange(looked_at_, now) - 2 * next_look(phase, timeout);
  if (late <= Clock::duration::zero()) return Clock::duration::zero();
  last_sign_ += late;
  pinged_at_ += late;
  return late;
}

milliseconds Heartbeat::next_look(Phase phase, milliseconds timeout) {
  const bool idle = phase == Phase::kIdle;
  const milliseconds most = phase == Phase::kLoading ? kLookAtLoading
                            : idle                   ? std::max(kLookAtIdle, timeout / 2)
                                                     : kLookAtBusy;
  return std::clamp(timeout / 4, idle ? kLookAtIdle : milliseconds(5), most);
}

}  // namespace bulkhead::orchestrator
