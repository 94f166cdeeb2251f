// The meaning of the figures that workers report (ipc::Counter), a row for each name. A worker sends names and values
// alone, because the daemon does not trust a worker with types and texts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bulkhead::orchestrator {

struct WorkerFigure {
  enum class Kind : std::uint8_t {
    kCounter,  // a value that only grows, from 0 at the start of the worker's process
    kGauge,
  };
  std::string_view name;  // the name without "bulkhead_worker_"
  Kind kind = Kind::kGauge;
  std::string_view unit;  // "bytes", "s", ...
  std::string_view help;

  // Returns a text such as "Memory that the pool has lent (bytes)".
  std::string help_with_unit() const;
};

// Returns the row of that name; null if there is none: the daemon then shows the figure as a gauge.
const WorkerFigure* find_worker_figure(std::string_view name);

}  // namespace bulkhead::orchestrator
