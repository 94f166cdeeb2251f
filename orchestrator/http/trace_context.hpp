// The place of a request in a distributed trace, from the header field `traceparent`
// (https://www.w3.org/TR/trace-context/): version, trace, parent and flags, "00-<32>-<16>-<2>" in hex.
#pragma once

#include <string>
#include <string_view>

namespace bulkhead::orchestrator {

struct TraceContext {
  std::string parent;   // the field as the client sent it; empty if there is none or it is invalid
  std::string span_id;  // of this request, 16 hex digits; empty if `parent` is empty

  bool known() const { return !parent.empty(); }
  bool sampled() const;  // whether the client records this trace; a trace must be known()
  std::string_view trace_id() const { return std::string_view(parent).substr(3, 32); }
  std::string_view parent_id() const { return std::string_view(parent).substr(36, 16); }
  // Returns the form for the journal; empty if the request has no trace.
  std::string record() const { return parent + span_id; }
  static TraceContext from_record(std::string_view record);
  // Returns the field for the answer's head: the same trace and flags, and this request as the parent.
  std::string field() const;
};

// Makes a span of the trace that the field names. An invalid field counts as absent, because a client's trace is no
// reason to refuse its request.
TraceContext trace_of(std::string_view traceparent);

}  // namespace bulkhead::orchestrator
