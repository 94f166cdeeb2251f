// The one folder that the processes of a worker write to: compiled kernels, the tuner's results, the
// drivers' own caches (gpu/README.md). Each worker has its own, so that none reads what another has
// left there.
//
// A driver runs what it finds there on little more than a checksum. So what a process that broke a
// rule could have written is given to no successor: drop() takes the whole folder out of the way, and
// the next process makes a new one and compiles its kernels again. Processes that still have the old
// folder can't write to the new one: their sandbox knows a folder by what it is, not by its name.
//
// Nor does a successor get what a process wrote after its first request. A seal vouches for the files that lay there
// before (cache_seal.hpp), and the daemon deletes all others before a process starts.
//
// `home` is this user's alone, and so is each folder in it: neither is a link, neither belongs to another
// user, and nobody else may write to it, whatever the umask.
//
// A worker may have put any number of files there, at any depth, so threads read and delete them. If a
// daemon ends before its threads have deleted everything, the next daemon deletes the rest.
//
// What is in `home`, where no worker can write:
//
//     NAME             a worker's folder. A '.' in front becomes "%2E", a name that is longer than 180
//                      bytes ends in a hash; '%' is in no worker's name, so no two get the same
//     NAME%1 ...       the same, of further daemons of this user that have a worker of that name
//     NAME%lock        locked by the daemon that has NAME for as long as it runs
//     NAME%seal, %key  cache_seal.hpp
//     .dropped-NAME-N  taken out of the way, and being deleted
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/base/unique_fd.hpp"
#include "orchestrator/supervisor/task_thread.hpp"

namespace bulkhead::orchestrator {

struct CacheLook;  // what a thread has found in a folder

class CacheFolder {
 public:
  // Of the worker of that name, in `home`; where that is empty there is none, and each start compiles.
  CacheFolder(std::string home, std::string name);

  // One check of the folder by a thread. A check says nothing about files that are written after it began. So each
  // process that is started needs a check of its own, which begins when no process that has seen a request can write
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
  // that its seal vouches for, and the check is forgotten. A folder that others could write to or that belongs to
  // another user, and a link in its place, is moved away. If the daemon has no descriptors or memory to check it for
  // some seconds, the folder stays as it is and is withheld: arguments() names none until a later check has gone
  // through. After false, ask again after kAskAgain.
  bool passed(Check& check);
  static constexpr std::chrono::milliseconds kAskAgain{1};
  // Has a thread seal the files that have been written so far. Call it when a process has compiled its kernels, if no
  // process that had the folder since the check has seen a request.
  void seal();
  // Returns in words what was too much in the folder when a thread last measured it, and begins the next
  // measurement. Empty: nothing was too much, or no measurement has ended yet.
  std::string excess(std::uint64_t most_bytes);

  // Returns the arguments of a worker's command line that name the folder; call it after passed().
  std::vector<std::string> arguments();
  // Takes the folder away. Call it when the process that can't be trusted is gone; `why` is for the
  // log. If the folder can't be taken away, later processes get none.
  void drop(const std::string& why);

  const std::string& path() const { return path_; }  // empty: there is none, or none any more

  // More than this in one folder is left to the next one who deletes it: a process that still has the
  // folder may go on filling it.
  static constexpr std::uint64_t kMostRemoved = std::uint64_t{1} << 22;
  // Deletes all that is in a folder, and the folder. Follows no link, opens nothing but folders,
  // and needs two descriptors for any depth. False: something is left. Blocks for as long as it
  // takes.
  static bool remove_all(const std::string& folder, std::uint64_t most = kMostRemoved);

 private:
  using Look = CacheLook;

  bool claim(const std::string& folder_name);
  void take_away_doubtful(const std::string& doubt);
  template <typename Run>
  std::shared_ptr<Look> look(Run run) const;
  // Whether there was one, and it is gone from its name.
  bool take_away();

  std::string home_, name_, path_;
  std::string folder_name_;
  bool withheld_ = false;  // the last check did not go through the folder
  UniqueFd lock_;  // invalid where this file system has no locks, or nothing can be made in `home`
  // Null: no seal or measurement is under way, and the outcome of the last one has been read.
  std::shared_ptr<Look> sealing_, measuring_;
  // Each worker has a thread of its own, so a large folder of one worker keeps no other worker waiting. The thread
  // does its tasks in order, so a check sees the seal that was asked for before it.
  std::shared_ptr<TaskThread> reader_ = std::make_shared<TaskThread>();
};

}  // namespace bulkhead::orchestrator
