// What the daemon does with a vault's descriptors; these tests need no worker.
#include "orchestrator/supervisor/vault.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <deque>
#include <optional>
#include <utility>

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
  // Fails after so many packets.
  void fail_after(int packets, ErrorCode code) {
    left_ = packets;
    failure_ = code;
  }
  int sent() const { return sent_; }

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
  std::size_t max_record_bytes() const override { return 0; }
  ipc::ChannelStats stats() const override { return {}; }
  void beat(std::uint64_t) override {}
  std::optional<std::uint64_t> last_beat() const override { return std::nullopt; }
  std::optional<std::uint64_t> last_beat_ns() const override { return std::nullopt; }

 private:
  static Error unused() { return Error(ErrorCode::kInternal, "not for records"); }

  std::deque<Descriptors> offered_;
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

}  // namespace
}  // namespace bulkhead::orchestrator
