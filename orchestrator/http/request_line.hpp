// The end of an HTTP request: the log line, and the count in the metrics. Every request ends here, once.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "config/base/log_event.hpp"
#include "orchestrator/http/trace_context.hpp"
#include "orchestrator/metrics/metrics.hpp"

namespace bulkhead::orchestrator {

struct RequestLine {
  std::string_view method;    // empty: unknown, because the head was broken
  std::string_view endpoint;  // the route's label
  int status = 0;
  std::chrono::steady_clock::duration took{};
  const TraceContext* trace = nullptr;  // null: the client sent none
  std::string_view key = {};            // name of the client's key; empty: none
  std::string_view id;                  // X-Request-Id
  std::vector<log::Field> more = {};    // further fields for this kind of request
};

// The line begins with `request id=ID endpoint=...`.
void end_request(Metrics& metrics, RequestLine line);

}  // namespace bulkhead::orchestrator
