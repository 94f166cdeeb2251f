// The one folder that the processes of a worker write to: compiled kernels, the tuner's results, the
// drivers' own caches (gpu/README.md). Each worker has its own, so that none reads what another has
// left there.
//
// A driver runs what it finds there on little more than a checksum. So what a process that broke a
// rule could have written is given to no successor: drop() takes the whole folder out of the way, and
// the next process makes a new one and compiles its kernels again. Processes that still have the old
// folder can't write to the new one: their sandbox knows a folder by what it is, not by its name.
//
// The daemon opens no file in it. A worker may have put there what it likes, however many and however
// deep, so that deleting is a thread's business; what a daemon that ended had not deleted, the next
// one deletes.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace bulkhead::orchestrator {

class CacheFolder {
 public:
  // Of the worker of that name, in `home`; where that is empty there is none, and each start compiles.
  CacheFolder(std::string home, std::string name);

  // What a worker's command line says of it.
  std::vector<std::string> arguments() const;
  // To be called when the process that can't be trusted is gone. Where the folder can't be taken away,
  // later processes are given none.
  void drop();

  const std::string& path() const { return path_; }  // empty: there is none, or none any more

  // Deletes all that is in a folder, and the folder. Follows no link, and needs two descriptors for
  // any depth. False: something is left. Blocks for as long as it takes.
  static bool remove_all(const std::string& folder);

 private:
  class Sweeper;  // what is to be deleted, and the thread that does it while there is something

  std::string home_, name_, path_;
  std::shared_ptr<Sweeper> sweeper_;
};

}  // namespace bulkhead::orchestrator
