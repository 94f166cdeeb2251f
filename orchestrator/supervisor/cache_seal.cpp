#include "orchestrator/supervisor/cache_seal.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <sstream>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {
namespace {

constexpr int kDeepestFolder = 8;
constexpr std::uint64_t kMostFiles = 100'000;
constexpr std::uint64_t kMostSealBytes = std::uint64_t{64} << 20;
constexpr std::size_t kKeyBytes = 32;
constexpr int kOpen = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;  // waits for no pipe's writer

// Computes HMAC-SHA-256 of messages, one after the other, under one key.
class Mac {
 public:
  explicit Mac(std::span<const char> key)
      : key_(key), context_(EVP_MAC_CTX_new(algorithm()), EVP_MAC_CTX_free), piece_(kPiece) {}

  // Returns the HMAC of a folder's name, a file's name in it and the file's first `bytes` bytes, in hexadecimal digits.
  // Empty: the file has fewer bytes or can't be read, or OpenSSL has no memory.
  std::string of(const std::string& folder, const std::string& file, int fd, std::uint64_t bytes) {
    char digest[] = "SHA256";
    const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string("digest", digest, 0),
                                     OSSL_PARAM_construct_end()};
    good_ = context_ != nullptr &&
            EVP_MAC_init(context_.get(), bytes_of(key_), key_.size(), parameters) == 1;
    // A mark ends each part, so that no two different files make the same message.
    for (const std::string* part : {&folder, &file})
      update(std::span(part->c_str(), part->size() + 1));
    while (bytes > 0) {
      const ssize_t got = ::read(fd, piece_.data(), std::min<std::uint64_t>(kPiece, bytes));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return {};
      bytes -= static_cast<std::uint64_t>(got);
      update(std::span(piece_).first(static_cast<std::size_t>(got)));
    }
    return finish();
  }

 private:
  static constexpr std::size_t kPiece = std::size_t{256} << 10;

  void update(std::span<const char> piece) {
    good_ = good_ && EVP_MAC_update(context_.get(), bytes_of(piece), piece.size()) == 1;
  }

  std::string finish() {
    unsigned char digest[32];
    std::size_t size = 0;
    if (!good_ || EVP_MAC_final(context_.get(), digest, &size, sizeof digest) != 1) return {};
    std::string text;
    for (const unsigned char byte : std::span(digest, size))
      text += fmt::format("{:02x}", byte);
    return text;
  }

  static const unsigned char* bytes_of(std::span<const char> text) {
    return reinterpret_cast<const unsigned char*>(text.data());
  }

  // Looking the algorithm up by name takes longer than reading a small file, so this happens once.
  static EVP_MAC* algorithm() {
    static EVP_MAC* const found = [] {
      // OpenSSL reads no configuration of the machine, which may name modules to load and serves programs that speak
      // TLS. It frees nothing at the daemon's end, because a thread may still be at work then.
      OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr);
      return EVP_MAC_fetch(nullptr, "HMAC", nullptr);
    }();
    return found;
  }

  std::span<const char> key_;
  std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)> context_;
  std::vector<char> piece_;
  bool good_ = false;
};

// Whether a call failed because the daemon or the machine lacks descriptors or memory.
bool is_want(int error_number) {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOMEM;
}

// Reads a whole file that belongs to this user and that nobody else may read or write. Empty if there is
// no such file. kResourceExhausted: whether there is one is not known.
Result<std::string> read_own(const std::string& path, std::uint64_t most) {
  const UniqueFd fd(::open(path.c_str(), kOpen));
  if (!fd.valid() && is_want(errno)) return errno_error(ErrorCode::kResourceExhausted, path, errno);
  struct stat status {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid() || (status.st_mode & 077) != 0 ||
      static_cast<std::uint64_t>(status.st_size) > most)
    return std::string();
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + have, text.size() - have);
    if (got <= 0) return std::string();
    have += static_cast<std::size_t>(got);
  }
  return text;
}

