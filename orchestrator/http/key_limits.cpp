#include "orchestrator/http/key_limits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "orchestrator/http/access.hpp"
#include "orchestrator/http/errors.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr double kMinute = 60;  // seconds
// Without this tolerance a rounding error could refuse a client that has waited for the time that
// its refusal named.
constexpr double kRounding = 1e-6;

// Seconds until a bucket that gets `per_minute` holds `wanted`, at least one. A longer time than an
// int holds becomes the largest int.
int seconds_until(double left, double wanted, std::uint32_t per_minute) {
  const double seconds = std::ceil((wanted - left) * kMinute / per_minute - kRounding);
  return static_cast<int>(std::clamp(seconds, 1.0, double{std::numeric_limits<int>::max()}));
}

void fill(KeyUse& use, KeyUse::Clock::time_point now) {
  const double minutes = std::chrono::duration<double>(now - use.filled).count() / kMinute;
  use.filled = now;
  const auto filled = [minutes](double left, std::uint32_t per_minute) {
    return std::min<double>(left + minutes * per_minute, per_minute);
  };
  use.requests_left = filled(use.requests_left, use.key.requests_per_minute);
  use.tokens_left = filled(use.tokens_left, use.key.tokens_per_minute);
}

}  // namespace

KeyTicket::KeyTicket(std::shared_ptr<KeyUse> use) : use_(std::move(use)) {
  ++use_->in_progress;
}

KeyTicket::~KeyTicket() {
  --use_->in_progress;
}

void KeyTicket::charge(std::uint64_t tokens) {
  use_->tokens += tokens;
  if (use_->key.tokens_per_minute != 0) use_->tokens_left -= static_cast<double>(tokens);
}

void KeyLimits::configure(const std::vector<std::string>& texts, KeyUse::Clock::time_point now) {
  std::vector<std::shared_ptr<KeyUse>> keys;
  for (const std::string& text : texts) {
    Result<config::AccessKey> key = config::parse_access_key(text);
    if (!key.ok()) continue;
    const auto known =
        std::ranges::find(keys_, key->name, [](const auto& use) { return use->key.name; });
    if (known != keys_.end()) {
      fill(**known, now);  // with what the limits were until now
      const config::AccessKey before = std::exchange((*known)->key, *std::move(key));
      const config::AccessKey& after = (*known)->key;
      // Requests and tokens that the key has used under the old limits count under the new ones,
      // too.
      const auto more = [](std::uint32_t now_allowed, std::uint32_t was_allowed) {
        return static_cast<double>(now_allowed) - static_cast<double>(was_allowed);
      };
      (*known)->requests_left += more(after.requests_per_minute, before.requests_per_minute);
      (*known)->tokens_left += more(after.tokens_per_minute, before.tokens_per_minute);
      keys.push_back(*known);
    } else {
      auto use = std::make_shared<KeyUse>();
      use->key = *std::move(key);
      use->requests_left = use->key.requests_per_minute;
      use->tokens_left = use->key.tokens_per_minute;
      use->filled = now;
      keys.push_back(std::move(use));
    }
  }
  keys_ = std::move(keys);
}

KeyUse* KeyLimits::find(std::string_view secret) const {
  KeyUse* found = nullptr;
  for (const auto& use : keys_) {
    if (constant_time_equal(secret, use->key.key)) found = use.get();
  }
  return found;
}

std::variant<std::shared_ptr<KeyTicket>, ApiError> KeyLimits::begin(KeyUse& use,
                                                                    KeyUse::Clock::time_point now) {
  const auto refuse = [&use](int retry_after_s, const std::string& why) {
    ++use.refused;
    ApiError error = api_error(kKeyLimit, fmt::format("The key {} {}.", use.key.name, why));
    error.retry_after_s = retry_after_s;
    return error;
  };
  fill(use, now);
  const config::AccessKey& key = use.key;
  if (key.streams != 0 && use.in_progress >= key.streams) {
    return refuse(1,
                  fmt::format("has as many requests in progress as it may have ({})", key.streams));
  }
  if (key.tokens_per_minute != 0 && use.tokens_left <= 0) {
    return refuse(seconds_until(use.tokens_left, 1, key.tokens_per_minute),
                  fmt::format("has used its {} tokens a minute", key.tokens_per_minute));
  }
  if (key.requests_per_minute != 0) {
    if (use.requests_left < 1 - kRounding) {
      return refuse(seconds_until(use.requests_left, 1, key.requests_per_minute),
                    fmt::format("has sent its {} requests a minute", key.requests_per_minute));
    }
    use.requests_left -= 1;
  }
  ++use.requests;
  const auto shared = std::ranges::find(keys_, &use, [](const auto& each) { return each.get(); });
  return std::make_shared<KeyTicket>(*shared);
}

std::shared_ptr<KeyTicket> KeyLimits::go_on(std::string_view name) const {
  const auto known = std::ranges::find(
      keys_, name, [](const auto& use) { return std::string_view(use->key.name); });
  if (known != keys_.end()) return std::make_shared<KeyTicket>(*known);
  auto unknown = std::make_shared<KeyUse>();
  unknown->key.name = name;
  return std::make_shared<KeyTicket>(std::move(unknown));
}

}  // namespace bulkhead::orchestrator
