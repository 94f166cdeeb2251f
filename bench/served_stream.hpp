// The way of a token to a client, for the benchmarks that measure all of it: a bulkheadd process and
// a client that streams completions over plain sockets. The client only takes down what came when;
// HTTP and events are taken apart afterwards, so that it costs a measured run two system calls a
// read.
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

// CLOCK_MONOTONIC, the same for all processes.
std::uint64_t now_ns();
// CPU time that the process `pid` (0: this one) has used, all its threads; 0 when it is gone.
std::uint64_t cpu_ns(pid_t pid);
// The path of this program, and of another of ours: they stand side by side.
std::string own_program();
std::string program_beside(const std::string& name);

// A daemon that was started and serves; ended with the object.
class DaemonProcess {
 public:
  // Waits until it listens. `environment` is added to ours. What it says on stderr is kept for the
  // error that tells that it did not.
  static Result<DaemonProcess> start(const std::vector<std::string>& arguments,
                                     const std::map<std::string, std::string>& environment = {});
  DaemonProcess(DaemonProcess&& other) noexcept;
  DaemonProcess& operator=(DaemonProcess&&) = delete;
  ~DaemonProcess();

  pid_t pid() const { return pid_; }
  std::uint16_t port() const { return port_; }
  // The body of a GET, which must be answered with 200.
  Result<std::string> get(const std::string& path) const;
  // /v1/workers, each with a pid.
  Result<nlohmann::json> workers() const;
  // Of the first worker.
  Result<pid_t> worker_pid() const;

 private:
  DaemonProcess() = default;
  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
  UniqueFd output_;
};

// One server-sent event and when its last byte had been read.
struct Event {
  std::uint64_t at_ns = 0;
  std::string data;  // without "data: "
};
struct Stream {
  std::uint64_t sent_ns = 0;  // when its request began to be written
  std::vector<Event> events;  // [DONE] is the last
};

// A server that speaks HTTP without TLS. A port without a name means a server of this machine.
struct Endpoint {
  std::string host = "127.0.0.1";  // a name or an address
  std::uint16_t port = 0;

  Endpoint(std::uint16_t own)
      : port(own) {}  // NOLINT(google-explicit-constructor): a daemon's port
  Endpoint(std::string name, std::uint16_t number) : host(std::move(name)), port(number) {}
};
// Parses "http://HOST:PORT", with or without a slash or "/v1" behind it.
Result<Endpoint> parse_endpoint(std::string_view url);

// A function that looks on while streams are read. It is called after each read with the stream's number, the
// number of its events so far, and the time. If the function returns false, all connections are closed.
using Watcher = std::function<bool(std::size_t stream, std::size_t events, std::uint64_t at_ns)>;

// Sends each body as POST /v1/completions on a connection of its own, all at once, and reads all
// streams to their ends. The function makes all connections before it sends the first request, and passes
// over comments among the events. An answer other than 200 is an error, and so is a stream that breaks off. A
// stream that the watcher has closed ends where it was, without [DONE].
Result<std::vector<Stream>> stream_completions(const Endpoint& server,
                                               const std::vector<std::string>& bodies,
                                               const Watcher& watcher = nullptr);

}  // namespace bulkhead::bench
