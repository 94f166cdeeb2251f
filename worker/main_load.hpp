// Loads a model: turns the worker's arguments into everything that serving needs.
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

// The worker's command line.
struct Arguments {
  std::string model = "builtin";
  std::string name;  // for the log
  std::string device = "auto";
  std::string split = "none";  // "layers": `device` lists the devices that share the layers
  std::uint32_t context = 0;
  std::vector<int> cores;  // cores to run on; empty: any
  std::string chat_template;
  std::string draft;  // a GGUF file of a draft model, or config::kOwnBlock; empty: none
  int channel = -1;
  int region = -1;
  std::string cache;          // the cache folder; empty: none
  std::string pid_namespace;  // what the daemon says of it (main_sandbox.hpp)
  std::string user;           // the same
  bool standby = false;
  bool beside_others = false;  // other workers may need the device's memory, too
  bool vault = false;
  bool describe = false;  // serve nothing, only say what the file holds
  std::vector<std::string> assignments;
};

// Everything that serving needs. The members must be destroyed in the reverse of this order.
struct Loaded {
  std::unique_ptr<model::GgufFile> file;
  model::ModelGraph graph;
  std::unique_ptr<model::Tokenizer> tokenizer;
  engine::Language language;
  std::unique_ptr<gpu::Device> device;
  std::vector<std::unique_ptr<gpu::Device>> more_devices;  // for a split model: all but the first
  std::unique_ptr<forward::Transformer> draft;             // null: no draft model
  std::unique_ptr<forward::Transformer> executor;
};

// Reports the progress of loading to the daemon now and then. Each report is also a sign of life.
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

// Reads the model, opens the device and uploads the weights. On an error, `loaded` has what was loaded before it.
Status load(const Arguments& arguments, const config::Settings& settings,
            ProgressReporter& progress, MainVault& vault, Loaded& loaded);

}  // namespace bulkhead::worker
