// Users and groups for workers: each worker has a number of its own, which is both its user id and its group id, and
// which nobody else on the machine has. No file of /etc names these users.
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

// Returns the user's id for workers that have this name, which is unique on the machine (the path of a cache folder).
// The same name gets the same id after a restart of this process, but for a rare clash of two names: no two names
// that this process asks for get the same id as long as there are enough. Empty if worker_users_gap() is not. Any
// thread.
std::optional<std::uint32_t> worker_user(const std::string& name);

}  // namespace bulkhead
