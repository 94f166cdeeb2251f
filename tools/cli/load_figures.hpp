// Computes the figures of a load test from its measurements. Nothing here uses connections.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace bulkhead::cli {

// The measurements of one request. Times are seconds from the test's beginning.
struct LoadRecord {
  double began = 0, ended = 0;
  std::vector<double> texts;  // when each event with text came
  std::uint64_t tokens = 0;   // tokens of the answer, as the server counts them; 0: unknown
  std::string error;          // empty: it was answered completely

  std::uint64_t counted_tokens() const { return tokens != 0 ? tokens : texts.size(); }
};

struct Percentiles {
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, most = 0;
};
// Computes percentiles by the nearest rank. `values` may be in any order; if it is empty, all
// percentiles are 0.
Percentiles percentiles(std::vector<double> values);

struct LoadFigures {
  std::size_t requests = 0, failed = 0;
  double seconds = 0;  // from the first request to the last answer's end
  std::uint64_t tokens = 0;
  double requests_per_second = 0, tokens_per_second = 0;
  // Times in milliseconds: to the first text; between two tokens of an answer (an event with n tokens counts as n
  // equal gaps); to the answer's end.
  Percentiles first_token_ms, inter_token_ms, total_ms;
  std::string first_error;
};
LoadFigures figures_of(const std::vector<LoadRecord>& records);

nlohmann::json to_json(const LoadFigures& figures);
std::string to_text(const LoadFigures& figures);

}  // namespace bulkhead::cli
