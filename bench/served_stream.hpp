// For benchmarks that measure the whole way of a token to a client: a bulkheadd process, and a client that streams
// completions over plain sockets. The client only records what came when; HTTP and events are parsed afterwards, so
// that a measured run costs it only two system calls per read.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::bench {

// CLOCK_MONOTONIC, which is the same for all processes.
std::uint64_t now_ns();
// Returns the CPU time that all threads of the process `pid` (0: this one) have used; 0 if it is gone.
std::uint64_t cpu_ns(pid_t pid);
// Return the paths of this program and of another one; our programs are in the same folder.
std::string own_program();
std::string program_beside(const std::string& name);

// A daemon that was started and serves. It ends with this object.
class DaemonProcess {
 public:
  // Starts the daemon and waits until it listens. `environment` is added to this process's. What the daemon writes to
  // stderr is kept for the error if it does not listen.
  static Result<DaemonProcess> start(const std::vector<std::string>& arguments,
                                     const std::map<std::string, std::string>& environment = {});
  DaemonProcess(DaemonProcess&& other) noexcept;
  DaemonProcess& operator=(DaemonProcess&&) = delete;
  ~DaemonProcess();

  pid_t pid() const { return pid_; }
  std::uint16_t port() const { return port_; }
  // Returns the body of a GET, which must be answered with 200.
  Result<std::string> get(const std::string& path) const;
  // Returns /v1/workers, each with a pid.
  Result<nlohmann::json> workers() const;
  // Returns the pid of the first worker.
  Result<pid_t> worker_pid() const;

 private:
  DaemonProcess() = default;
  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
  UniqueFd output_;
};

// One server-sent event, and when its last byte had been read.
struct Event {
  std::uint64_t at_ns = 0;
  std::string data;  // without "data: "
};
struct Stream {
  std::uint64_t sent_ns = 0;  // when the client began to write its request
  std::vector<Event> events;  // the last one is [DONE]
};

// A server that speaks HTTP without TLS. A port without a name means a server on this machine.
struct Endpoint {
  std::string host = "127.0.0.1";  // a name or an address
  std::uint16_t port = 0;

  Endpoint(std::uint16_t own)
      : port(own) {}  // NOLINT(google-explicit-constructor): a daemon's port
  Endpoint(std::string name, std::uint16_t number) : host(std::move(name)), port(number) {}
};
// Parses "http://HOST:PORT", with or without a slash or "/v1" after it.
Result<Endpoint> parse_endpoint(std::string_view url);

// A function that watches while streams are read. It is called after each read with the stream's number, the number
// of its events so far, and the time. If it returns false, all connections are closed.
using Watcher = std::function<bool(std::size_t stream, std::size_t events, std::uint64_t at_ns)>;

// Sends each body as POST /v1/completions on its own connection, all at once, and reads all streams to their ends. It
// makes all connections before it sends the first request, and skips comments among the events. An answer other than
// 200 is an error, and so is a stream that breaks off. If the watcher has closed the connections, a stream ends where
// it was, without [DONE].
Result<std::vector<Stream>> stream_completions(const Endpoint& server,
                                               const std::vector<std::string>& bodies,
                                               const Watcher& watcher = nullptr);

}  // namespace bulkhead::bench
