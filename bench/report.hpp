// Writes a benchmark's figures to a file.
#pragma once

#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "config/base/error.hpp"

namespace bulkhead::bench {

// Writes the report to the file of `--json`; does nothing without it.
inline Status write_report(const std::string& path, const nlohmann::json& report) {
  if (path.empty()) return {};
  std::ofstream out(path);
  out << report.dump(1) << '\n';
  if (!out.flush()) return Error(ErrorCode::kInvalidArgument, "cannot write " + path);
  return {};
}

}  // namespace bulkhead::bench
