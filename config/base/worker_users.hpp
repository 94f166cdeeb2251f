// User ids and group ids for workers. Each worker has one number, which is its user id and its group id. No other user
// of the machine has that number, and /etc/passwd has no entry for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace bulkhead {

struct IdRange {
  std::uint32_t first = 0, count = 0;
};

// Returns the ids for workers, if this process's user namespace has them; uid_map and gid_map have the format of
// /proc/self/uid_map (user_namespaces(7)). Both ranges that it chooses from are free in systemd's table
// (https://systemd.io/UIDS-GIDS/), and no tool that makes accounts takes ids from them:
//
//     1879048192 to 2013265919   wherever the namespace has them
//     60706 to 61183             otherwise: a container's namespace may have 65536 ids only
std::optional<IdRange> worker_ids(const std::string& uid_map, const std::string& gid_map);

// Says why this process can't start workers as users of their own, in words that follow "no: "; empty: it can. It
// needs the privileges to change ids, and those to end a process of another user and to keep its files in order. Reads
// only kernel memory.
std::string worker_users_gap();

// Returns the user id for the workers of this name. The caller passes a name that is unique on the machine: the path of
// the workers' cache folder. Two names get different ids, as long as the range has enough of them. A name keeps
// its id when this process restarts, unless the hashes of two names are equal. Returns nothing if worker_users_gap()
// names a reason. Any thread may call this function.
std::optional<std::uint32_t> worker_user(const std::string& name);

}  // namespace bulkhead
