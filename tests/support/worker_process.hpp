// A bulkhead-worker started as the daemon starts it, for tests that talk to the real program over a real channel.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/settings.hpp"
#include "ipc/channel.hpp"

namespace bulkhead::test {

// All messages of a worker about one request, combined.
struct WorkerAnswer {
  std::optional<ipc::Accepted> accepted;
  std::vector<ipc::TokenId> tokens;
  std::string text;
  std::vector<ipc::TokenLogprob> logprobs;
  std::optional<ipc::Finished> finished;
  std::optional<ipc::Failed> failed;
  bool ended() const { return finished.has_value() || failed.has_value(); }
};

class WorkerProcess {
 public:
  // Starts `program` with the arguments, and with those of the channel. Kernels are cached in a folder that tests
  // share, so that only the first test compiles them.
  WorkerProcess(const std::string& program, std::vector<std::string> arguments,
                const config::IpcSettings& settings);
  ~WorkerProcess();  // kills the process if it still runs

  pid_t pid() const { return pid_; }
  ipc::Channel& channel() { return *channel_; }
  void send(const ipc::ToWorker& message);
  // Receives until `done` returns true or the worker has ended (see ended()). After `timeout` it returns false, with
  // a failed expectation.
  bool receive_until(const std::function<bool()>& done,
                     std::chrono::seconds timeout = std::chrono::seconds(100));
  bool wait_ready() {
    return receive_until([this] { return ready.has_value() || fatal.has_value(); }) && ready;
  }
  // For messages: the worker's last message, or how it ended.
  std::string why_not_ready();
  // Receives until the worker has closed its end, and returns its exit code, or minus the signal that killed it.
  int wait_exit();
  // Closes the daemon's end, as the daemon's death would.
  void close_channel() { channel_.reset(); }

  WorkerAnswer& answer(std::uint64_t request) { return answers[RequestId{request}]; }

  std::optional<ipc::Hello> hello;
  std::vector<ipc::Progress> progress;
  std::optional<ipc::Ready> ready;
  std::optional<ipc::Fatal> fatal;
  std::optional<ipc::Stats> stats;
  std::map<RequestId, WorkerAnswer> answers;
  std::vector<ipc::FromWorker> others;

 private:
  void take(ipc::FromWorker message);

  std::unique_ptr<ipc::Channel> channel_;
  pid_t pid_ = -1;
  std::string pool_;  // of the kernels that it got (tests/support/kernels.hpp)
  bool closed_ = false;  // the worker has closed its end
};

}  // namespace bulkhead::test
