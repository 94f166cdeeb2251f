// How tests start the worker program with a model of the fixtures, and a request to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ipc/messages.hpp"
#include "tests/support/fixtures.hpp"

namespace bulkhead::test {

inline const std::string kProgram = BULKHEAD_BIN_DIR "/bulkhead-worker";

inline std::filesystem::path model_path(const std::string& name) {
  return fixtures() / "models" / (name + ".gguf");
}

// A machine under load may need long for the first step, which compiles kernels on a CPU device.
inline std::vector<std::string> serving(const std::string& model) {
  return {"--model", model_path(model).string(),
          "--set",   "log.level=warn",
          "--set",   "isolation.heartbeat_timeout_ms=100000"};
}

inline ipc::Submit greedy(std::uint64_t id, const std::string& prompt, std::uint32_t tokens) {
  ipc::Submit submit;
  submit.request = RequestId{id};
  submit.prompt = prompt;
  submit.sampling.temperature = 0;
  submit.max_tokens = tokens;
  submit.ignore_eos = true;
  return submit;
}

}  // namespace bulkhead::test

#define NEEDS_MODEL(name)                                                                    \
  if (!std::filesystem::exists(model_path(name))) {                                          \
    GTEST_SKIP() << model_path(name) << " is not there; BULKHEAD_FIXTURES names the folder"; \
  }
