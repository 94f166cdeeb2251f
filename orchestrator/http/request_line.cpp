#include "orchestrator/http/request_line.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace bulkhead::orchestrator {

void end_request(Metrics& metrics, RequestLine line) {
  using log::Field;
  metrics.count(events::kRequestsDone, {std::string(line.endpoint), std::to_string(line.status)});
  std::vector<Field> fields;
  fields.push_back(Field::word("id", line.id));
  fields.push_back(Field::word("endpoint", line.endpoint));
  if (!line.method.empty()) fields.push_back(Field::word("method", line.method));
  fields.push_back(Field::number("status", line.status));
  std::ranges::move(line.more, std::back_inserter(fields));
  fields.push_back(Field::milliseconds(
      "total_ms", std::chrono::duration<double, std::milli>(line.took).count()));
  if (!line.key.empty()) fields.push_back(Field::word("key", line.key));
  if (line.trace != nullptr && line.trace->known()) {
    fields.push_back(Field::word("trace_id", line.trace->trace_id()));
    fields.push_back(Field::word("parent_id", line.trace->parent_id()));
    fields.push_back(Field::word("span_id", line.trace->span_id));
  }
  log::event("request", fields);
}

}  // namespace bulkhead::orchestrator
