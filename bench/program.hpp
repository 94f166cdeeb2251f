// What the benchmarks' main() have in common.
#pragma once

#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

#include "config/base/error.hpp"

namespace bulkhead::bench {

template <class Plan>
void add_model_options(CLI::App& app, Plan& plan) {
  app.add_option("--model", plan.model, "GGUF file, or \"builtin\"")->capture_default_str();
  app.add_option("--device", plan.device, "auto, cpu, an index or part of a device's name")
      ->capture_default_str();
}

template <class Plan>
void add_json_option(CLI::App& app, Plan& plan) {
  app.add_option("--json", plan.json_path, "write the figures there, too");
}

// Runs it; the program's exit code. Why it failed is told on stderr.
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