// Replaces the file in one step, so that no reader sees half of it.
Status write_own(const std::string& path, std::span<const char> text) {
  // Two daemons of one user may make the key at the same time.
  const std::string beside = fmt::format("{}%new{}", path, ::getpid());
  ::unlink(beside.c_str());
  const UniqueFd fd(
      ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  bool written = fd.valid() && ::fchmod(fd.get(), 0600) == 0;
  for (std::size_t at = 0; written && at < text.size();) {
    const ssize_t put = ::write(fd.get(), text.data() + at, text.size() - at);
    written = put > 0;
    if (written) at += static_cast<std::size_t>(put);
  }
  if (written && ::rename(beside.c_str(), path.c_str()) == 0) return {};
  const int error_number = errno;
  ::unlink(beside.c_str());
  return errno_error(
      is_want(error_number) ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable, path,
      error_number);
}

// An entry of a folder that is no folder itself.
struct Entry {
  int folder;        // descriptor of the folder that contains it
  const char* name;  // within `folder`
  std::string path;  // within the root
  struct stat status;
};

// Walks through a folder and its subfolders. It follows no link and opens nothing but folders.
class Walk {
 public:
  // Returns null to go on, or says what is wrong with the entry, which ends the walk.
  using Visit = std::function<const char*(const Entry&)>;
  // The walk calls this for each folder, the root included, before it visits the folder's entries. It passes the
  // folder's descriptor.
  using Enter = std::function<void(int folder)>;
  explicit Walk(Visit visit, Enter enter = {})
      : visit_(std::move(visit)), enter_(std::move(enter)) {}

  // Walks through `root`. Returns why the walk ended early; empty if it did not.
  std::string run(const std::string& root) {
    const UniqueFd fd(::open(root.c_str(), kOpen | O_DIRECTORY));
    if (!fd.valid() ? failed("it", std::strerror(errno)) : into(fd.get(), "", 0)) return {};
    return doubt_;
  }

  // Says whether the walk ended early because the daemon or the machine lacked memory or
  // descriptors.
  bool ran_short() const { return ran_short_; }

 private:
  bool doubt(const std::string& path, const char* what) {
    doubt_ = path + ": " + what;
    return false;
  }

  // Takes note of a call that failed with errno. An entry that was removed meanwhile is no failure.
  bool failed(const std::string& path, const char* what) {
    if (errno == ENOENT) return true;
    ran_short_ = is_want(errno);
    return doubt(path, what);
  }

  bool into(int folder, const std::string& path, int depth) {
    if (depth > kDeepestFolder) return doubt(path, "too deep");
    if (enter_) enter_(folder);
    // This descriptor has a position of its own, and closedir() closes it.
    const int again = ::openat(folder, ".", kOpen | O_DIRECTORY);
    DIR* const entries = again < 0 ? nullptr : ::fdopendir(again);
    if (entries == nullptr) {
      if (again >= 0) ::close(again);
      return failed(path, "can't be listed");
    }
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(entries)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
      if (++seen_ > kMostFiles) break;
    }
    ::closedir(entries);
    if (seen_ > kMostFiles) return doubt(path, "too many files");
    return std::ranges::all_of(names, [&](const std::string& name) {
      return one(folder, name, path.empty() ? name : path + "/" + name, depth);
    });
  }

  bool one(int folder, const std::string& name, const std::string& path, int depth) {
    Entry entry{folder, name.c_str(), path, {}};
    if (::fstatat(folder, name.c_str(), &entry.status, AT_SYMLINK_NOFOLLOW) != 0)
      return failed(path, std::strerror(errno));
    if (!S_ISDIR(entry.status.st_mode)) {
      const char* const wrong = visit_(entry);
      return wrong == nullptr || doubt(path, wrong);
    }
    const UniqueFd inner(::openat(folder, name.c_str(), kOpen | O_DIRECTORY));
    return inner.valid() ? into(inner.get(), path, depth + 1) : failed(path, "can't be opened");
  }

  Visit visit_;
  Enter enter_;
  std::string doubt_;
  std::uint64_t seen_ = 0;
  bool ran_short_ = false;
};

// Makes a file or folder belong to a user and its group; empty: this process's. If it fails, the worker can't use the
// file, and compiles. A file with a second name may be somebody else's.
void give_to(std::optional<std::uint32_t> owner, int fd) {
  struct stat status {};
  const uid_t user = owner.value_or(::geteuid());
  if (::fstat(fd, &status) != 0 || status.st_uid == user) return;
  if (S_ISREG(status.st_mode) && status.st_nlink != 1) return;
  (void)!::fchown(fd, user, owner.value_or(::getegid()));
}

constexpr const char* kOdd = "neither a file nor a folder";
constexpr const char* kNoDescriptor = "there is no descriptor or memory to open it";

std::uint64_t size_of(const struct stat& status) {
  return static_cast<std::uint64_t>(status.st_size);
}

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

bool earlier(const timespec& a, const timespec& b) {
  return nanoseconds(a) < nanoseconds(b);
}

}  // namespace

CacheSeal::CacheSeal(std::string home, std::string name)
    : home_(std::move(home)), name_(std::move(name)) {}

Result<CacheSeal::Key> CacheSeal::key() const {
  static std::mutex one_makes_it;  // several workers' threads may need the key at the same time
  const std::lock_guard lock(one_makes_it);
  const std::string path = home_ + "/%key";
  BULKHEAD_TRY(const std::string kept, read_own(path, kKeyBytes));
  if (kept.size() == kKeyBytes) return Key(kept.begin(), kept.end());
  // There is no key, or somebody else may know it and could have made any seal. A new key makes old
  // seals void.
  Key made(kKeyBytes);
  if (::getrandom(made.data(), made.size(), 0) != static_cast<ssize_t>(made.size())) return Key();
  const Status written = write_own(path, made);
  if (written.ok()) return made;
  if (written.error().code() == ErrorCode::kResourceExhausted) return written.error();
  return Key();
}

