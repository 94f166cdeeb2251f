#include "orchestrator/journal/disk_journal.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/quiet_thread.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::orchestrator {

namespace {

constexpr mode_t kOwnerOnly = 0600;
constexpr int kLockTries = 8;

Error system_error(const std::string& path, const char* step) {
  return errno_error(ErrorCode::kUnavailable,
                     fmt::format("isolation.journal_path: {}: {}", path, step), errno);
}

Status write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return system_error(path, "write");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Result<std::string> read_all(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return system_error(path, "stat");
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t read =
        ::pread(fd, bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return system_error(path, "read");
    if (read == 0) break;
    got += static_cast<std::size_t>(read);
  }
  bytes.resize(got);
  return bytes;
}

// The journal's file, locked. A daemon that is just rewriting it may take the name away between
// open and lock; then the name has another file now.
Result<UniqueFd> open_locked(const std::string& path) {
  for (int i = 0; i < kLockTries; ++i) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kOwnerOnly));
    if (!fd.valid()) return system_error(path, "open");
    struct stat ours {
    }, named{};
    if (::fstat(fd.get(), &ours) != 0) return system_error(path, "stat");
    if (!S_ISREG(ours.st_mode)) {
      return Error(ErrorCode::kUnsupported,
                   fmt::format("isolation.journal_path: {} is no regular file", path));
    }
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return system_error(path, "lock");
      return Error(ErrorCode::kUnavailable,
                   fmt::format("isolation.journal_path: {} is in use by another daemon; each needs "
                               "a file of its own",
                               path));
    }
    if (::stat(path.c_str(), &named) != 0 || named.st_ino != ours.st_ino) continue;
    if (::fchmod(fd.get(), kOwnerOnly) != 0) return system_error(path, "chmod");
    return fd;
  }
  return Error(ErrorCode::kUnavailable,
               fmt::format("isolation.journal_path: {} keeps changing its name", path));
}

// A whole new file under the journal's name, locked from before it has it.
Result<UniqueFd> rewrite(const std::string& path, std::string_view content) {
  const std::string beside = path + ".new";
  ::unlink(beside.c_str());  // of a daemon that died here
  UniqueFd fd(::open(beside.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly));
  if (!fd.valid()) return system_error(beside, "open");
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return system_error(beside, "lock");
  BULKHEAD_RETURN_IF_ERROR(write_all(fd.get(), content, beside));
  if (::fdatasync(fd.get()) != 0) return system_error(beside, "fdatasync");
  if (::rename(beside.c_str(), path.c_str()) != 0) return system_error(beside, "rename");
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? std::string(".") : parent.string();
  UniqueFd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid() || ::fsync(directory.get()) != 0) return system_error(folder, "fsync");
  return fd;
}

}  // namespace

struct DiskJournal::Impl : std::enable_shared_from_this<Impl> {
  Impl(EventLoop& the_loop, Options the_options)
      : loop(the_loop), options(std::move(the_options)) {}

  // ---- the event loop's side ----

  void gather(const JournalRecord& record, std::function<void()> durable) {
    if (broken) {
      if (durable) loop.post(std::move(durable));
      return;
    }
    append_record(pending, record);
    ++figures.records;
    if (durable) pending_durable.push_back(std::move(durable));
    commit_after_this();
  }

  void commit_after_this() {
    if (std::exchange(commit_due, true)) return;
    loop.after_this([weak = weak_from_this()] {
      auto self = weak.lock();
      if (self == nullptr) return;
      self->commit_due = false;
      self->commit();
    });
  }

  // Gives what has been gathered to the thread, unless it is busy: then it comes when that is done.
  void commit() {
    if (writing || broken || pending.empty()) return;
    Job job;
    if (figures.file_bytes + pending.size() > compact_at) {
      // What is wanted holds what is pending, too; without what has been dropped.
      job.anew = true;
      job.bytes = wanted();
    } else {
      job.bytes = std::move(pending);
    }
    pending.clear();
    writing_durable = std::exchange(pending_durable, {});
    writing = true;
    {
      std::lock_guard lock(mutex);
      next = std::move(job);
    }
    wake.notify_one();
  }

  std::string wanted() const {
    std::string out = journal_header();
    for (const auto& [key, records] : live)
      out += records;
    return out;
  }

  struct Done {
    Status status;
    bool anew = false;
    std::size_t bytes = 0;
    std::chrono::microseconds took{};
  };
  void done(const Done& result) {
    writing = false;
    if (!result.status.ok()) {
      broken = true;
      spdlog::error(
          "the journal is not written any more: {}; streams can't be resumed when the "
          "daemon ends. Make room, and restart it when it is idle",
          result.status.error().message());
      pending.clear();
    } else {
      ++figures.commits;
      figures.commit_microseconds += static_cast<std::uint64_t>(result.took.count());
      figures.file_bytes = result.anew ? result.bytes : figures.file_bytes + result.bytes;
      if (result.anew) {
        ++figures.compactions;
        compact_at = std::max(options.compact_at_bytes, 2 * result.bytes);
      }
    }
    auto due = std::exchange(writing_durable, {});
    if (broken) std::ranges::move(std::exchange(pending_durable, {}), std::back_inserter(due));
    for (auto& durable : due)
      durable();
    commit();
  }

