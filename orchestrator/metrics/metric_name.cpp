#include "orchestrator/metrics/metric_name.hpp"

namespace bulkhead::orchestrator {

MetricName metric_name(std::string_view figure, bool counts) {
  constexpr std::string_view kMicroseconds = "microseconds", kTotal = "_total";
  MetricName metric;
  metric.name = "bulkhead_worker_" + std::string(figure);
  if (figure.ends_with(kMicroseconds)) {
    metric.name.replace(metric.name.size() - kMicroseconds.size(), std::string::npos, "seconds");
    metric.scale = 1e-6;
  }
  if (counts && !figure.ends_with(kTotal)) metric.name += kTotal;
  return metric;
}

}  // namespace bulkhead::orchestrator