Result<std::map<std::string, CacheSeal::Vouched>> CacheSeal::read() const {
  std::map<std::string, Vouched> all;
  BULKHEAD_TRY(const std::string text, read_own(folder() + "%seal", kMostSealBytes));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Vouched vouched;
    std::string name;
    if (words >> vouched.mac >> vouched.bytes >> vouched.changed && words.get() == ' ' &&
        std::getline(words, name))
      all[name] = vouched;
  }
  return all;
}

CacheSeal::Check CacheSeal::check(std::optional<std::uint32_t> owner) const {
  Check result;
  const Result<std::map<std::string, Vouched>> sealed = read();
  const Result<Key> key = this->key();
  if (!sealed.ok() || !key.ok()) {
    result.ran_short = true;
    return result;
  }
  Mac mac(*key);
  bool& ran_short = result.ran_short;
  const auto vouched_for = [&](const Entry& entry) {
    const auto known = sealed->find(entry.path);
    if (known == sealed->end() || key->empty() || known->second.bytes != size_of(entry.status))
      return false;
    const UniqueFd fd(::openat(entry.folder, entry.name, kOpen));
    ran_short = !fd.valid() && is_want(errno);
    const bool good =
        fd.valid() && mac.of(name_, entry.path, fd.get(), known->second.bytes) == known->second.mac;
    if (good) give_to(owner, fd.get());
    return good;
  };
  const auto visit = [&](const Entry& entry) -> const char* {
    if (!S_ISREG(entry.status.st_mode)) return kOdd;
    const bool good = vouched_for(entry);
    if (ran_short) return kNoDescriptor;
    ++(good ? result.kept : result.deleted);
    if (good || ::unlinkat(entry.folder, entry.name, 0) == 0 || errno == ENOENT) return nullptr;
    return "can't be deleted";
  };
  Walk walk(visit, [owner](int folder) { give_to(owner, folder); });
  std::string doubt = walk.run(folder());
  ran_short |= walk.ran_short();
  if (!ran_short) result.doubt = std::move(doubt);
  return result;
}

Result<std::uint64_t> CacheSeal::make(timespec before) const {
  BULKHEAD_TRY(const Key key, this->key());
  if (key.empty()) return Error(ErrorCode::kUnavailable, "there is no key in " + home_);
  using ByName = std::map<std::string, Vouched>;
  BULKHEAD_TRY(const ByName sealed, read());
  Mac mac(key);
  std::string text;
  std::uint64_t count = 0, left = kMostSealedBytes;
  bool ran_short = false;
  const auto put = [&](const std::string& file, const Vouched& vouched) {
    text += fmt::format("{} {} {} {}\n", vouched.mac, vouched.bytes, vouched.changed, file);
    ++count;
  };
  const auto seal = [&](const Entry& entry) {
    const std::uint64_t bytes = size_of(entry.status);
    if (bytes > left || entry.path.find('\n') != std::string::npos) return;
    left -= bytes;
    const auto known = sealed.find(entry.path);
    if (known != sealed.end() && known->second.bytes == bytes &&
        known->second.changed == nanoseconds(entry.status.st_ctim))
      return put(entry.path, known->second);
    const UniqueFd fd(::openat(entry.folder, entry.name, kOpen));
    ran_short = !fd.valid() && is_want(errno);
    if (!fd.valid()) return;
    const std::string made = mac.of(name_, entry.path, fd.get(), bytes);
    // The time is read after the bytes, so a change during the reading shows as a later time.
    struct stat now {};
    if (made.empty() || ::fstat(fd.get(), &now) != 0 || !earlier(now.st_ctim, before)) return;
    put(entry.path, {made, bytes, nanoseconds(now.st_ctim)});
  };
  Walk walk([&](const Entry& entry) -> const char* {
    if (!S_ISREG(entry.status.st_mode)) return kOdd;
    seal(entry);
    return ran_short ? kNoDescriptor : nullptr;
  });
  const std::string doubt = walk.run(folder());
  if (ran_short || walk.ran_short()) return Error(ErrorCode::kResourceExhausted, doubt);
  if (!doubt.empty()) return Error(ErrorCode::kUnavailable, doubt);
  BULKHEAD_RETURN_IF_ERROR(write_own(folder() + "%seal", text));
  return count;
}

CacheSeal::Size CacheSeal::size() const {
  constexpr std::uint64_t kOfBlock =
      512;  // bytes of a unit of st_blocks on every file system (stat(2))
  Size size;
  Walk walk([&](const Entry& entry) -> const char* {
    size.bytes += static_cast<std::uint64_t>(entry.status.st_blocks) * kOfBlock;
    return nullptr;
  });
  const std::string doubt = walk.run(folder());
  if (!walk.ran_short()) size.doubt = doubt;
  return size;
}

}  // namespace bulkhead::orchestrator
