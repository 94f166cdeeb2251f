#include "orchestrator/supervisor/vault.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include <spdlog/fmt/fmt.h>

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kDescriptorsOfPacket = 32;

Error violation(std::string what) {
  return Error(ErrorCode::kCorrupt, "its vault: " + std::move(what));
}

constexpr const char* kNoRoom =
    "this daemon may open no more files (`ulimit -n`), so its descriptors were lost";

}  // namespace

Status Vault::take(ipc::Channel& channel, const ipc::VaultOffer& offer, std::string file_mark) {
  const std::uint64_t wanted = std::uint64_t{1} + offer.files + offer.blocks;
  if (offer.epoch == 0) return violation("its number is 0");
  if (wanted > ipc::kMostVaultDescriptors) {
    return violation(
        fmt::format("{} descriptors, and {} are allowed", wanted, ipc::kMostVaultDescriptors));
  }
  ipc::Channel::Descriptors all(
      closer_);  // closes the descriptors that are not taken, without waiting
  while (all.fds.size() < wanted) {
    auto packet = channel.take_descriptors();
    if (!packet && channel.lost_descriptors()) {
      close();  // the process that offers has not used it
      ++drops_;
      last_drop_ = kNoRoom;
      return Error(ErrorCode::kResourceExhausted, kNoRoom);
    }
    if (!packet)
      return violation(fmt::format("{} descriptors came, not {}", all.fds.size(), wanted));
    if (packet->tag != offer.epoch) return violation("descriptors with another number");
    for (UniqueFd& fd : packet->fds)
      all.fds.push_back(std::move(fd));
    packet->fds.clear();
  }
  if (all.fds.size() > wanted) return violation("more descriptors than it announced");
  close();
  descriptors_ = std::move(all.fds);
  all.fds.clear();
  contents_ = {offer.epoch, offer.files, offer.blocks, false, false};
  file_mark_ = std::move(file_mark);
  kv_doubtful_ = replaced_ = false;
  ++offers_;
  return {};
}

Status Vault::change_slab(ipc::Channel& channel, const ipc::VaultSlab& change) {
  const std::uint32_t slab = change.place.slab;
  if (slab >= ipc::kMostVaultSlabs) return violation(fmt::format("a slab of number {}", slab));
  std::vector<UniqueFd> closing;
  UniqueFd memory;
  if (change.held) {
    auto packet = channel.take_descriptors();
    const bool lost = !packet && channel.lost_descriptors();
    if (!lost && (!packet || packet->tag != change.epoch || packet->fds.size() != 1))
      return violation("a slab without its one descriptor");
    if (!lost) {
      memory = std::move(packet->fds.front());
      packet->fds.clear();
    }
  }
  Status status;
  if (!held() || change.epoch != epoch()) {
    closing.push_back(std::move(memory));
  } else {
    if (const auto known = slabs_.find(slab); known != slabs_.end()) {
      closing.push_back(std::move(known->second.memory));
      slabs_.erase(known);
    }
    if (memory.valid() && descriptors_.size() + slabs_.size() >= ipc::kMostVaultDescriptors) {
      status = violation("too many slabs");
      closing.push_back(std::move(memory));
    } else if (memory.valid()) {
      slabs_[slab] = {std::move(memory), change.place.offset};
    }
  }
  std::erase_if(closing, [](const UniqueFd& fd) { return !fd.valid(); });
  closer_->close_lot(std::move(closing));
  return status;
}

ipc::Vault Vault::give(ipc::Channel& channel) {
  if (!held()) return {};
  if (!may_adopt_kv()) close_slabs();
  std::vector<int> all;
  for (const UniqueFd& fd : descriptors_)
    all.push_back(fd.get());
  for (const auto& [number, slab] : slabs_)
    all.push_back(slab.memory.get());
  for (std::size_t at = 0; at < all.size(); at += kDescriptorsOfPacket) {
    const Status sent = channel.send_descriptors(
        std::span(all).subspan(at, std::min(kDescriptorsOfPacket, all.size() - at)),
        contents_.epoch);
    if (sent.ok()) continue;
    // If the process is gone, nothing is left to do. Otherwise the process loads the model itself, and may need the
    // memory that the vault holds.
    if (sent.error().code() != ErrorCode::kUnavailable)
      drop("its descriptors can't be sent: " + sent.error().message());
    return {};
  }
  ipc::Vault message = contents_;
  message.may_adopt_kv = may_adopt_kv();
  message.replaced = replaced_;
  for (const auto& [number, slab] : slabs_)
    message.slabs.push_back({number, slab.offset});
  return message;
}

void Vault::ended(DeathCause cause) {
  switch (cause) {
    case DeathCause::kSignal:
    case DeathCause::kOutOfMemory:
    case DeathCause::kHang:
    case DeathCause::kAsked:
      return;
    case DeathCause::kExit:  // the process found a fault of its own, and could not continue
    case DeathCause::kFailedStart:
      kv_doubtful_ = true;
      return;
    case DeathCause::kDeviceLost:
      return drop("the device failed, and perhaps its memory, too");
    case DeathCause::kProtocolViolation:
      return drop("the process that made it can't be trusted");
  }
}

void Vault::next_is_asked_for() {
  replaced_ = true;
}

void Vault::drop(const std::string& reason) {
  if (!held()) return;
  ++drops_;
  last_drop_ = reason;
  close();
}

void Vault::imported(const ipc::VaultReport& report) {
  ++imports_;
  kv_doubtful_ = replaced_ = false;
  pages_adopted_ += report.pages_adopted;
}

void Vault::close_slabs() {
  std::vector<UniqueFd> all;
  for (auto& [number, slab] : slabs_)
    all.push_back(std::move(slab.memory));
  slabs_.clear();
  closer_->close_lot(std::move(all));
}

void Vault::close() {
  close_slabs();
  closer_->close_lot(std::exchange(descriptors_, {}));
  contents_ = {};
}

}  // namespace bulkhead::orchestrator
