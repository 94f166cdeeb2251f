// What the figures mean that workers report (ipc::Counter): a row for each name. A worker sends names and values
// alone, because a worker is not trusted with types and texts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bulkhead::orchestrator {

struct WorkerFigure {
  enum class Kind : std::uint8_t {
    kCounter,  // only grows, from 0 at the start of the worker's process
    kGauge,
  };
  std::string_view name;  // without "bulkhead_worker_"
  Kind kind = Kind::kGauge;
  std::string_view unit;  // "bytes", "s", ...
  std::string_view help;

  // "Memory that the pool has lent (bytes)"
  std::string help_with_unit() const;
};

// The row of that name; null: there is none, and the figure is shown as a gauge.
const WorkerFigure* find_worker_figure(std::string_view name);

}  // namespace bulkhead::orchestrator
