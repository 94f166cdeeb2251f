#include "orchestrator/journal/disk_journal.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "config/base/log.hpp"
#include "config/base/quiet_thread.hpp"
#include "config/base/random.hpp"
#include "config/base/unique_fd.hpp"
#include "orchestrator/journal/journal_file.hpp"
#include "orchestrator/mailbox.hpp"
#include "orchestrator/memory_reserve.hpp"

namespace bulkhead::orchestrator {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstRetry{1000}, kLongestRetry{30000};
constexpr milliseconds kLookEvery{5000};  // how often it checks whether the file still has its name
constexpr milliseconds kEndPatience{5000};
// The most bytes gathered during a write. If there are more, they are dropped, and the next write writes all live
// records.
constexpr std::size_t kMostPending = std::size_t{64} << 20;

}  // namespace

struct DiskJournal::Impl : std::enable_shared_from_this<Impl> {
  Impl(EventLoop& the_loop, Options the_options)
      : loop(the_loop),
        options(std::move(the_options)),
        retry(std::make_unique<Timer>(the_loop)),
        mailbox(std::make_shared<Mailbox>(the_loop)) {}

  struct Job {
    std::string bytes;
    bool anew = false;
  };

  struct Done {
    Status status = {};
    bool anew = false;
    bool lost_name = false;  // nothing was written, because the file has lost its name
    bool no_memory = false;  // for writing; `status` has no words for it, which would need some
    std::size_t bytes = 0;
    std::chrono::microseconds took{};
  };

  // ---- the event loop's side ----

