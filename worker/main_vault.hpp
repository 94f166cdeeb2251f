// What this process imports and adopts from the one before it, and leaves to the one after it: weights and
// KV pages in device memory that outlives a process, the model's open files, and a directory of what
// lies where (vault/directory.hpp). The daemon holds the descriptors of all this in between.
//
//   receive()      the daemon's word: is there something? Its descriptors come with it
//   open_model()   the files that the weights came from, although their names may be gone
//   predecessor()  for forward::make_transformer, which compares, imports and checks the weights
//   begin()        when this process is to serve: the KV pages become its own, or, if it has loaded
//                  the model itself, its memory is offered to the daemon
//
// An error before begin() means that nothing of the vault may be used: the process ends, and another one loads the
// model, so that no half of a vault is ever used. An error in begin() only loses the vault or the KV pages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "ipc/channel.hpp"
#include "worker/engine/engine.hpp"
#include "worker/forward/exported_memory.hpp"
#include "worker/forward/transformer.hpp"
#include "worker/main_outbox.hpp"
#include "worker/model/gguf.hpp"
#include "worker/vault/directory.hpp"

namespace bulkhead::worker {

class MainVault final : private engine::PageLedger, private engine::StateLedger {
 public:
  MainVault(ipc::Channel& channel, Outbox& outbox, bool wanted)
      : channel_(channel), outbox_(outbox), wanted_(wanted) {}

  bool wanted() const { return wanted_; }
  // Something was left, and is being imported.
  bool given() const { return given_.epoch != 0; }
  bool may_adopt_kv() const { return given_.may_adopt_kv; }
  // For a process that will wait: the one that serves may give slabs back meanwhile, and get new ones.
  void leave_slabs() {
    predecessor_.slabs.clear();
    given_.slabs.clear();
  }

  Status receive();
  Result<std::unique_ptr<model::GgufFile>> open_model(const std::string& path);
  forward::ExportedMemory* predecessor() { return given() ? &predecessor_ : nullptr; }
  // Once, with nothing submitted to the engine yet, which this must outlive; the file stays open for as
  // long. `may_adopt_kv`: the KV pages that the directory tells of may be believed. `unsettled`: its writer
  // has stopped, but the device may still be at its last steps; what they can write to is withheld from
  // the engine until settled(). False: not without that word, which is to be waited for; nothing has
  // been done.
  enum class Writer : std::uint8_t { kGone, kUnsettled };
  std::optional<ipc::VaultReport> begin(const forward::Transformer& executor,
                                        const model::GgufFile& file, engine::Engine& engine,
                                        bool may_adopt_kv, Writer writer);
  // Instead, of a process that waits to be promoted: the KV pages are still another's, and so is the
  // directory.
  ipc::VaultReport stand_by(const forward::MemoryExporter& exporter);
  // After begin() has reported kWaiting: true once all is offered, or can't be. What other processes of
  // the same user have on the way counts against the descriptors that this one may send.
  bool offer_again();
  // Once Ready was sent: gives back the slabs of the predecessor that could not be imported.
  void give_back_slabs();
  // Between the two: it shares the weights' memory with a process that could write to it until it
  // died. An error is one before begin().
  Status check_again(forward::MemoryExporter& exporter) {
    return given() ? exporter.check_weights_again() : Status();
  }

 private:
  struct Offer {
    UniqueFd directory;
    std::vector<UniqueFd> blocks;
    std::vector<int> descriptors;  // the descriptors of both; between them come those of the model's open files
    std::size_t sent = 0;
    ipc::VaultOffer word;
  };

  Status take_descriptors(std::vector<UniqueFd>& all);
  // Fills in offer_ and makes the directory.
  Status prepare(const forward::Transformer& executor, const model::GgufFile& file);
  // Sends the rest of offer_, and removes it when everything was sent. kResourceExhausted: there is no room for more
  // yet.
  Status send_offer();
  bool adopt(engine::Engine& engine, bool may_adopt_kv, Writer writer);

  void entered(const engine::EnteredPage& page) override {
    directory_->enter(page.page, page.before, page.tokens, page.sum);
  }
  void left(engine::PageIndex page) override { directory_->leave(page); }
  void slab_added(std::uint32_t slab) override;
  void slab_returned(std::uint32_t slab) override;
  void saved(const engine::EnteredState& state) override {
    directory_->enter_state(state.slot, state.page, state.sum);
  }
  void overwritten(engine::StateSlot slot) override { directory_->leave_state(slot); }
  void set_ledgers(engine::Engine& engine) {
    engine.set_ledger(this);
    engine.set_state_ledger(this);
  }

  ipc::Channel& channel_;
  Outbox& outbox_;
  bool wanted_;
  ipc::Vault given_;
  std::vector<UniqueFd> files_;  // until open_model()
  std::string change_times_;     // of the files that this process opened itself
  forward::ExportedMemory predecessor_;
  std::unique_ptr<vault::Directory> directory_;
  const forward::Transformer* executor_ = nullptr;  // from begin() on
  std::uint64_t epoch_ = 0;                         // of the vault that this process writes to
  std::size_t descriptors_ = 0;                     // of that vault, without slabs
  std::set<std::uint32_t> slabs_;                   // those that the daemon holds
  std::optional<Offer> offer_;  // until it is sent
  ipc::VaultReport report_;
};

}  // namespace bulkhead::worker
