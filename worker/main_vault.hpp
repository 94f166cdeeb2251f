// What this process imports and adopts from its predecessor, and leaves to its successor: weights and KV
// pages in device memory that outlives a process, the model's open files, and a directory of that memory
// (vault/directory.hpp). Between the two processes, the daemon holds the descriptors of all this.
//
//   receive()      Gets from the daemon what a predecessor left, if it left anything.
//   open_model()   Opens the files from which the weights came, although their names may be gone.
//   predecessor()  Returns the predecessor's memory, for forward::make_transformer, which compares, imports and
//                  checks the weights.
//   begin()        Comes when this process is to serve: it takes over the predecessor's KV pages, or, if it has loaded
//                  the model itself, offers its memory to the daemon.
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
  // Returns whether a predecessor left something, which this process imports.
  bool given() const { return given_.epoch != 0; }
  bool may_adopt_kv() const { return given_.may_adopt_kv; }
  // Forgets the predecessor's slabs. A standby calls this, because the process that serves may give slabs back and get
  // new ones while the standby waits.
  void leave_slabs() {
    predecessor_.slabs.clear();
    given_.slabs.clear();
  }

  Status receive();
  Result<std::unique_ptr<model::GgufFile>> open_model(const std::string& path);
  forward::ExportedMemory* predecessor() { return given() ? &predecessor_ : nullptr; }
  // Call it once, before anything is submitted to the engine. This object and the open `file` must outlive the engine.
  // `may_adopt_kv`: the engine may adopt the KV pages of the directory. kUnsettled: the directory's writer has
  // stopped, but the device may still compute its last steps; the engine does not get the pages to which these can
  // write before the daemon sends Settled. Empty: this process can't begin before Settled, and nothing has been done.
  enum class Writer : std::uint8_t { kGone, kUnsettled };
  std::optional<ipc::VaultReport> begin(const forward::Transformer& executor,
                                        const model::GgufFile& file, engine::Engine& engine,
                                        bool may_adopt_kv, Writer writer);
  // A standby calls this first, and begin() once it is promoted. Until then the KV pages and the directory belong to
  // another process.
  ipc::VaultReport stand_by(const forward::MemoryExporter& exporter);
  // Call it after begin() has reported kWaiting, until it returns true: everything is offered, or can't be. The process
  // must wait because the kernel limits how many descriptors all processes of one user may have under way.
  bool offer_again();
  // Call it once Ready has been sent: gives back the predecessor's slabs that could not be imported.
  void give_back_slabs();
  // Checks the weights once more. A promoted standby calls this between stand_by() and begin(), because the process
  // before it shared the weights' memory and could write to it until its death. An error counts as one before begin().
  Status check_again(forward::MemoryExporter& exporter) {
    return given() ? exporter.check_weights_again() : Status();
  }

 private:
  struct Offer {
    UniqueFd directory;
    std::vector<UniqueFd> blocks;
    std::vector<int> descriptors;  // of the directory, the model's open files and the blocks, in this order
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
  std::set<std::uint32_t> pieces_;                  // of slabs: those that the daemon holds
  std::optional<Offer> offer_;                      // until it is sent
  ipc::VaultReport report_;
};

}  // namespace bulkhead::worker
