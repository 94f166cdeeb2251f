// The metric names of workers' figures.
#pragma once

#include <string>
#include <string_view>

namespace bulkhead::orchestrator {

// A figure's name in /metrics, and the factor for its value. Prometheus expects seconds, and counters that end
// in "_total" (https://prometheus.io/docs/practices/naming/).
struct MetricName {
  std::string name;
  double scale = 1;
};
// `counts`: the figure is a counter.
MetricName metric_name(std::string_view figure, bool counts);

}  // namespace bulkhead::orchestrator
