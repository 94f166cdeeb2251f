// The conversation of both ends in death_test. It uses everything that a channel offers, so that both ends pass each
// of the channel's steps, whichever end dies: the hello; turns with both ends asleep; descriptors in both
// directions; a stream in each direction that fills the channel until its sender sleeps; a record in pieces in each
// direction; the goodbye.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/ipc/harness.hpp"

namespace bulkhead::ipc::test {

inline constexpr std::uint32_t kDeathRingKib = 4;
inline constexpr int kTurns = 4;
inline constexpr std::size_t kGoodbye = 8;  // bytes; no other record is as short
inline constexpr std::size_t kLarge = 11000;
inline constexpr int kWorkerSocket = 3, kWorkerRegion = 4;

enum class End { kDaemon, kWorker };

inline std::uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// Returns how long this thread has been ready to run without a core, since its start (the kernel's run delay); 0 if
// the kernel does not say.
inline std::uint64_t waited_for_a_core_ns() {
  std::ifstream file("/proc/thread-self/schedstat");
  std::uint64_t ran = 0, waited = 0;
  return file >> ran >> waited ? waited : 0;
}

class Conversation {
 public:
  Conversation(Channel& channel, End end) : channel_(channel), daemon_(end == End::kDaemon) {}

  // Runs up to the goodbye, or to the error that ended it.
  Status run() {
    if (!daemon_) BULKHEAD_RETURN_IF_ERROR(say(40));  // the hello
    if (daemon_) BULKHEAD_RETURN_IF_ERROR(hear(40));
    for (int turn = 0; turn < kTurns; ++turn) {
      BULKHEAD_RETURN_IF_ERROR(daemon_ ? say_late(100) : hear(100));
      BULKHEAD_RETURN_IF_ERROR(daemon_ ? hear(50) : say_late(50));
    }
    BULKHEAD_RETURN_IF_ERROR(daemon_ ? give(7) : take(7));
    BULKHEAD_RETURN_IF_ERROR(daemon_ ? take(8) : give(8));
    BULKHEAD_RETURN_IF_ERROR(daemon_ ? stream_in() : stream_out());
    BULKHEAD_RETURN_IF_ERROR(daemon_ ? stream_out() : stream_in());
    BULKHEAD_RETURN_IF_ERROR(daemon_ ? say(kLarge) : hear(kLarge));
    BULKHEAD_RETURN_IF_ERROR(daemon_ ? hear(kLarge) : say(kLarge));
    BULKHEAD_RETURN_IF_ERROR(daemon_ ? say(kGoodbye) : hear(kGoodbye));
    return drain();
  }

  // Returns the error that reports the peer's end, whenever it comes.
  Error run_to_the_peers_end() {
    if (const Status status = run(); !status.ok()) return status.error();
    const auto after = receive_asleep(channel_);
    return after.ok() ? Error(ErrorCode::kInternal, "a record after the goodbye") : after.error();
  }

 private:
  static Error wrong(const std::string& what) { return Error(ErrorCode::kInternal, what); }

  Status say(std::size_t bytes) { return send_pattern(channel_, bytes, sent_++); }
  // Says it when the other end is already asleep.
  Status say_late(std::size_t bytes) {
    ::usleep(200);
    return say(bytes);
  }
  Result<std::size_t> hear_any() {
    BULKHEAD_TRY(const std::span<const std::byte> record, receive_asleep(channel_));
    const std::size_t bytes = record.size();
    const bool intact = matches(record, heard_++);
    channel_.release();
    if (!intact) return wrong("record " + std::to_string(heard_ - 1) + " is not what was sent");
    return bytes;
  }
  Status hear(std::size_t bytes) {
    BULKHEAD_TRY(const std::size_t got, hear_any());
    if (got != bytes) return wrong("a record of " + std::to_string(got) + " bytes");
    return {};
  }

