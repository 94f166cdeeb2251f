// A seal vouches for the files in a worker's cache folder. For each file it has an HMAC (RFC 2104, with SHA-256, by
// OpenSSL) over the file's name and content, under a key that this user's daemons keep and no worker can read. A driver
// runs the code that it finds in the folder. So before a process gets the folder, the daemon deletes every file that
// the seal does not vouch for.
//
// The daemon makes the seal when a process has loaded the model and compiled its kernels, before it sends the process
// a request. The seal leaves out files that change at that moment or later. It decides that by a file's time of
// change (ctime), which the kernel sets and a worker can't. A worker waits for the next tick of that clock before it
// reports that it is ready, so that the files it has written by then do not look newer.
//
// These files lie beside the worker's folder, where no worker can write and no sandboxed worker can read:
//
//     %key       32 random bytes, mode 0600; made when it is not there
//     NAME%seal  a line for each file: the HMAC in hexadecimal digits, the size in bytes, the time of its last change
//                in nanoseconds since 1970, the name within the folder
//
// All functions wait for the disk, so only threads other than the event loop's call them.
#pragma once

#include <time.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead::orchestrator {

class CacheSeal {
 public:
  // The seal of the folder `name` in `home`.
  CacheSeal(std::string home, std::string name);

  struct Check {
    std::uint64_t kept = 0, deleted = 0;  // numbers of files
    // Why the daemon must move the whole folder away: the check could not be completed. Empty: the seal vouches for
    // every file that is left.
    std::string doubt;
    // The daemon or the machine lacked descriptors or memory, which says nothing about the files. The check ended
    // early; it deleted no file that it could not read, and files that it did not reach are neither kept nor deleted.
    bool ran_short = false;
  };
  // Deletes each file for which the seal does not vouch. What is left belongs to the user and group `owner` afterwards;
  // empty: to this process's.
  Check check(std::optional<std::uint32_t> owner = {}) const;
  // Makes a new seal of the files that have not changed since `before` (CLOCK_REALTIME), of at most kMostSealedBytes
  // together. If a file's size and time are those in the old seal, it takes over the old HMAC and does not read the
  // file; if that file has changed nevertheless, its HMAC is wrong and the next check deletes it. Returns the number
  // of files for which the seal vouches. If it fails, the old seal stays; kResourceExhausted: it lacked descriptors
  // or memory.
  Result<std::uint64_t> make(timespec before) const;

  struct Size {
    std::uint64_t bytes = 0;  // disk space of all files that have a name
    std::string doubt;        // why the folder could not be measured completely; empty: it was
  };
  Size size() const;

  static constexpr std::uint64_t kMostSealedBytes = std::uint64_t{4} << 30;

 private:
  struct Vouched {
    std::string mac;  // hexadecimal
    std::uint64_t bytes = 0;
    std::int64_t changed = 0;
  };
  using Key = std::vector<char>;
  std::string folder() const { return home_ + "/" + name_; }
  // Both fail only if descriptors or memory are lacking (kResourceExhausted).
  Result<Key> key() const;                              // empty: there is no key
  Result<std::map<std::string, Vouched>> read() const;  // by name; empty: there is no seal

  std::string home_, name_;
};

}  // namespace bulkhead::orchestrator
