// What the daemon does with a vault's descriptors; these tests need no worker.
#include "orchestrator/supervisor/vault.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace bulkhead::orchestrator {
namespace {

// A channel that carries only descriptors.
class DescriptorChannel final : public ipc::Channel {
 public:
  void offer(std::uint64_t tag, int count) {
    Descriptors packet(ipc::PeerCloser::make());
    packet.tag = tag;
    for (int i = 0; i < count; ++i)
      packet.fds.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    offered_.push_back(std::move(packet));
  }
  // Makes send_descriptors() fail after this many packets.
  void fail_after(int packets, ErrorCode code) {
    left_ = packets;
    failure_ = code;
  }
  int sent() const { return sent_; }
  // From now on this process has no room for descriptors.
  void lose() {
    lost_ = true;
    offered_.clear();
  }

  Status send_descriptors(std::span<const int> descriptors, std::uint64_t) override {
    if (left_-- == 0) return Error(failure_, "as it was told");
    sent_ += static_cast<int>(descriptors.size());
    return {};
  }
  std::optional<Descriptors> take_descriptors() override {
    if (offered_.empty()) return std::nullopt;
    Descriptors packet = std::move(offered_.front());
    offered_.pop_front();
    return packet;
  }

  Result<std::span<std::byte>> try_reserve(std::size_t) override { return unused(); }
  Status commit(std::size_t) override { return unused(); }
  Result<bool> flush() override { return true; }
  Result<std::span<const std::byte>> try_receive() override { return unused(); }
  void release() override {}
  int wait_fd() const override { return -1; }
  Result<bool> prepare_sleep() override { return unused(); }
  void finish_sleep() override {}
  std::size_t waiting_descriptors() const override { return offered_.size(); }
  bool lost_descriptors() const override { return lost_; }
  std::size_t max_record_bytes() const override { return 0; }
  ipc::ChannelStats stats() const override { return {}; }
  void beat(std::uint64_t) override {}
  std::optional<std::uint64_t> last_beat() const override { return std::nullopt; }
  std::optional<std::uint64_t> last_beat_ns() const override { return std::nullopt; }

 private:
  static Error unused() { return Error(ErrorCode::kInternal, "not for records"); }

