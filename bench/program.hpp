// What the benchmarks' main() have in common.
#pragma once

#include <cstdio>
#include <exception>

#include "config/base/error.hpp"
#include "config/base/program_options.hpp"

namespace bulkhead::bench {

template <class Plan>
void add_model_options(ProgramOptions& options, Plan& plan) {
  options.add("--model", plan.model, "GGUF file, or \"builtin\"").show_default();
  options.add("--device", plan.device, "auto, cpu, an index or part of a device's name")
      .show_default();
}

template <class Plan>
void add_json_option(ProgramOptions& options, Plan& plan) {
  options.add("--json", plan.json_path, "write the figures there, too");
}

// Runs it and returns the program's exit code. If it fails, stderr says why.
template <class Run>
int run_program(const char* name, Run run) {
  Status status;
  try {
    status = run();
  } catch (const std::exception& error) {
    status = Error(ErrorCode::kInternal, error.what());
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", name, status.error().message().c_str());
  return 1;
}

}  // namespace bulkhead::bench
