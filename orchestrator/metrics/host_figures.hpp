// Figures of the machine: its memory and the pressure on it; temperature, throttling and memory of devices; and Xid
// errors of NVIDIA's driver. All come from files in /proc and /sys and from the kernel's log; no device is opened. If
// a system lacks a file, the figure is missing: docs/operation.md lists what each system provides. NVIDIA's driver has
// no such files, and nvidia_watch.hpp asks it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "orchestrator/metrics/metrics.hpp"

namespace bulkhead::orchestrator {

// A separate thread reads the files, because a device's driver may be slow.
class HostWatch {
 public:
  // `root` is a folder that stands for "/"; tests fill one. The constructor reads the files once.
  explicit HostWatch(std::string root = "");
  ~HostWatch();
  HostWatch(const HostWatch&) = delete;
  HostWatch& operator=(const HostWatch&) = delete;

  // Returns the figures of the last look, and starts another look if that was a second ago.
  std::vector<DaemonFigure> figures();
  // Returns whether the kernel's log can be read, so that Xid errors are counted here.
  bool reads_kernel_log() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Reads the files once, but not the kernel's log.
std::vector<DaemonFigure> look_at_host(const std::string& root);

// Counts the Xid errors in the kernel's log by device and number, from its construction on.
class XidCounter {
 public:
  explicit XidCounter(const std::string& root);
  ~XidCounter();
  // Reads the new part of the log, then returns the counts. Returns nothing if the log can't be read.
  std::vector<DaemonFigure> read_on();
  bool reads_log() const;
  // Takes a line such as "6,1234,5678,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus."
  void take(const std::string& line);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bulkhead::orchestrator