  void gather(const JournalRecord& record, std::function<void()> durable) {
    ++figures.records;
    if (!problem.empty() && !writing) {  // a later write writes all live records
      if (durable) loop.post(std::move(durable));
      return;
    }
    if (durable) pending_durable.push_back(std::move(durable));
    try {
      append_record(pending, record, salt);
      overflowed |= pending.size() > kMostPending;
    } catch (const std::bad_alloc&) {  // the live records have it
      overflowed = true;
    }
    if (overflowed) pending = {};
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

  // Gives the gathered records to the thread. While the thread is busy they wait until it has finished.
  void commit() {
    if (writing || !problem.empty() || (pending.empty() && !overflowed)) return;
    if (overflowed || figures.file_bytes + pending.size() > compact_at) return write_anew();
    writing_durable = std::exchange(pending_durable, {});
    hand_over({std::exchange(pending, {}), false});
  }

  // Writes all live records, which include the pending ones, but none that were dropped.
  void write_anew() {
    Job job{"", true};
    bool no_memory = false;
    try {
      job.bytes = wanted();
    } catch (const std::bad_alloc&) {
      no_memory = true;
    }
    std::ranges::move(std::exchange(pending_durable, {}), std::back_inserter(writing_durable));
    overflowed = false;
    pending = {};
    if (!no_memory) return hand_over(std::move(job));
    loop.post([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->done({.anew = true, .no_memory = true});
    });
    writing = true;
  }

  // Hands the thread the records that a job under way does not hold. A job that has not begun takes them with it.
  // Call it under the mutex.
  void write_last() {
    if (overflowed) {
      next = Job{wanted(), true};
    } else if (!pending.empty()) {
      if (!next.has_value()) next = Job{};
      next->bytes += pending;
    }
  }

  void hand_over(Job job) {
    writing = true;
    {
      std::lock_guard lock(mutex);
      next = std::move(job);
    }
    wake.notify_one();
  }

  std::string wanted() const {
    std::string out = journal_header(salt);
    for (const auto& [key, records] : live)
      out += records;
    return out;
  }

  void done(const Done& result) {
    loop.doing("the journal's write is done");
    if (result.lost_name) return name_lost(result.bytes > 0);
    writing = false;
    if (result.no_memory) {
      MemoryReserve::refill();
      failed("there is no memory to write it with");
    } else if (result.status.ok()) {
      written(result);
    } else {
      failed(result.status.error().message());
    }
    auto due = std::exchange(writing_durable, {});
    if (!problem.empty())
      std::ranges::move(std::exchange(pending_durable, {}), std::back_inserter(due));
    for (auto& durable : due) {
      try {
        durable();
      } catch (const std::exception& error) {  // the other streams get their turns
        loop.caught("what follows a journal's write", error);
      }
    }
    commit();
  }

  void written(const Done& result) {
    ++figures.commits;
    figures.commit_microseconds += static_cast<std::uint64_t>(result.took.count());
    figures.file_bytes = result.anew ? result.bytes : figures.file_bytes + result.bytes;
    if (!result.anew) return;
    ++figures.compactions;
    compact_at = std::max(options.compact_at_bytes, 2 * result.bytes);
    if (problem.empty()) return;
    ++figures.recoveries;
    problem.clear();
    retry_delay = kFirstRetry;
    spdlog::info("the journal is written again; streams can be resumed as before");
  }

  void failed(const std::string& why) {
    ++figures.failures;
    if (problem.empty()) {
      spdlog::error(
          "the journal can't be written: {}; what is under way survives its workers, but not the "
          "daemon, and no new stream can be made resumable. It is tried again from time to time",
          why);
    }
    problem = why;
    pending.clear();
    overflowed = false;
    retry->start(retry_delay, [this] {
      if (!writing) write_anew();
    });
    retry_delay = std::min(2 * retry_delay, kLongestRetry);
  }

  // The records that were handed over must still be written.
  void name_lost(bool with_records) {
    spdlog::warn("journal {}: the file was deleted, or another has its name; it is written anew",
                 options.path);
    if (with_records || !writing) return write_anew();
    // The thread noticed this by itself while a job was on its way. The thread will notice it again with that job.
  }

  // ---- the thread's side ----

  void write_jobs() {
    std::unique_lock lock(mutex);
    while (true) {
      const auto due = [this] { return next.has_value() || ending; };
      if (!wake.wait_for(lock, kLookEvery, due)) {
        lock.unlock();
        look_at_name();
        lock.lock();
        continue;
      }
      if (!next.has_value()) break;
      const Job job = *std::exchange(next, std::nullopt);
      lock.unlock();
      tell(attempt(job));
      lock.lock();
    }
    ended = true;
    wake.notify_all();
  }

  Done attempt(const Job& job) {
    const auto began = std::chrono::steady_clock::now();
    Done result{.anew = job.anew, .bytes = job.bytes.size()};
    result.lost_name = !job.anew && named_now(file.get(), options.path) != Named::kOurs;
    try {
      if (!result.lost_name) result.status = write(job);
    } catch (const std::bad_alloc&) {
      result.no_memory = true;
    }
    result.took = std::chrono::duration_cast<std::chrono::microseconds>(
        std::chrono::steady_clock::now() - began);
    told_of_name = told_of_name && !job.anew;
    return result;
  }

  // Copies nothing: put() alone may lack memory.
  void tell(Done result) {
    mailbox->put([weak = weak_from_this(), result = std::move(result)] {
      if (auto self = weak.lock()) self->done(result);
    });
  }

  void look_at_name() {
    if (told_of_name || named_now(file.get(), options.path) == Named::kOurs) return;
    told_of_name = true;
    tell({.lost_name = true});
  }

  Status write(const Job& job) {
    if (job.anew) {
      if (named_now(file.get(), options.path) == Named::kAnother) {
        const std::string aside = options.path + ".other";
        if (::rename(options.path.c_str(), aside.c_str()) != 0)
          return journal_file_error(options.path, "rename");
      }
      return rewrite_journal(options.path, job.bytes, file);
    }
    return append_to_journal(file.get(), job.bytes, options.path);
  }

  EventLoop& loop;
  Options options;
  std::map<std::uint64_t, std::string> live;  // the records of each request, encoded
  std::uint64_t next_key = 1;
  std::size_t compact_at = 0;
  std::string pending;  // records that are not in a job yet
  std::vector<std::function<void()>> pending_durable, writing_durable;
  bool commit_due = false;
  bool writing = false;
  bool overflowed = false;                 // `pending` lacks records that are live
  std::string problem;                     // error of the last write; empty: none
  std::unique_ptr<Timer> retry;            // destroyed before the loop is, whatever the thread does
  const std::shared_ptr<Mailbox> mailbox;  // closed at the end: then nobody is there to be told
  milliseconds retry_delay = kFirstRetry;
  std::uint32_t salt = 0;
  Figures figures;

  UniqueFd file;  // only the thread uses it while it runs
  std::mutex mutex;
  std::condition_variable wake;
  std::optional<Job> next;  // under the mutex, as is `ending`
  bool ending = false;
  bool ended = false;         // the thread has written its last record; under the mutex
  bool told_of_name = false;  // only the thread uses it
};

Result<DiskJournal::Opened> DiskJournal::open(EventLoop& loop, Options options) {
  auto impl = std::make_shared<Impl>(loop, std::move(options));
  impl->salt = static_cast<std::uint32_t>(random_u64());
  const std::string& path = impl->options.path;
  Opened opened;
  {
    BULKHEAD_TRY(UniqueFd old, open_locked_journal(path));
    BULKHEAD_TRY(std::string bytes, read_journal_file(old.get(), path));
    DiskRequests requests(impl->salt);
    auto end = read_journal(bytes, [&](const JournalRecord& record) { requests.add(record); });
    if (!end.ok()) return end.error().within("isolation.journal_path: " + path);
    if (!end->damage.empty()) {
      spdlog::warn(
          "journal {}: damaged from byte {} of {}: {}; {} byte(s) left out, {} cut off the end",
          path, end->good_bytes, bytes.size(), end->damage, end->skipped_bytes, end->torn_bytes);
    }
    impl->figures.torn_bytes = end->torn_bytes;
    impl->figures.damaged_bytes = end->skipped_bytes;
    for (const std::string& problem : requests.problems)
      spdlog::warn("journal {}: {}; it is given up", path, problem);
    impl->next_key = requests.last_key + 1;
    opened.requests = requests.take();
    impl->figures.recovered_requests = static_cast<std::uint64_t>(
        std::ranges::count_if(opened.requests, [](const DiskRequest& r) { return !r.over(); }));
    for (DiskRequest& request : opened.requests)
      impl->live[request.key] = std::move(request.records);
    if (end->skipped_bytes > 0) {
      const std::string kept = path + ".damaged";
      ::unlink(kept.c_str());
      if (::link(path.c_str(), kept.c_str()) == 0)
        spdlog::warn("journal {}: the damaged file is kept as {}", path, kept);
    }
    const std::string wanted = impl->wanted();
    // If it can't be written, the old file stays unchanged, and its streams can be served.
    impl->file = std::move(old);
    const Status anew = rewrite_journal(path, wanted, impl->file);
    if (!anew.ok()) impl->failed(anew.error().message());
    impl->figures.file_bytes = wanted.size();
    impl->compact_at = std::max(impl->options.compact_at_bytes, 2 * wanted.size());
  }
  quiet_thread([impl] { impl->write_jobs(); }).detach();
  opened.journal.reset(new DiskJournal(std::move(impl)));
  return opened;
}

DiskJournal::DiskJournal(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

DiskJournal::~DiskJournal() {
  impl_->retry.reset();
  impl_->mailbox->close();
  std::unique_lock lock(impl_->mutex);
  try {
    if (impl_->problem.empty()) impl_->write_last();
  } catch (const std::bad_alloc&) {
    spdlog::error("journal {}: no memory to write its last records", impl_->options.path);
  }
  impl_->ending = true;
  impl_->wake.notify_all();
  if (!impl_->wake.wait_for(lock, kEndPatience, [this] { return impl_->ended; }))
    spdlog::error("journal {}: the disk takes too long; its last records may be lost",
                  impl_->options.path);
}

std::uint64_t DiskJournal::new_key() {
  return impl_->next_key++;
}

void DiskJournal::append(std::uint64_t key, RecordType type, std::string_view payload,
                         std::function<void()> durable) {
  const JournalRecord record{type, static_cast<std::uint32_t>(std::time(nullptr)), key, payload};
  append_record(impl_->live[key], record, impl_->salt);
  impl_->gather(record, std::move(durable));
}

void DiskJournal::drop(std::uint64_t key) {
  if (impl_->live.erase(key) == 0) return;
  impl_->gather({RecordType::kDropped, static_cast<std::uint32_t>(std::time(nullptr)), key, {}},
                nullptr);
}

const std::string& DiskJournal::problem() const {
  return impl_->problem;
}

DiskJournal::Figures DiskJournal::figures() const {
  return impl_->figures;
}

}  // namespace bulkhead::orchestrator
