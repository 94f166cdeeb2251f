// What the worker does so that the daemon need not trust it later: it confines itself, and it lets the daemon find
// out which files of the cache folder were written before the first request.
#pragma once

#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"
#include "config/settings.hpp"
#include "worker/sandbox/sandbox.hpp"

namespace bulkhead::worker {

struct ConfinedNeeds {
  std::string model;          // a file, or "builtin"
  std::string chat_template;  // a path, a name in the model file, or empty
  std::string draft;          // a file, "builtin", "mtp", or empty
  std::string cache;          // the folder that the worker may write to; empty: none
  int region = -1;            // descriptor of the channel's shared memory
  // The daemon's report on the worker's namespace of process ids: "own", "own, and a user namespace", or the reason
  // why the worker has none. Empty: the daemon did not try to make one.
  std::string pid_namespace;
  AskedUser user;
};

struct Confined {
  std::vector<Protection> protections;
  // The cache folder as the process can name it from now on. If a user of its own may not search the folders that lead
  // there, this is the path of a descriptor of it, which is open as long as this object is there.
  std::string cache;
  UniqueFd cache_folder;
};

// Confines the process, which must have one thread and must not have touched a model or a driver yet.
Result<Confined> confine(const ConfinedNeeds& needs, const config::IsolationSettings& isolation);

// Returns the user that the daemon's argument --user names: an id, or the reason why the worker has none. Empty: the
// daemon did not ask for one.
AskedUser asked_user(const std::string& told);

// Waits for the next tick of the clock from which files get their times; a tick takes some milliseconds. Waits at
// most 100 ms. After the call, the daemon can distinguish files that were written before it from later ones
// (orchestrator/supervisor/cache_seal.hpp).
void let_clock_of_files_pass();

}  // namespace bulkhead::worker
