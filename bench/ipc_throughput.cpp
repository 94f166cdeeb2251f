#include "bench/ipc_throughput.hpp"

#include <algorithm>
#include <tuple>

#include <nlohmann/json.hpp>

namespace bulkhead::bench {
namespace {

using nlohmann::json;

// Throughput in one direction, with records of `bytes`: records a second in the fastest interval, and over all of the
// best repeat. `up`: from the worker to the daemon. Each record is published by itself.
struct Throughput {
  double fastest = 0, whole = 0;
};
Throughput throughput(const IpcOptions& options, config::Transport transport, bool up,
                      std::size_t bytes) {
  Throughput best;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    ChannelPort port(transport, false, options.ring_kib);
    // The time bounds this: the sender marks its last record.
    const auto produce = [&] {
      const std::vector<std::byte> source(bytes, std::byte{1});
      const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(options.seconds * 1e9);
      for (std::uint64_t i = 0;; ++i) {
        const bool last = i % 1024 == 1023 && now_ns() > end;
        const std::span<std::byte> place = port.room(bytes);
        std::memcpy(place.data(), source.data(), bytes);
        if (last) place[0] = std::byte{2};
        must(port.channel->commit(bytes));
        if (last) break;
      }
      while (!must(port.channel->flush()))
        pause_cpu();
    };
    const auto consume = [&] {
      // The fastest interval counts, because on shared cores one end often waits for the other. An interval has many
      // times the records that the ring holds, so that a backlog doesn't count as speed.
      const std::uint64_t stretch =
          std::max<std::uint64_t>(1024, std::uint64_t{16} * (options.ring_kib << 10) / bytes);
      Throughput rate;
      std::uint64_t start = now_ns();
      const std::uint64_t begin = start;
      for (std::uint64_t i = 1;; ++i) {
        const std::span<const std::byte> record = port.next_of_many();
        const bool last = record.front() == std::byte{2};
        if (record.back() == std::byte{0} || record.size() != bytes) fail("a record came wrong");
        port.channel->release();
        if (i % stretch == 0) {
          const std::uint64_t end = now_ns();
          rate.fastest = std::max(
              rate.fastest, static_cast<double>(stretch) * 1e9 / static_cast<double>(end - start));
          start = end;
        }
        if (last) {
          rate.whole = static_cast<double>(i) * 1e9 / static_cast<double>(now_ns() - begin);
          return rate;
        }
      }
    };
    Throughput* rate = shared<Throughput>();
    const pid_t child = fork_worker(options, [&] {
      port.child();
      if (up) {
        produce();
        // This end stays open until everything has been read; otherwise the rest would be lost with it.
        while (must(ipc::wait_readable(*port.channel, std::chrono::microseconds(0),
                                       std::chrono::milliseconds(60000))) == false) {
        }
      } else {
        *rate = consume();
      }
    });
    port.parent();
    if (up) {
      *rate = consume();
      port.send({});
    } else {
      produce();
    }
    join(child);
    best.fastest = std::max(best.fastest, rate->fastest);
    best.whole = std::max(best.whole, rate->whole);
    ::munmap(rate, sizeof *rate);
  }
  return best;
}

// Returns the speed of one core that only copies records of `bytes` into a buffer of the ring's size.
double memcpy_gb_per_s(const IpcOptions& options, std::size_t bytes) {
  std::vector<std::byte> source(bytes, std::byte{1}), ring(std::size_t{options.ring_kib} << 10);
  double best = 0;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    constexpr std::uint64_t kBytes = std::uint64_t{1} << 30;
    std::size_t at = 0;
    const std::uint64_t start = now_ns();
    for (std::uint64_t done = 0; done < kBytes; done += bytes) {
      std::memcpy(ring.data() + at, source.data(), bytes);
      asm volatile("" : : "r"(ring.data()) : "memory");
      at = at + 2 * bytes <= ring.size() ? at + bytes : 0;
    }
    best = std::max(best, static_cast<double>(kBytes) / static_cast<double>(now_ns() - start));
  }
  return best;
}

}  // namespace

json throughput_by_size(const IpcOptions& options) {
  std::printf("\none way throughput\n%-10s %7s %14s %9s %16s %14s\n", "", "bytes", "records/s",
              "GB/s", "memcpy alone", "whole, rec/s");
  json rates = json::array();
  for (const std::size_t bytes : {64, 256, 1024, 4096, 16384, 65536}) {
    const double copy = memcpy_gb_per_s(options, bytes);
    for (auto [name, transport, up] : {std::tuple{"ring_up", config::Transport::kShm, true},
                                       {"ring_down", config::Transport::kShm, false},
                                       {"stdio_up", config::Transport::kStdio, true},
                                       {"stdio_down", config::Transport::kStdio, false}}) {
      const Throughput rate = throughput(options, transport, up, bytes);
      const double gb = rate.fastest * static_cast<double>(bytes) / 1e9;
      std::printf("%-10s %7zu %14.0f %9.2f %11.2f GB/s %14.0f\n", name, bytes, rate.fastest, gb,
                  copy, rate.whole);
      std::fflush(stdout);
      rates.push_back({{"name", name},
                       {"bytes", bytes},
                       {"records_per_s", rate.fastest},
                       {"whole_records_per_s", rate.whole},
                       {"gb_per_s", gb},
                       {"memcpy_gb_per_s", copy}});
    }
  }
  return rates;
}

}  // namespace bulkhead::bench