  // ---- the thread's side ----

  struct Job {
    std::string bytes;
    bool anew = false;
  };

  void write_jobs() {
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [this] { return next.has_value() || ending; });
      if (!next.has_value()) return;
      Job job = *std::exchange(next, std::nullopt);
      lock.unlock();
      const auto began = std::chrono::steady_clock::now();
      Done result{write(job), job.anew, job.bytes.size(),
                  std::chrono::duration_cast<std::chrono::microseconds>(
                      std::chrono::steady_clock::now() - began)};
      loop.post([weak = weak_from_this(), result = std::move(result)] {
        if (auto self = weak.lock()) self->done(result);
      });
      lock.lock();
    }
  }

  Status write(const Job& job) {
    if (job.anew) {
      BULKHEAD_TRY(file, rewrite(options.path, job.bytes));
      return {};
    }
    BULKHEAD_RETURN_IF_ERROR(write_all(file.get(), job.bytes, options.path));
    if (::fdatasync(file.get()) != 0) return system_error(options.path, "fdatasync");
    return {};
  }

  EventLoop& loop;
  Options options;
  std::map<std::uint64_t, std::string> live;  // the records of each request, encoded
  std::uint64_t next_key = 1;
  std::size_t compact_at = 0;
  std::string pending;  // records that no job has
  std::vector<std::function<void()>> pending_durable, writing_durable;
  bool commit_due = false;
  bool writing = false;
  bool broken = false;
  Figures figures;

  UniqueFd file;  // the thread's, while it runs
  std::mutex mutex;
  std::condition_variable wake;
  std::optional<Job> next;  // under the mutex, as is `ending`
  bool ending = false;
  std::thread thread;
};

Result<DiskJournal::Opened> DiskJournal::open(EventLoop& loop, Options options) {
  auto impl = std::make_shared<Impl>(loop, std::move(options));
  const std::string& path = impl->options.path;
  Opened opened;
  {
    BULKHEAD_TRY(UniqueFd old, open_locked(path));
    BULKHEAD_TRY(std::string bytes, read_all(old.get(), path));
    DiskRequests requests;
    auto end = read_journal(bytes, [&](const JournalRecord& record) { requests.add(record); });
    if (!end.ok()) return end.error().within("isolation.journal_path: " + path);
    if (!end->damage.empty()) {
      spdlog::warn("journal {}: cut at byte {} of {}: {}", path, end->good_bytes, bytes.size(),
                   end->damage);
    }
    impl->figures.torn_bytes = bytes.size() - end->good_bytes;
    for (const std::string& problem : requests.problems)
      spdlog::warn("journal {}: {}; it is given up", path, problem);
    impl->next_key = requests.last_key + 1;
    opened.requests = requests.take();
    impl->figures.recovered_requests = static_cast<std::uint64_t>(
        std::ranges::count_if(opened.requests, [](const DiskRequest& r) { return !r.over(); }));
    for (DiskRequest& request : opened.requests)
      impl->live[request.key] = std::move(request.records);
    const std::string wanted = impl->wanted();
    BULKHEAD_TRY(impl->file, rewrite(path, wanted));
    impl->figures.file_bytes = wanted.size();
    impl->compact_at = std::max(impl->options.compact_at_bytes, 2 * wanted.size());
  }
  impl->thread = quiet_thread([raw = impl.get()] { raw->write_jobs(); });
  opened.journal.reset(new DiskJournal(std::move(impl)));
  return opened;
}

DiskJournal::DiskJournal(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

DiskJournal::~DiskJournal() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->wake.notify_one();
  impl_->thread.join();
  if (!impl_->broken && !impl_->pending.empty()) {
    Status written = impl_->write({std::move(impl_->pending), false});
    if (!written.ok()) spdlog::error("the journal's end: {}", written.error().message());
  }
}

std::uint64_t DiskJournal::new_key() {
  return impl_->next_key++;
}

void DiskJournal::append(std::uint64_t key, RecordType type, std::string_view payload,
                         std::function<void()> durable) {
  const JournalRecord record{type, static_cast<std::uint32_t>(std::time(nullptr)), key, payload};
  append_record(impl_->live[key], record);
  impl_->gather(record, std::move(durable));
}

void DiskJournal::drop(std::uint64_t key) {
  if (impl_->live.erase(key) == 0) return;
  impl_->gather({RecordType::kDropped, static_cast<std::uint32_t>(std::time(nullptr)), key, {}},
                nullptr);
}

bool DiskJournal::failed() const {
  return impl_->broken;
}

DiskJournal::Figures DiskJournal::figures() const {
  return impl_->figures;
}

}  // namespace bulkhead::orchestrator
