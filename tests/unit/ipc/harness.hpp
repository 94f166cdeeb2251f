// Both ends of a channel, in one process or two, over each transport.
#pragma once

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iterator>
#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "ipc/channel.hpp"

namespace bulkhead::ipc::test {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Long enough that only a lost wake-up or a deadlock can take this time.
inline constexpr seconds kForever{60};

struct Kind {
  const char* name;
  config::Transport transport;
  config::RegionKind region;
};
inline void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}
inline constexpr Kind kMemfd{"shm_memfd", config::Transport::kShm, config::RegionKind::kMemfd};
inline constexpr Kind kPosix{"shm_posix", config::Transport::kShm, config::RegionKind::kPosix};
inline constexpr Kind kStdio{"stdio", config::Transport::kStdio, config::RegionKind::kMemfd};

inline config::IpcSettings settings_for(const Kind& kind, std::uint32_t ring_kib) {
  config::IpcSettings settings;
  settings.transport = kind.transport;
  settings.region = kind.region;
  settings.ring_kib = ring_kib;
  return settings;
}

inline ChannelPair make_pair(const config::IpcSettings& settings) {
  auto pair = make_channel_pair(settings);
  if (!pair.ok()) {
    std::fprintf(stderr, "make_channel_pair: %s\n", pair.error().message().c_str());
    std::abort();
  }
  return std::move(*pair);
}

// Opens the worker's end of `pair` in this process, without touching its standard streams.
inline std::unique_ptr<Channel> open_here(ChannelPair& pair, const config::IpcSettings& settings) {
  InheritedDescriptors inherited;
  inherited.socket = pair.worker_socket.release();
  inherited.region = pair.worker_region.release();
  if (inherited.region < 0) {
    inherited.input = pair.worker_stdin.release();
    inherited.output = pair.worker_stdout.release();
  }
  auto channel = open_worker_channel(inherited, settings);
  if (!channel.ok()) {
    std::fprintf(stderr, "open_worker_channel: %s\n", channel.error().message().c_str());
    std::abort();
  }
  return std::move(*channel);
}

inline void close_workers_ends(ChannelPair& pair) {
  pair.worker_socket.reset();
  pair.worker_region.reset();
  pair.worker_stdin.reset();
  pair.worker_stdout.reset();
}

// Runs `body` as a worker process: the process closes the daemon's end, and its exit code is the result of `body`.
class Child {
 public:
  Child(ChannelPair& pair, const config::IpcSettings& settings,
        const std::function<int(Channel&)>& body)
      : Child(pair, [&] {
          auto channel = open_here(pair, settings);
          return body(*channel);
        }) {}
  Child(ChannelPair& pair, const std::function<int()>& body) {
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      pair.daemon.reset();
      ::_exit(body());
    }
    close_workers_ends(pair);
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  pid_t pid() const { return pid_; }
  // Returns the exit code, or 1000 + signal.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

inline std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(
      std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

// Waits until the number is `expected`, because another thread may close what a peer sent.
inline std::size_t descriptors_settle(std::size_t expected) {
  for (int i = 0; i < 10000 && open_descriptors() != expected; ++i)
    ::usleep(1000);
  return open_descriptors();
}

inline void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(seed * 37 + i + (i >> 8));
  }
}
inline bool matches(std::span<const std::byte> bytes, std::uint64_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != static_cast<std::byte>(seed * 37 + i + (i >> 8))) return false;
  }
  return true;
}

// Sends one patterned record; sleeps while there is no room.
inline Status send_pattern(Channel& channel, std::size_t size, std::uint64_t seed) {
  for (;;) {
    BULKHEAD_TRY(const std::span<std::byte> place, channel.try_reserve(size));
    if (!place.empty()) {
      fill(place, seed);
      return channel.commit(size);
    }
    BULKHEAD_TRY(const bool asleep, channel.prepare_sleep());
    if (!asleep) {
      ::usleep(50);  // a record for somebody else keeps the end awake
      continue;
    }
    pollfd wait{channel.wait_fd(), POLLIN, 0};
    const int ready = ::poll(&wait, 1, 60000);
    channel.finish_sleep();
    if (ready == 0) return Error(ErrorCode::kDeadlineExceeded, "a wake-up for room was lost");
  }
}

// Receives one record; sleeps until it comes. The record stays until release().
inline Result<std::span<const std::byte>> receive_asleep(Channel& channel) {
  for (;;) {
    BULKHEAD_TRY(const std::span<const std::byte> record, channel.try_receive());
    if (!record.empty()) return record;
    BULKHEAD_TRY(const bool asleep, channel.prepare_sleep());
    if (!asleep) continue;
    pollfd wait{channel.wait_fd(), POLLIN, 0};
    const int ready = ::poll(&wait, 1, 60000);
    channel.finish_sleep();
    if (ready == 0) return Error(ErrorCode::kDeadlineExceeded, "a wake-up was lost");
  }
}

}  // namespace bulkhead::ipc::test
