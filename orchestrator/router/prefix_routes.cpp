#include "orchestrator/router/prefix_routes.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>
#include <variant>

namespace bulkhead::orchestrator {

namespace {

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  // This is the finalizer of MurmurHash3 (A. Appleby, public domain), over a sum in which a and b
  // count differently.
  std::uint64_t x = a * 0x9e3779b97f4a7c15ULL + b;
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

// Hashes the whole blocks of bytes that come in pieces.
class Blocks {
 public:
  void add(std::string_view bytes) {
    while (!bytes.empty() && hashes_.size() < PrefixRoutes::kMostBlocks) {
      const std::size_t room = PrefixRoutes::kBlockBytes - partial_.size();
      partial_ += bytes.substr(0, room);
      bytes.remove_prefix(std::min(room, bytes.size()));
      if (partial_.size() < PrefixRoutes::kBlockBytes) return;
      const std::uint64_t before = hashes_.empty() ? 0 : hashes_.back();
      hashes_.push_back(mixed(before, std::hash<std::string_view>{}(partial_)));
      partial_.clear();
    }
  }
  std::vector<std::uint64_t> take() { return std::move(hashes_); }

 private:
  std::string partial_;
  std::vector<std::uint64_t> hashes_;
};

}  // namespace

std::vector<std::uint64_t> prefix_blocks(const ipc::Work& work) {
  const auto* submit = std::get_if<ipc::Submit>(&work);
  if (submit == nullptr) return {};
  Blocks blocks;
  if (const auto* text = std::get_if<std::string>(&submit->prompt)) blocks.add(*text);
  if (const auto* chat = std::get_if<ipc::ChatPrompt>(&submit->prompt)) blocks.add(chat->json);
  if (const auto* tokens = std::get_if<std::vector<ipc::TokenId>>(&submit->prompt)) {
    blocks.add(
        {reinterpret_cast<const char*>(tokens->data()), tokens->size() * sizeof(ipc::TokenId)});
  }
  if (const auto* messages = std::get_if<std::vector<ipc::ChatMessage>>(&submit->prompt)) {
    for (const ipc::ChatMessage& message : *messages) {
      blocks.add(message.role);
      blocks.add(message.content);
    }
  }
  return blocks.take();
}

std::uint64_t PrefixRoutes::key_of(std::size_t model, std::uint64_t block) {
  return mixed(model + 1, block);
}

std::string PrefixRoutes::holder_of(std::size_t model,
                                    std::span<const std::uint64_t> blocks) const {
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    const auto found = kept_.find(key_of(model, *block));
    if (found != kept_.end()) return found->second.worker;
  }
  return "";
}

void PrefixRoutes::note(std::size_t model, std::span<const std::uint64_t> blocks,
                        std::string_view worker) {
  for (const std::uint64_t block : blocks) {
    const std::uint64_t key = key_of(model, block);
    const auto found = kept_.find(key);
    if (found != kept_.end()) {
      found->second.worker = worker;
      ages_.splice(ages_.end(), ages_, found->second.age);
      continue;
    }
    ages_.push_back(key);
    kept_.emplace(key, Kept{std::string(worker), std::prev(ages_.end())});
    if (kept_.size() <= kMostKept) continue;
    kept_.erase(ages_.front());
    ages_.pop_front();
  }
}

}  // namespace bulkhead::orchestrator
