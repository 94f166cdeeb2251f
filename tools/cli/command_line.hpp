// The parts of the command line that main.cpp and operating.cpp share.
#pragma once

#include <chrono>
#include <string>

#include <CLI/CLI.hpp>

#include "tools/cli/commands.hpp"

namespace bulkhead::cli {

// Adds --url, --api-key and --timeout. `usual_timeout`: what make_client() is given.
void add_connection(CLI::App& command, Connection& connection,
                    std::chrono::seconds usual_timeout = kUsualTimeout);

// Sets the help's text after the options. Exit codes begin a line of their own, and lines are broken after 78
// columns, except examples, which begin with a blank.
void add_footer(CLI::App& command, std::string text);

// Returns a check for unsigned options of 64 bits. Without it CLI11 would take -1 for the largest number.
CLI::Validator not_negative();

struct OperatingOptions {
  WorkersOptions workers;
  ModelsOptions models;
  TopOptions top;
  RequestsOptions requests;
  LogsOptions logs;
  LoadTestOptions load_test;
  PerplexityOptions perplexity;
};
// Adds the subcommands for operators: workers, models, top, requests, logs, load-test, perplexity. The
// parser fills in `options`, which must outlive it, and then runs the subcommand, which sets the program's
// exit code `code`.
void add_operating(CLI::App& app, OperatingOptions& options, int& code);

}  // namespace bulkhead::cli
