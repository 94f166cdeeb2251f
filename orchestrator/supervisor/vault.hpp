// The daemon's side of the vault: it holds the descriptors of what outlives a worker's process (memory on the device,
// the model's files, and a directory of the memory's content) and passes them to the successor. The daemon never
// opens, maps or reads them. Of the worker's offer it uses only two bounded counts. A worker that offers rubbish
// harms only its own successor, which checks what it gets and is confined in the same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "ipc/channel.hpp"
#include "ipc/messages.hpp"
#include "ipc/peer_descriptors.hpp"
#include "orchestrator/supervisor/death.hpp"

namespace bulkhead::orchestrator {

class Vault {
 public:
  explicit Vault(std::shared_ptr<ipc::PeerCloser> closer = ipc::PeerCloser::make())
      : closer_(std::move(closer)) {}
  ~Vault() { close(); }
  Vault(const Vault&) = delete;
  Vault& operator=(const Vault&) = delete;

  // Closes whatever any of the worker's processes sent, whether the descriptors belong to a vault or not.
  const std::shared_ptr<ipc::PeerCloser>& closer() const { return closer_; }

  bool held() const { return !descriptors_.empty(); }
  std::uint64_t epoch() const { return contents_.epoch; }  // 0: nothing is held

  // Takes the descriptors that came before the offer, and drops what was held until now. kResourceExhausted: this
  // process had no room for them, and nothing is held. Another error means that a rule was broken. `file_mark` is the
  // mark of the model file of its weights.
  Status take(ipc::Channel& channel, const ipc::VaultOffer& offer, std::string file_mark);
  // Takes the descriptor of a slab by which a worker's cache has grown since, or closes that of one that it gave back.
  // Ignores slabs of another vault than the one that is held, and slabs whose descriptor was lost. An error means that
  // a rule was broken.
  Status change_slab(ipc::Channel& channel, const ipc::VaultSlab& change);
  std::size_t slabs() const { return slabs_.size(); }
  // Closes all slabs' descriptors: the process that is to serve has none of them.
  void close_slabs();
  const std::string& file_mark() const { return file_mark_; }
  // Sends the held descriptors to a process, and returns the message to send after them. If the descriptors can't be
  // sent, the message says that there is nothing; the vault is then dropped, unless the process is gone.
  ipc::Vault give(ipc::Channel& channel);
  // Decides by a process's death whether it may have left wrong KV pages, or wrong weights as well.
  void ended(DeathCause cause);
  // Call this if a person asked for the next process: that process may open another model file.
  void next_is_asked_for();
  // Makes the vault unusable from now on.
  void drop(const std::string& reason);

  // Returns whether a successor may adopt the KV pages.
  bool may_adopt_kv() const { return held() && !kv_doubtful_; }
  std::uint64_t offers() const { return offers_; }
  std::uint64_t imports() const { return imports_; }
  std::uint64_t drops() const { return drops_; }
  std::uint64_t pages_adopted() const { return pages_adopted_; }
  const std::string& last_drop() const { return last_drop_; }
  // Call this when a process reports that it serves with the vault; it has dropped doubtful pages.
  void imported(const ipc::VaultReport& report);

 private:
  void close();

  std::shared_ptr<ipc::PeerCloser> closer_;
  std::vector<UniqueFd> descriptors_;
  struct Slab {
    UniqueFd memory;
    std::uint64_t offset = 0;
  };
  std::map<std::uint32_t, Slab> slabs_;
  ipc::Vault contents_;
  std::string file_mark_;
  bool kv_doubtful_ = false;
  bool replaced_ = false;
  std::uint64_t offers_ = 0, imports_ = 0, drops_ = 0, pages_adopted_ = 0;
  std::string last_drop_;
};

}  // namespace bulkhead::orchestrator
