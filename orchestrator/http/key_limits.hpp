// Clients' keys (server.keys), what each has used, and whether it may begin another request. Each limit per minute is
// a bucket that holds at most a minute's worth and is filled evenly; so a key that was silent may send a minute's
// worth at once. One thread. Nothing here uses sockets.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/access_key.hpp"
#include "orchestrator/http/openai.hpp"

namespace bulkhead::orchestrator {

struct KeyUse {
  using Clock = std::chrono::steady_clock;

  config::AccessKey key;  // as it was configured last
  std::uint64_t requests = 0, tokens = 0, refused = 0;
  std::size_t in_progress = 0;
  // What is left in the buckets. Tokens may fall below 0, because an answer's tokens are counted as they come.
  double requests_left = 0, tokens_left = 0;
  Clock::time_point filled{};
};

// A key's request, from its admission to its end.
class KeyTicket {
 public:
  explicit KeyTicket(std::shared_ptr<KeyUse> use);
  ~KeyTicket();
  KeyTicket(const KeyTicket&) = delete;
  KeyTicket& operator=(const KeyTicket&) = delete;

  void charge(std::uint64_t tokens);
  const std::string& name() const { return use_->key.name; }

 private:
  std::shared_ptr<KeyUse> use_;
};

class KeyLimits {
 public:
  // Uses these server.keys, which the settings' check has passed. A key that keeps its name keeps its record of use.
  void configure(const std::vector<std::string>& texts, KeyUse::Clock::time_point now);

  // Returns the key with this secret, or null. The search takes the same time for every secret.
  KeyUse* find(std::string_view secret) const;
  // Counts a request of the key, or returns the refusal: a 429 that says when to try again.
  std::variant<std::shared_ptr<KeyTicket>, ApiError> begin(KeyUse& use,
                                                           KeyUse::Clock::time_point now);
  // Continues a request that an earlier daemon began for the key with this name. The request is in progress and its
  // tokens count, but it does not count as another request of the minute. If the settings no longer have the key, the
  // ticket keeps the key's name and has no limits, just as when a reload removes the key during a request.
  std::shared_ptr<KeyTicket> go_on(std::string_view name) const;
  const std::vector<std::shared_ptr<KeyUse>>& all() const { return keys_; }

 private:
  std::vector<std::shared_ptr<KeyUse>> keys_;
};

}  // namespace bulkhead::orchestrator