  std::deque<Descriptors> offered_;
  bool lost_ = false;
  int left_ = -1, sent_ = 0;
  ErrorCode failure_ = ErrorCode::kInternal;
};

constexpr std::uint64_t kEpoch = 77;

// Adds 1 directory, 1 file and 58 blocks, which need two packets.
void fill(Vault& vault) {
  DescriptorChannel channel;
  channel.offer(kEpoch, 32);
  channel.offer(kEpoch, 28);
  ASSERT_TRUE(vault.take(channel, {kEpoch, 1, 58}, "mark").ok());
  ASSERT_TRUE(vault.held());
}

TEST(VaultDescriptors, GoToEachSuccessorWhole) {
  Vault vault;
  fill(vault);
  for (int i = 0; i < 2; ++i) {
    DescriptorChannel successor;
    const ipc::Vault given = vault.give(successor);
    EXPECT_EQ(given.epoch, kEpoch);
    EXPECT_EQ(given.blocks, 58U);
    EXPECT_EQ(successor.sent(), 60);
  }
  EXPECT_TRUE(vault.held());
}

TEST(VaultDescriptors, ThatCannotAllBeSentAreNotKeptBesideWhatIsLoadedThen) {
  for (const int packets : {0, 1}) {
    Vault vault;
    fill(vault);
    DescriptorChannel successor;
    successor.fail_after(packets, ErrorCode::kResourceExhausted);
    EXPECT_EQ(vault.give(successor).epoch, 0U);
    EXPECT_FALSE(vault.held());
    EXPECT_EQ(vault.drops(), 1U);
    EXPECT_NE(vault.last_drop().find("can't be sent: as it was told"), std::string::npos)
        << vault.last_drop();
  }
}

TEST(VaultDescriptors, OutliveASuccessorThatIsGoneBeforeItGetsThem) {
  Vault vault;
  fill(vault);
  DescriptorChannel successor;
  successor.fail_after(1, ErrorCode::kUnavailable);
  EXPECT_EQ(vault.give(successor).epoch, 0U);
  EXPECT_TRUE(vault.held());
  EXPECT_EQ(vault.drops(), 0U);
}

// Returns how many descriptors the daemon sends to a successor.
int sent_by(Vault& vault, ipc::Vault* message = nullptr) {
  DescriptorChannel successor;
  const ipc::Vault told = vault.give(successor);
  if (message != nullptr) *message = told;
  return successor.sent();
}

// The daemon's own lack of room is no broken rule. The worker serves without a vault.
TEST(VaultDescriptors, ThatWereLostLeaveNothingHeld) {
  Vault vault;
  fill(vault);
  DescriptorChannel channel;
  channel.lose();
  const Status status = vault.take(channel, {kEpoch + 1, 1, 58}, "mark");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(vault.last_drop().find("ulimit -n"), std::string::npos) << vault.last_drop();
  EXPECT_FALSE(vault.held());
}

TEST(VaultSlabs, WhoseDescriptorWasLostAreNotHeld) {
  Vault vault;
  fill(vault);
  DescriptorChannel channel;
  channel.offer(kEpoch, 1);
  ASSERT_TRUE(vault.change_slab(channel, {kEpoch, {3, 0}, true}).ok());
  ASSERT_EQ(vault.slabs(), 1U);
  channel.lose();
  // The number now stands for other memory than the memory that is held.
  EXPECT_TRUE(vault.change_slab(channel, {kEpoch, {3, 0}, true}).ok());
  EXPECT_EQ(vault.slabs(), 0U);
  EXPECT_TRUE(vault.held());
}

TEST(VaultSlabs, ComeAndGoWhileAWorkerServes) {
  Vault vault;
  fill(vault);
  DescriptorChannel worker;
  for (const std::uint32_t slab : {4U, 2U}) {
    worker.offer(kEpoch, 1);
    ASSERT_TRUE(vault.change_slab(worker, {kEpoch, {slab, slab * 10}, true}).ok());
  }
  ipc::Vault told;
  EXPECT_EQ(sent_by(vault, &told), 62);
  EXPECT_EQ(told.slabs, (std::vector<ipc::HeldSlab>{{2, 20}, {4, 40}}));
  worker.offer(kEpoch, 1);  // given back and grown again
  ASSERT_TRUE(vault.change_slab(worker, {kEpoch, {4, 44}, true}).ok());
  ASSERT_TRUE(vault.change_slab(worker, {kEpoch, {2, 0}, false}).ok());
  ASSERT_TRUE(vault.change_slab(worker, {kEpoch, {9, 0}, false}).ok()) << "not known";
  EXPECT_EQ(sent_by(vault, &told), 61);
  EXPECT_EQ(told.slabs, (std::vector<ipc::HeldSlab>{{4, 44}}));
  vault.ended(DeathCause::kExit);
  EXPECT_EQ(sent_by(vault, &told), 60) << "its pages would not be believed";
  EXPECT_TRUE(told.slabs.empty());
}

TEST(VaultSlabs, OfAnotherVaultAreClosed) {
  Vault vault;
  DescriptorChannel worker;
  worker.offer(kEpoch, 1);
  EXPECT_TRUE(vault.change_slab(worker, {kEpoch, {1, 0}, true}).ok()) << "the vault was dropped";
  EXPECT_EQ(worker.waiting_descriptors(), 0U);
  EXPECT_EQ(vault.slabs(), 0U);
  fill(vault);
  worker.offer(kEpoch - 1, 1);
  EXPECT_TRUE(vault.change_slab(worker, {kEpoch - 1, {1, 0}, true}).ok());
  EXPECT_EQ(vault.slabs(), 0U);
  worker.offer(kEpoch, 1);
  ASSERT_TRUE(vault.change_slab(worker, {kEpoch, {1, 0}, true}).ok());
  fill(vault);  // a new offer
  EXPECT_EQ(vault.slabs(), 0U);
}

TEST(VaultSlabs, ThatBreakARuleEndTheWorker) {
  Vault vault;
  fill(vault);
  DescriptorChannel worker;
  EXPECT_FALSE(vault.change_slab(worker, {kEpoch, {1, 0}, true}).ok()) << "no descriptor";
  worker.offer(kEpoch, 2);
  EXPECT_FALSE(vault.change_slab(worker, {kEpoch, {1, 0}, true}).ok()) << "two";
  worker.offer(kEpoch + 1, 1);
  EXPECT_FALSE(vault.change_slab(worker, {kEpoch, {1, 0}, true}).ok()) << "of another number";
  EXPECT_FALSE(vault.change_slab(worker, {kEpoch, {ipc::kMostVaultSlabs, 0}, false}).ok());
  Status last;
  std::uint32_t taken = 0;
  for (std::uint32_t slab = 0; last.ok() && slab < ipc::kMostVaultSlabs; ++slab, ++taken) {
    worker.offer(kEpoch, 1);
    last = vault.change_slab(worker, {kEpoch, {slab, 0}, true});
  }
  EXPECT_FALSE(last.ok());
  EXPECT_LE(taken, ipc::kMostVaultDescriptors);
}

}  // namespace
}  // namespace bulkhead::orchestrator
