// From a worker's write of a token to its bytes on a client's socket: a bulkheadd whose worker is
// this program in another role. That worker has no model: each of its tokens is the time at which
// it was written, and the client looks at the clock when it has read it. Everything between the two
// is the product's own: channel, wake-up of the daemon, checks, journal, event, socket.
#pragma once

#include <cstdint>
#include <vector>

#include "config/base/error.hpp"
#include "config/settings.hpp"

namespace bulkhead::bench {

struct TokenLatencyPlan {
  config::Transport transport = config::Transport::kShm;
  std::uint32_t streams = 1;
  std::uint32_t tokens = 1000;     // of each stream
  std::uint32_t pace_us = 1000;    // between a stream's tokens; 0: as fast as they are taken
  std::uint32_t flush_tokens = 1;  // tokens of a stream in one record
  int repeats = 3;
};

struct TokenLatency {
  std::vector<std::uint64_t> samples_ns;  // of each record's last token
  double tokens_per_s = 0;
  double daemon_cpu_us_per_token = 0;
};

// Starts the daemon beside this program. kNotFound when it is not there.
Result<TokenLatency> measure_token_latency(const TokenLatencyPlan& plan);

// The other role: true when the arguments are those that a daemon gives a worker; then `exit_code`
// is the process's.
bool run_as_worker(int argc, char** argv, int& exit_code);

}  // namespace bulkhead::bench
