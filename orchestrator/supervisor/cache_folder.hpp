// The one folder to which a worker's processes write: compiled kernels, the tuner's results, the drivers' own caches
// (gpu/README.md). Each worker has its own folder, so that none reads what another one left.
//
// A driver runs code that it finds there and checks little more than a checksum. So no successor gets what a process
// that broke a rule could have written: drop() moves the whole folder away, and the next process makes a new one and
// compiles its kernels again. Processes that still have the old folder can't write to the new one, because their
// sandbox identifies the folder itself, not its name.
//
// A successor does not get what a process wrote after its first request, either. A seal vouches for the files that
// were there before (cache_seal.hpp), and the daemon deletes all others before a process starts.
//
// `home` belongs to this user only, and so does each folder in it, unless the worker has a user of its own, which its
// folder then belongs to: none of them is a link or belongs to another user, and nobody else may write to it, whatever
// the umask.
//
// A worker may have put any number of files there, at any depth, so threads read and delete them. If a daemon ends
// before its threads have deleted everything, the next daemon deletes the rest.
//
// The content of `home`, where no worker can write:
//
//     NAME             a worker's folder. A leading '.' becomes "%2E", and a name that is longer than 180 bytes ends
//                      in a hash. No worker's name contains '%', so no two workers get the same folder
//     NAME%1 ...       the same, for further daemons of this user that have a worker with that name
//     NAME%lock        the daemon that has NAME locks this file for as long as it runs
//     NAME%seal, %key  cache_seal.hpp
//     .dropped-NAME-N  moved away, and being deleted
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/base/unique_fd.hpp"
#include "orchestrator/supervisor/task_thread.hpp"

namespace bulkhead::orchestrator {

struct CacheLook;  // what a thread has found in a folder

class CacheFolder {
 public:
  // The folder of the worker with that name, in `home`. If `home` is empty there is no folder, and each start
  // compiles.
  CacheFolder(std::string home, std::string name);

  // The user to whom the folder and its files belong: the daemon's user, or the worker's own, if it has one. Later
  // checks accept files of both users and then give all files to this one. At first it is the daemon's user.
  enum class Owner : std::uint8_t { kDaemon, kWorker };
  void set_owner(Owner owner) { owner_ = owner; }
  // Returns the user that is the worker's own (config/base/worker_users.hpp): no other worker's processes are that
  // user, nor are those of a worker of the same name of another daemon. Empty: the daemon can't change users.
  std::optional<std::uint32_t> worker_user() const { return worker_user_; }

  // One check of the folder by a thread. A check says nothing about files that are written after it began. So each
  // process that is started needs its own check, which must begin when no process that has seen a request can write
  // any more.
  class Check {
   public:
    bool begun() const { return look_ != nullptr; }
    void forget() { look_.reset(); }

   private:
    friend CacheFolder;
    std::shared_ptr<CacheLook> look_;
  };
  // Begins the check, unless it has begun.
  void begin(Check& check);
  // Begins the check, unless it has begun. Returns true once the check has ended: the folder then holds only files
  // that its seal vouches for, and the check is forgotten. A folder that others can write to or that belongs to
  // another user is moved away; so is a link in its place. If the daemon lacks descriptors or memory for the check
  // for some seconds, the folder stays and is withheld: arguments() does not name it until a later check has
  // succeeded. After false, ask again after kAskAgain.
  bool passed(Check& check);
  static constexpr std::chrono::milliseconds kAskAgain{1};
  // Makes a thread seal the files that have been written so far. Call it when a process has compiled its kernels, if
  // no process that had the folder since the check has seen a request.
  void seal();
  // Returns, in words, what exceeded the limit when a thread last measured the folder, and begins the next
  // measurement. Empty: nothing did, or no measurement has ended yet.
  std::string excess(std::uint64_t most_bytes);

  // Returns the arguments of a worker's command line that name the folder; call it after passed().
  std::vector<std::string> arguments();
  // Moves the folder away. Call it when the process that can't be trusted is gone; `why` is for the log. If the
  // folder can't be moved away, later processes get none.
  void drop(const std::string& why);

  const std::string& path() const { return path_; }  // empty: there is none, or none any more

  // If a folder holds more entries than this, the rest is left for a later deletion, because a process that still has
  // the folder may go on filling it.
  static constexpr std::uint64_t kMostRemoved = std::uint64_t{1} << 22;
  // Deletes everything in a folder, and the folder. Follows no links, opens only folders, and needs two descriptors
  // for any depth. Returns false if something is left. Blocks for as long as it takes.
  static bool remove_all(const std::string& folder, std::uint64_t most = kMostRemoved);

 private:
  using Look = CacheLook;

  void find_place();
  bool claim(const std::string& folder_name);
  void take_away_doubtful(const std::string& doubt);
  template <typename Run>
  std::shared_ptr<Look> look(Run run) const;
  // Returns whether there was a folder and it is gone from its name.
  bool take_away();

  std::string home_, name_, path_;
  std::string folder_name_;
  std::optional<std::uint32_t> worker_user_;
  Owner owner_ = Owner::kDaemon;
  bool withheld_ = false;  // the last check could not be completed
  UniqueFd lock_;  // invalid if this file system has no locks, or nothing can be created in `home`
  // Null: no seal or measurement is under way, and the outcome of the last one has been read.
  std::shared_ptr<Look> sealing_, measuring_;
  // Each worker has its own thread, so one worker's large folder keeps no other worker waiting. The thread does its
  // tasks in order, so a check sees the seal that was requested before it.
  std::shared_ptr<TaskThread> reader_ = std::make_shared<TaskThread>();
};

}  // namespace bulkhead::orchestrator
