// Names of workers' figures among the metrics.
#pragma once

#include <string>
#include <string_view>

namespace bulkhead::orchestrator {

// The name under which a figure stands in /metrics, and what its value is multiplied with. Prometheus wants seconds, and
// counters that end in "_total" (https://prometheus.io/docs/practices/naming/).
struct MetricName {
  std::string name;
  double scale = 1;
};
// `counts`: the figure is a counter.
MetricName metric_name(std::string_view figure, bool counts);

}  // namespace bulkhead::orchestrator
