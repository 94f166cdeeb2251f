// The other process of death_test, in which the fault plan of its environment holds.
//   death_peer worker KIND [REPORT]   has the worker's end: its descriptors are as spawn_worker's
//   death_peer daemon KIND REPORT     makes a channel and starts a worker, which has no plan and
//                                     reports how it saw the daemon's end
// The report: "CODE NOTICED_NS WAITED_NS LEAKED_DESCRIPTORS LEAKED_REGIONS MESSAGE".
#include <cstdio>
#include <fstream>

#include "tests/unit/ipc/death_conversation.hpp"

namespace bulkhead::ipc::test {
namespace {

int worker(const Kind& kind, const char* report) {
  const bool stdio = kind.transport == config::Transport::kStdio;
  const std::size_t own = open_descriptors() - (stdio ? 1 : 2);  // without what is taken over
  InheritedDescriptors inherited;
  inherited.socket = kWorkerSocket;
  if (!stdio) inherited.region = kWorkerRegion;
  auto channel = open_worker_channel(inherited, settings_for(kind, kDeathRingKib));
  if (!channel.ok()) {
    std::fprintf(stderr, "death_peer: %s\n", channel.error().message().c_str());
    return 3;
  }
  if (::write(STDOUT_FILENO, "\r", 1) != 1) return 7;  // other output of a process is not a part of the channel
  Conversation conversation(**channel, End::kWorker);
  if (report == nullptr) {
    const Status status = conversation.run();
    if (!status.ok()) std::fprintf(stderr, "death_peer: %s\n", status.error().message().c_str());
    return status.ok() ? 0 : 4;
  }
  const Error error = conversation.run_to_the_peers_end();
  const std::uint64_t noticed = monotonic_ns(), waited = waited_for_a_core_ns();
  channel->reset();
  const auto leaked = [&] {
    return static_cast<long>(open_descriptors()) - static_cast<long>(own);
  };
  for (int i = 0; i < 2000 && leaked() != 0; ++i)
    ::usleep(1000);  // another thread closes what came over the socket
  const long leaks = leaked();
  const std::string whole = std::string(report) + ".whole";
  std::ofstream(whole) << static_cast<int>(error.code()) << " " << noticed << " " << waited << " "
                       << leaks << " " << mapped_regions() << " " << error.message() << "\n";
  return std::rename(whole.c_str(), report) == 0 ? 0 : 5;
}

int daemon(const char* program, const char* kind_name, const Kind& kind, const char* report) {
  auto pair = make_channel_pair(settings_for(kind, kDeathRingKib));
  if (!pair.ok()) return 3;
  if (spawn_worker(program, {"worker", kind_name, report}, *pair, environment_with({})) < 0) {
    return 6;
  }
  const Status status = Conversation(*pair->daemon, End::kDaemon).run();
  if (!status.ok()) std::fprintf(stderr, "death_peer: %s\n", status.error().message().c_str());
  return status.ok() ? 0 : 4;
}

}  // namespace
}  // namespace bulkhead::ipc::test

int main(int argc, char** argv) {
  using namespace bulkhead::ipc::test;
  if (argc < 3) return 2;
  for (const Kind& kind : {kMemfd, kPosix, kStdio}) {
    if (std::string(kind.name) != argv[2]) continue;
    const char* report = argc > 3 ? argv[3] : nullptr;
    if (std::string(argv[1]) == "worker") return worker(kind, report);
    if (std::string(argv[1]) == "daemon" && argc > 3) return daemon(argv[0], argv[2], kind, report);
  }
  return 2;
}
