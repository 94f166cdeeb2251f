// Descriptors from a worker may take for ever to close. Here closing waits until the test allows it.
#include "ipc/peer_descriptors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <string>

#include "ipc/peer_socket.hpp"
#include "tests/support/descriptor_packet.hpp"
#include "tests/unit/ipc/harness.hpp"

namespace bulkhead::ipc {
namespace {

using namespace test;

std::atomic<bool> stuck;

void close_when_allowed(UniqueFd fd) {
  stuck.wait(true);
  PeerCloser::close_for_good(std::move(fd));
}
void allow() {
  stuck = false;
  stuck.notify_all();
}

// Returns a descriptor that a thread closes: neither memory nor a pipe.
UniqueFd file() {
  return UniqueFd(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
}
bool settles(const PeerCloser& closer, std::size_t unclosed) {
  for (int i = 0; i < 10000 && closer.unclosed() != unclosed; ++i)
    ::usleep(1000);
  return closer.unclosed() == unclosed;
}
bool send_packet(int socket, std::span<const int> fds) {
  constexpr char kPayload[8] = {};
  return bulkhead::test::send_packet(socket, kPayload, sizeof kPayload, fds) > 0;
}

class StuckPeer : public testing::Test {
 protected:
  void SetUp() override {
    stuck = true;
    ::getrlimit(RLIMIT_NOFILE, &limit_);
    const rlimit more{std::min<rlim_t>(limit_.rlim_max, 8192), limit_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &more);
  }
  void TearDown() override {
    allow();
    ::setrlimit(RLIMIT_NOFILE, &limit_);
    EXPECT_TRUE(settles(*closer_, 0));
    EXPECT_LE(open_descriptors(),
              before_);  // fewer if an earlier test's descriptors were still being closed
  }
  rlimit limit_{};
  std::size_t before_ = open_descriptors();
  std::shared_ptr<PeerCloser> closer_ = PeerCloser::make(close_when_allowed);
};

TEST_F(StuckPeer, HoldsNeitherItsCallerNorAnothersDescriptorsUp) {
  for (std::size_t i = 0; i < 3 * PeerCloser::kMostThreads; ++i)
    closer_->close(file());
  EXPECT_EQ(closer_->unclosed(), 3 * PeerCloser::kMostThreads);
  const auto neighbour = PeerCloser::make();
  std::vector<UniqueFd> lot;
  for (int i = 0; i < 100; ++i) {
    neighbour->close(file());
    lot.push_back(file());
  }
  neighbour->close_lot(std::move(lot));
  EXPECT_TRUE(settles(*neighbour, 0));
  EXPECT_EQ(closer_->unclosed(), 3 * PeerCloser::kMostThreads);
}

// To close the last descriptor of a file in memory frees the pages of that file, and the kernel takes time for that.
TEST_F(StuckPeer, LargeFilesInMemoryAreClosedByAThread) {
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  for (const std::size_t bytes : {std::size_t{1}, kLarge}) {
    UniqueFd memory(::memfd_create("test", MFD_CLOEXEC));
    ASSERT_TRUE(memory.valid());
    const std::string content(bytes, 'x');
    ASSERT_EQ(::write(memory.get(), content.data(), bytes), static_cast<ssize_t>(bytes));
    closer_->close(std::move(memory));
    EXPECT_EQ(closer_->unclosed(), bytes == kLarge ? 1U : 0U) << bytes;
  }
}

TEST_F(StuckPeer, IsFullAfterItsLimit) {
  for (std::size_t i = 0; i + 1 < PeerCloser::kMostWaiting; i += 100) {
    std::vector<UniqueFd> lot;
    for (std::size_t j = i; j + 1 < PeerCloser::kMostWaiting && j < i + 100; ++j)
      lot.push_back(file());
    closer_->close_lot(std::move(lot));
  }
  if (closer_->unclosed() != PeerCloser::kMostWaiting - 1) {
    GTEST_SKIP() << "this process may not have as many descriptors open";
  }
  EXPECT_FALSE(closer_->full());
  closer_->close(file());
  EXPECT_TRUE(closer_->full());
}

// A socket's queue may hold many times more descriptors than a worker has open.
TEST_F(StuckPeer, WhatIsInItsSocketsQueueStaysThere) {
  auto pair = make_socket_pair(SOCK_SEQPACKET);
  ASSERT_TRUE(pair.ok());
  const UniqueFd one = file();
  const std::vector<int> copies(200, one.get());
  std::size_t queued = 0;
  while (queued < 2 * PeerCloser::kMostWaiting && send_packet(pair->theirs.get(), copies))
    queued += copies.size();
  if (queued < 2 * PeerCloser::kMostWaiting) {
    GTEST_SKIP() << "only " << queued << " descriptors fit in the socket's queue here";
  }
  closer_->close_socket(std::move(pair->ours), ::getpid());
  EXPECT_TRUE(closer_->full());
  EXPECT_LE(closer_->unclosed(), PeerCloser::kMostWaiting + copies.size() + 1);
  EXPECT_LE(open_descriptors(), before_ + closer_->unclosed() + 2);
  pair->theirs.reset();
  // The thread that has the socket closes what is left in it.
  allow();
  EXPECT_TRUE(settles(*closer_, 0));
}

// Sockets within sockets: the number of descriptors that a thread takes out of them is bounded, too.
TEST_F(StuckPeer, SocketsWithinSocketsAreClosed) {
  auto outer = make_socket_pair(SOCK_SEQPACKET);
  ASSERT_TRUE(outer.ok());
  for (int i = 0; i < 50; ++i) {
    auto inner = make_socket_pair(SOCK_STREAM);
    ASSERT_TRUE(inner.ok());
    const UniqueFd one = file();
    const std::vector<int> copies(10, one.get());
    ASSERT_TRUE(send_packet(inner->theirs.get(), copies));
    ASSERT_TRUE(send_packet(outer->theirs.get(), std::array{inner->ours.get()}));
  }
  allow();
  closer_->close_socket(std::move(outer->ours), ::getpid());
  EXPECT_TRUE(settles(*closer_, 0));
}

}  // namespace
}  // namespace bulkhead::ipc
