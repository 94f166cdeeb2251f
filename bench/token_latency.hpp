// Measures the time from a worker's write of a token to its bytes on a client's socket. A bulkheadd runs with this
// program, in another role, as its worker. That worker has no model: each of its tokens is the time at which it was
// written, and the client compares that with the clock when it has read the token. Everything between the two is the
// product's: the channel, the daemon's wake-up, checks, journal, event, socket.
#pragma once

#include <cstdint>
#include <vector>

#include "config/base/error.hpp"
#include "config/settings.hpp"

namespace bulkhead::bench {

struct TokenLatencyPlan {
  config::Transport transport = config::Transport::kShm;
  std::uint32_t streams = 1;
  std::uint32_t tokens = 1000;     // per stream
  std::uint32_t pace_us = 1000;    // time between a stream's tokens; 0: as fast as they are taken
  std::uint32_t flush_tokens = 1;  // tokens of a stream in one record
  int repeats = 3;
};

struct TokenLatency {
  std::vector<std::uint64_t> samples_ns;  // for each record's last token
  double tokens_per_s = 0;
  double daemon_cpu_us_per_token = 0;
};

// Starts the daemon that is beside this program. kNotFound: it is not there.
Result<TokenLatency> measure_token_latency(const TokenLatencyPlan& plan);

// The other role: returns true if the arguments are those that a daemon gives to a worker; `exit_code` is then the
// process's exit code.
bool run_as_worker(int argc, char** argv, int& exit_code);

}  // namespace bulkhead::bench
