// A channel over each transport and region, with both ends in this process. The worker's end may be given to a Child
// instead.
#pragma once

#include <memory>

#include "tests/unit/ipc/harness.hpp"

namespace bulkhead::ipc::test {

class OverEveryTransport : public testing::TestWithParam<Kind> {
 protected:
  // A small ring, so that everything wraps around.
  void open(std::uint32_t ring_kib = 16) {
    settings_ = settings_for(GetParam(), ring_kib);
    pair_ = make_pair(settings_);
    worker_ = open_here(pair_, settings_);
  }
  Channel& daemon() { return *pair_.daemon; }
  Channel& worker() { return *worker_; }

  config::IpcSettings settings_;
  ChannelPair pair_;
  std::unique_ptr<Channel> worker_;
};

inline const auto kEveryTransport = testing::Values(kMemfd, kPosix, kStdio);

}  // namespace bulkhead::ipc::test
