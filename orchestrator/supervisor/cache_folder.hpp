// The one folder that the processes of a worker write to: compiled kernels, the tuner's results, the
// drivers' own caches (gpu/README.md). Each worker has its own, so that none reads what another has
// left there.
//
// A driver runs what it finds there on little more than a checksum. So what a process that broke a
// rule could have written is given to no successor: drop() takes the whole folder out of the way, and
// the next process makes a new one and compiles its kernels again. Processes that still have the old
// folder can't write to the new one: their sandbox knows a folder by what it is, not by its name.
//
// `home` is this user's alone, and so is each folder in it: neither is a link, neither belongs to another
// user, and nobody else may write to it, whatever the umask.
//
// The daemon opens no file in it. A worker may have put there what it likes, however many and however
// deep, so that deleting is a thread's business; what a daemon that ended had not deleted, the next
// one deletes.
//
// What is in `home`, where no worker can write:
//
//     NAME             a worker's folder. A '.' in front becomes "%2E", a name that is longer than 180
//                      bytes ends in a hash; '%' is in no worker's name, so no two get the same
//     NAME%1 ...       the same, of further daemons of this user that have a worker of that name
//     NAME%lock        locked by the daemon that has NAME for as long as it runs
//     .dropped-NAME-N  taken out of the way, and being deleted
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {

class CacheFolder {
 public:
  // Of the worker of that name, in `home`; where that is empty there is none, and each start compiles.
  CacheFolder(std::string home, std::string name);

  // What a worker's command line says of it. A folder that others could write to, that belongs to
  // another user, or a link in its place is taken out of the way first.
  std::vector<std::string> arguments();
  // To be called when the process that can't be trusted is gone. Where the folder can't be taken away,
  // later processes are given none.
  void drop();

  const std::string& path() const { return path_; }  // empty: there is none, or none any more

  // More than this in one folder is left to the next one who deletes it: a process that still has the
  // folder may go on filling it.
  static constexpr std::uint64_t kMostRemoved = std::uint64_t{1} << 22;
  // Deletes all that is in a folder, and the folder. Follows no link, opens nothing but folders,
  // and needs two descriptors for any depth. False: something is left. Blocks for as long as it
  // takes.
  static bool remove_all(const std::string& folder, std::uint64_t most = kMostRemoved);

 private:
  class Sweeper;  // what is to be deleted, and the thread that does it while there is something

  bool claim(const std::string& folder_name);
  // Whether there was one, and it is gone from its name.
  bool take_away();

  std::string home_, name_, path_;
  std::string folder_name_;
  UniqueFd lock_;  // invalid where this file system has no locks, or nothing can be made in `home`
  std::shared_ptr<Sweeper> sweeper_;
};

}  // namespace bulkhead::orchestrator
