// What the machine says of itself: its memory and the pressure on it, temperature, throttling and memory of devices, and
// Xid errors of NVIDIA's driver. All of it comes from files of /proc, /sys and from the kernel's log; no device is
// opened. A system that lacks a file lacks the figure: docs/operation.md says what each system tells.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "orchestrator/metrics/metrics.hpp"

namespace bulkhead::orchestrator {

// A thread of its own reads the files, since a device's driver may take its time.
class HostWatch {
 public:
  // `root`: a folder that stands for "/"; tests fill one. Looks once before it returns.
  explicit HostWatch(std::string root = "");
  ~HostWatch();
  HostWatch(const HostWatch&) = delete;
  HostWatch& operator=(const HostWatch&) = delete;

  // Returns what the last look saw, and has the thread look again if that was a second ago.
  std::vector<DaemonFigure> figures();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Reads the files once, but for the kernel's log.
std::vector<DaemonFigure> look_at_host(const std::string& root);

// Counts the Xid errors in the kernel's log, of each device and number, from the time of its making on.
class XidCounter {
 public:
  explicit XidCounter(const std::string& root);
  ~XidCounter();
  // Reads on in the log, then returns the counts. None at all if the log can't be read.
  std::vector<DaemonFigure> read_on();
  // Takes a line such as "6,1234,5678,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus."
  void take(const std::string& line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bulkhead::orchestrator
