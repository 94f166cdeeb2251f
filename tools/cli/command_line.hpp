// The command line's parts that main.cpp shares with operating.cpp.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/commands.hpp"

namespace bulkhead::cli {

// --url and --api-key.
void add_connection(CLI::App& command, Connection& connection);

struct OperatingOptions {
  WorkersOptions workers;
  ModelsOptions models;
  TopOptions top;
  RequestsOptions requests;
  LogsOptions logs;
  LoadTestOptions load_test;
  PerplexityOptions perplexity;
};
// The subcommands for operators: workers, models, top, requests, logs, load-test, perplexity. `options` must outlive the
// parser, which fills them in and then calls what sets `code`, what the program ends with.
void add_operating(CLI::App& app, OperatingOptions& options, int& code);

}  // namespace bulkhead::cli
