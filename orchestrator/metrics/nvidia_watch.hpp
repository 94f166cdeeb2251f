// Figures of NVIDIA's devices: temperature, what slows them down, memory, and Xid errors. NVIDIA's driver shows none
// of them in files, so a process of its own loads the driver's library (worker/main_nvidia.hpp) and answers this one.
//
// The driver may hang, and the process with it. The process's figures are then missing, and nothing here waits for
// them. The daemon does not trust the process: it ends the process if a line breaks a rule of ipc/device_watch.hpp.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/base/quiet_thread.hpp"
#include "orchestrator/metrics/metrics.hpp"

namespace bulkhead::orchestrator {

// What the process has reported. It reads no descriptor, so tests can pass it lines.
class NvidiaReports {
 public:
  // Takes a line without its end. Returns false if it breaks a rule. The figures of a look count once it has ended.
  bool take(std::string_view line);
  // Returns whether a look has ended since the last call.
  bool look_ended() { return std::exchange(ended_, false); }
  const std::string& failure() const {
    return failure_;
  }  // why the process ends, in its words; or empty

  // Forgets what was looked up, but no Xid error.
  void forget();
  // With `xids` false, Xid errors are left out.
  void append_to(std::vector<DaemonFigure>& figures, bool xids) const;

 private:
  using Key =
      std::pair<std::string, std::string>;  // the device's address, and the line's third word
  struct Look {
    std::map<Key, double> temperatures, slowed, memory;
  };
  Look now_, last_;  // `now_` is being received
  std::map<Key, double> xids_;
  std::string failure_;
  bool ended_ = false;
};

class NvidiaWatch {
 public:
  struct Options {
    std::string program;       // bulkhead-worker
    std::string nvml_library;  // libnvidia-ml.so.1; empty: no process
    // A process that is silent for this long is ended.
    std::chrono::milliseconds patience = std::chrono::seconds(5);
    // The pause after a process has ended. It doubles after each further end, up to
    // `longest_pause`.
    std::chrono::milliseconds pause = std::chrono::seconds(5);
    std::chrono::milliseconds longest_pause = std::chrono::minutes(5);
    std::string root = {};  // a folder that stands for "/"; tests fill one
  };
  // Starts the process if the machine has NVIDIA's driver, or if `nvml_library` is a path.
  explicit NvidiaWatch(Options options);
  // Ends the process. Waits at most a second for that.
  ~NvidiaWatch();
  NvidiaWatch(const NvidiaWatch&) = delete;
  NvidiaWatch& operator=(const NvidiaWatch&) = delete;

  // Returns the figures of the last look, and asks for another look if that was a second ago.
  std::vector<DaemonFigure> figures(bool xids);

 private:
  struct State;
  void start_if_there();

  std::shared_ptr<State> state_;
  DetachedThread thread_;
};

}  // namespace bulkhead::orchestrator
