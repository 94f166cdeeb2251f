// Loading: from the worker's arguments to a model that is ready to serve.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/config.hpp"
#include "gpu/device.hpp"
#include "ipc/channel.hpp"
#include "worker/engine/engine.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/main_outbox.hpp"
#include "worker/main_vault.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/graph.hpp"
#include "worker/model/tokenizer.hpp"

namespace bulkhead::worker {

// What the command line says.
struct Arguments {
  std::string model = "builtin";
  std::string name;  // for the log
  std::string device = "auto";
  std::uint32_t context = 0;
  std::vector<int> cores;  // cores to run on; empty: any
  std::string chat_template;
  std::string draft;  // a GGUF file of a model that guesses; empty: none
  int channel = -1;
  int region = -1;
  std::string cache;  // empty once there is none
  bool standby = false;
  bool vault = false;
  std::vector<std::string> assignments;
};

// Everything that serving needs, in the order in which it must go.
struct Loaded {
  std::unique_ptr<model::GgufFile> file;
  model::ModelGraph graph;
  std::unique_ptr<model::Tokenizer> tokenizer;
  engine::Language language;
  std::unique_ptr<gpu::Device> device;
  std::unique_ptr<forward::Transformer> draft;  // null: none
  std::unique_ptr<forward::Transformer> executor;
};

// Reports loading to the daemon, seldom enough not to be a burden. Each report is a sign of life,
// too.
class ProgressReporter {
 public:
  ProgressReporter(ipc::Channel& channel, Outbox& outbox) : channel_(channel), outbox_(outbox) {}

  void operator()(const std::string& stage, std::uint64_t done, std::uint64_t total);

 private:
  ipc::Channel& channel_;
  Outbox& outbox_;
  std::uint64_t beats_ = 0;
  std::string stage_;
  std::chrono::steady_clock::time_point sent_{};
};

// Reads the model, opens the device and brings the weights there. Fills `loaded` as far as it gets.
Status load(const Arguments& arguments, const config::Settings& settings,
            ProgressReporter& progress, MainVault& vault, Loaded& loaded);

}  // namespace bulkhead::worker
