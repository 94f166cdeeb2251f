// The daemon's side of the vault: it holds the descriptors of what outlives a worker's process (memory
// on the device, the model's files, and a directory that says what lies where) and hands them to the
// successor. The daemon never opens, maps or reads them. Of the worker's offer it uses only two bounded
// counts. A worker that offers rubbish harms only its own successor, which checks what it gets and is
// confined in the same way.
#pragma once

#include <cstdint>
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

  // Closes what any of the worker's processes sent, descriptors of a vault or not.
  const std::shared_ptr<ipc::PeerCloser>& closer() const { return closer_; }

  bool held() const { return !descriptors_.empty(); }
  std::uint64_t epoch() const { return contents_.epoch; }  // 0: nothing is held

  // Takes the descriptors that came before the offer; what was held until now is dropped. An error
  // breaks a rule. `file_mark`: of the model file that its weights are of.
  Status take(ipc::Channel& channel, const ipc::VaultOffer& offer, std::string file_mark);
  const std::string& file_mark() const { return file_mark_; }
  // Sends a process the descriptors that are held, and returns the message to send after them. If the
  // descriptors can't be sent, the message says that there is nothing; unless the process is gone, the
  // vault is then dropped.
  ipc::Vault give(ipc::Channel& channel);
  // Judges by a process's death whether it may have left wrong KV pages, or wrong weights as well.
  void ended(DeathCause cause);
  // It ended as it was asked to; a successor may look for another model file.
  void ended_as_asked();
  // Not to be used again.
  void drop(const std::string& reason);

  // A successor may adopt its KV pages.
  bool may_adopt_kv() const { return held() && !kv_doubtful_; }
  std::uint64_t offers() const { return offers_; }
  std::uint64_t imports() const { return imports_; }
  std::uint64_t drops() const { return drops_; }
  std::uint64_t pages_adopted() const { return pages_adopted_; }
  const std::string& last_drop() const { return last_drop_; }
  // A process says that it serves with what it was given; it has dropped doubtful pages.
  void imported(const ipc::VaultReport& report);

 private:
  void close();

  std::shared_ptr<ipc::PeerCloser> closer_;
  std::vector<UniqueFd> descriptors_;
  ipc::Vault contents_;
  std::string file_mark_;
  bool kv_doubtful_ = false;
  bool replaced_ = false;
  std::uint64_t offers_ = 0, imports_ = 0, drops_ = 0, pages_adopted_ = 0;
  std::string last_drop_;
};

}  // namespace bulkhead::orchestrator
