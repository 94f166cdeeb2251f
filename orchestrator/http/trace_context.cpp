#include "orchestrator/http/trace_context.hpp"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

#include "config/base/random.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kBytes = 55;  // length in version 00; a later version may have more after a dash

bool is_hex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool only_zeros(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

bool is_valid(std::string_view field) {
  if (field.size() < kBytes) return false;
  const std::string_view version = field.substr(0, 2), trace = field.substr(3, 32),
                         parent = field.substr(36, 16), flags = field.substr(53, 2);
  if (field[2] != '-' || field[35] != '-' || field[52] != '-') return false;
  if (!is_hex(version) || !is_hex(trace) || !is_hex(parent) || !is_hex(flags)) return false;
  if (version == "ff" || only_zeros(trace) || only_zeros(parent)) return false;
  return field.size() == kBytes || (version != "00" && field[kBytes] == '-');
}

}  // namespace

std::string TraceContext::field() const {
  return fmt::format("00-{}-{}-{}", trace_id(), span_id, parent.substr(53, 2));
}

bool TraceContext::sampled() const {
  constexpr std::string_view kOdd = "13579bdf";  // bit 0 of the flags
  return kOdd.find(parent[kBytes - 1]) != std::string_view::npos;
}

TraceContext TraceContext::from_record(std::string_view record) {
  TraceContext trace = trace_of(record.substr(0, kBytes));
  if (trace.known() && record.size() == kBytes + 16) trace.span_id = record.substr(kBytes);
  return trace;
}

TraceContext trace_of(std::string_view traceparent) {
  if (!is_valid(traceparent)) return {};
  // Zero is not a valid span id.
  return {std::string(traceparent.substr(0, kBytes)), fmt::format("{:016x}", random_u64() | 1)};
}

}  // namespace bulkhead::orchestrator
