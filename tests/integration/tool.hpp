// Runs `bulkhead` in a shell against a test's daemon.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {

struct Outcome {
  int code = -1;
  std::string out;  // stdout and stderr
};

inline Outcome run_shell(const std::string& line) {
  FILE* const pipe = ::popen((line + " 2>&1").c_str(), "r");
  Outcome outcome;
  char bytes[4096];
  for (std::size_t got = 0; (got = std::fread(bytes, 1, sizeof bytes, pipe)) > 0;)
    outcome.out.append(bytes, got);
  const int status = ::pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
  return outcome;
}

inline Outcome tool(const Serving& serving, const std::string& arguments) {
  return run_shell(std::string(BULKHEAD_TOOL) + " " + arguments + " --url " + url_of(serving));
}

}  // namespace bulkhead::test