  // Sends descriptors, and then a record. Once the other end has the record, it can take the descriptors.
  Status give(std::uint64_t tag) {
    UniqueFd one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const int both[] = {one.get(), one.get()};
    BULKHEAD_RETURN_IF_ERROR(channel_.send_descriptors(both, tag));
    return say(16);
  }
  Status take(std::uint64_t tag) {
    BULKHEAD_RETURN_IF_ERROR(hear(16));
    const auto descriptors = channel_.take_descriptors();
    if (!descriptors) return wrong("no descriptors came before the record behind them");
    if (descriptors->tag != tag || descriptors->fds.size() != 2) return wrong("other descriptors");
    return {};
  }

  // Sends records of many sizes, until the channel has been full and this end has slept to wait for room.
  Status stream_out() {
    const std::uint64_t before = channel_.stats().sleeps;
    for (std::uint64_t i = 0; i < 40 || channel_.stats().sleeps < before + 2; ++i) {
      BULKHEAD_RETURN_IF_ERROR(say(16 + i * 89 % 1000));
    }
    return say(kGoodbye);
  }
  // Receives more slowly than the other end sends. The other end goes on until it has had to sleep twice. A socket has
  // room for 250 records. If more of them come, the other end is slow, too (a sanitizer, a busy machine), and this end
  // waits longer.
  Status stream_in() {
    for (std::uint64_t i = 0;; ++i) {
      const std::uint64_t doubled = std::clamp<std::uint64_t>(i / 32, 8, 14) - 8;
      if (i % 16 == 0) ::usleep(100U << doubled);
      BULKHEAD_TRY(const std::size_t bytes, hear_any());
      if (bytes == kGoodbye) return {};
    }
  }

  Status drain() {
    for (;;) {
      BULKHEAD_TRY(const bool done, channel_.flush());
      if (done) return {};
      ::usleep(50);
    }
  }

  Channel& channel_;
  bool daemon_;
  std::uint64_t sent_ = 0, heard_ = 0;
};

// Starts `program` with `arguments` as the worker of `pair`. Its channel has descriptors 3 and either 0 and 1, or 4.
inline pid_t spawn_worker(const std::string& program, std::vector<std::string> arguments,
                          ChannelPair& pair, std::vector<std::string> environment) {
  const auto high = [](const UniqueFd& fd) {
    return UniqueFd(fd.valid() ? ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 20) : -1);
  };
  const UniqueFd socket = high(pair.worker_socket), region = high(pair.worker_region);
  const UniqueFd input = high(pair.worker_stdin), output = high(pair.worker_stdout);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket.get(), kWorkerSocket);
  if (region.valid()) posix_spawn_file_actions_adddup2(&actions, region.get(), kWorkerRegion);
  if (input.valid()) posix_spawn_file_actions_adddup2(&actions, input.get(), 0);
  if (output.valid()) posix_spawn_file_actions_adddup2(&actions, output.get(), 1);
  arguments.insert(arguments.begin(), program);
  const auto pointers = [](std::vector<std::string>& words) {
    std::vector<char*> result;
    for (std::string& word : words)
      result.push_back(word.data());
    result.push_back(nullptr);
    return result;
  };
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, program.c_str(), &actions, nullptr,
                                   pointers(arguments).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  close_workers_ends(pair);
  return failed == 0 ? pid : -1;
}

// Returns this process's environment without the fault plan, plus `added`. It also stops ThreadSanitizer from letting
// each process that had a second thread sleep for a second at its end.
inline std::vector<std::string> environment_with(const std::vector<std::string>& added) {
  std::vector<std::string> result = {"TSAN_OPTIONS=atexit_sleep_ms=0"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("BULKHEAD_FAULTS")) result.emplace_back(*entry);
  }
  result.insert(result.end(), added.begin(), added.end());
  return result;
}

// Counts the lines of /proc/self/maps that show a ring region.
inline std::size_t mapped_regions() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("bulkhead-") != std::string::npos && line.find(" rw-s ") != std::string::npos) {
      ++count;
    }
  }
  return count;
}

}  // namespace bulkhead::ipc::test
