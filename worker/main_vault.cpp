#include "worker/main_vault.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <variant>

#include "config/base/elapsed.hpp"
#include "config/base/fnv1a.hpp"
#include "config/base/log.hpp"
#include "config/base/random.hpp"
#include "worker/model/builtin_model.hpp"
#include "worker/model/opened_files.hpp"

namespace bulkhead::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kWordOfTheDaemon{10000};
// Other offers are usually under way for a moment only. The worker does not delay serving for longer than this.
constexpr std::chrono::milliseconds kRoomAtOnce{250};
constexpr std::chrono::milliseconds kBetweenTries{5};
constexpr std::size_t kDescriptorsOfPacket = 32;

Error unusable(const std::string& what) {
  return Error(ErrorCode::kCorrupt, "what the last process left can't be used: " + what);
}

bool is_full(const Status& status) {
  return !status.ok() && status.error().code() == ErrorCode::kResourceExhausted;
}

// Returns a mark that changes when the file is written to or replaced.
std::string mark_of(const struct stat& file) {
  return fmt::format("{}:{}:{}:{}.{:09}", file.st_dev, file.st_ino, file.st_size,
                     file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
}

// Returns one line that distinguishes a model from others without reading its file. A built-in model is in each
// program's own memory.
std::string model_line(const model::GgufFile& file) {
  std::string line = "model";
  for (const int fd : file.descriptors()) {
    struct stat status {};
    if (::fstat(fd, &status) == 0) line += " " + mark_of(status);
  }
  if (file.descriptors().empty()) {
    const auto bytes = model::builtin_model();
    line += fmt::format(" builtin:{}:{:016x}", bytes.size(), fnv1a_long_words(bytes));
  }
  return line;
}

// The time when a file's content, mode, owner or names last changed. No program can set it, so it shows an edit after
// which somebody restored the time of the content. It also changes when a file is deleted or renamed.
std::string change_time_of(const struct stat& file) {
  return fmt::format(" changed:{}.{:09}", file.st_ctim.tv_sec, file.st_ctim.tv_nsec);
}

}  // namespace

Status MainVault::receive() {
  if (!wanted_) {
    report_.reason = "isolation.vault is off";
    return {};
  }
  BULKHEAD_TRY(const bool came,
               ipc::wait_readable(channel_, std::chrono::microseconds(0), kWordOfTheDaemon));
  if (!came)
    return Error(ErrorCode::kDeadlineExceeded, "the daemon did not say whether there is a vault");
  BULKHEAD_TRY(const auto record, channel_.try_receive());
  auto message = ipc::decode_to_worker(record);
  channel_.release();
  if (!message.ok()) return message.error().within("a message of the daemon");
  const auto* const vault = std::get_if<ipc::Vault>(&*message);
  if (vault == nullptr)
    return Error(ErrorCode::kInternal, "the daemon's first message is not about a vault");
  given_ = *vault;
  if (!given()) {
    while (
        channel_
            .take_descriptors()) {  // descriptors of a vault that did not arrive completely would keep its memory
    }
    return {};
  }

  std::vector<UniqueFd> all;
  BULKHEAD_RETURN_IF_ERROR(take_descriptors(all));
  BULKHEAD_TRY(directory_, vault::Directory::open(all.front()));
  const vault::Description& described = directory_->description();
  if (described.block_bytes.size() != given_.blocks)
    return unusable("its directory has another number of blocks");
  const std::size_t line = described.identity.find('\n');
  if (line == std::string::npos) return unusable("its directory does not say of which model it is");
  const auto blocks = all.begin() + 1 + given_.files;
  const auto slabs = blocks + given_.blocks;
  for (std::size_t i = 0; i < given_.slabs.size(); ++i) {
    const ipc::HeldSlab& place = given_.slabs[i];
    predecessor_.slabs.push_back(
        {place.slab, place.offset, std::move(slabs[static_cast<std::ptrdiff_t>(i)])});
  }
  files_.assign(std::make_move_iterator(all.begin() + 1), std::make_move_iterator(blocks));
  predecessor_.blocks.assign(std::make_move_iterator(blocks), std::make_move_iterator(slabs));
  forward::MemoryLayout& layout = predecessor_.layout;
  layout.identity = described.identity.substr(line + 1);
  layout.cache.context = described.context;
  layout.cache.pages = described.pages - described.window_pages;
  vault::copy_sizes(described, layout.cache);
  layout.weight_blocks = described.weight_blocks;
  layout.block_bytes = described.block_bytes;
  predecessor_.checksums = described.checksums;
  return {};
}

Status MainVault::take_descriptors(std::vector<UniqueFd>& all) {
  const std::size_t wanted = std::size_t{1} + given_.files + given_.blocks + given_.slabs.size();
  while (all.size() < wanted) {
    auto packet = channel_.take_descriptors();
    if (!packet) return unusable("descriptors are missing");
    if (packet->tag != given_.epoch) continue;
    for (UniqueFd& fd : packet->fds)
      all.push_back(std::move(fd));
    packet->fds.clear();
  }
  return all.size() == wanted ? Status() : unusable("there are too many descriptors");
}

Result<std::unique_ptr<model::GgufFile>> MainVault::open_model(const std::string& path) {
  if (!given()) {
    BULKHEAD_TRY(auto file, model::GgufFile::open(path));
    for (const int fd : file->descriptors()) {
      struct stat status {};
      change_times_ += ::fstat(fd, &status) == 0 ? change_time_of(status) : " changed:unknown";
    }
    return file;
  }
  if (files_.empty() != (path == "builtin")) return unusable("it is of another model");
  const std::string& identity = directory_->description().identity;
  const std::string line = identity.substr(0, identity.find('\n'));
  // Compares the files that are at the paths now. If a name still exists, a changed file has another time of change.
  bool changed = false;
  std::string times;
  const std::vector<std::string> names = model::model_files(path);
  for (std::size_t i = 0; i < files_.size(); ++i) {
    struct stat kept {
    }, now{};
    if (i >= names.size() || !model::look_at(names[i], now)) continue;
    changed |= ::fstat(files_[i].get(), &kept) != 0 || mark_of(kept) != mark_of(now);
    times += change_time_of(now);
  }
  const bool all_there = std::ranges::count(times, ':') == std::ssize(files_);
  // Another mode or name also changes the times. That is no reason to doubt a file before somebody asks for a new
  // process.
  changed |= given_.replaced && all_there && !line.ends_with(times);
  if (changed && given_.replaced) return unusable("the model file has changed");
  BULKHEAD_TRY(auto file, model::GgufFile::open(std::move(files_), path));
  // Streams continue with the model that they began with.
  if (changed) {
    spdlog::warn(
        "{} has changed; this worker continues with the file that it was started with until "
        "it is restarted",
        path);
  }
  if (line.substr(0, line.find(" changed:")) != model_line(*file))
    return unusable("it is of another model");
  return file;
}

std::optional<ipc::VaultReport> MainVault::begin(const forward::Transformer& executor,
                                                 const model::GgufFile& file,
                                                 engine::Engine& engine, bool may_adopt_kv,
                                                 Writer writer) {
  if (!wanted_) return report_;
  report_.reason.clear();
  executor_ = &executor;
  if (given()) {
    // The device's last steps may write to states that this process's sequences would use.
    if (writer == Writer::kUnsettled && executor.limits().states > 0) return std::nullopt;
    stand_by(executor);
    if (!adopt(engine, may_adopt_kv, writer)) return std::nullopt;
    epoch_ = given_.epoch;
    descriptors_ = std::size_t{1} + given_.files + given_.blocks;
    for (const ipc::HeldSlab& held : given_.slabs)
      pieces_.insert(held.slab);
    return report_;
  }
  Status offered = prepare(executor, file);
  if (offered.ok()) {
    set_ledgers(engine);
    offered = send_offer();
    for (const auto end = Clock::now() + kRoomAtOnce; is_full(offered) && Clock::now() < end;) {
      std::this_thread::sleep_for(kBetweenTries);
      offered = send_offer();
    }
  }
  if (offered.ok()) {
    report_.state = ipc::VaultState::kKept;
  } else if (is_full(offered) && offer_.has_value()) {
    report_.state = ipc::VaultState::kWaiting;
    report_.reason = offered.error().message();
    spdlog::warn("no vault yet: {}; it is offered once there is room", report_.reason);
  } else {
    engine.set_ledger(nullptr);
    engine.set_state_ledger(nullptr);
    offer_.reset();
    directory_.reset();
    report_.state = ipc::VaultState::kOff;
    report_.reason = offered.error().message();
    spdlog::warn("no vault: {}; a successor will have to load the model", report_.reason);
  }
  return report_;
}

bool MainVault::offer_again() {
  if (!offer_.has_value()) return true;
  const Status offered = send_offer();
  if (is_full(offered)) return false;
  if (!offered.ok()) {
    spdlog::warn("no vault after all: {}", offered.error().message());
    offer_.reset();
  }
  return true;
}

ipc::VaultReport MainVault::stand_by(const forward::MemoryExporter& exporter) {
  if (!given()) return report_;
  const forward::ImportTimes times = exporter.import_times();
  report_.import_microseconds = times.import_ns / 1000;
  report_.check_microseconds = times.check_ns / 1000;
  report_.state = ipc::VaultState::kImported;
  return report_;
}

bool MainVault::adopt(engine::Engine& engine, bool may_adopt_kv, Writer writer) {
  const auto begin = Clock::now();
  const vault::Description& described = directory_->description();
  const engine::PagePool& pool = engine.scheduler().pool();
  if (!may_adopt_kv) {
    report_.reason = "the last process's end casts doubt on its KV pages";
  } else if (described.pages != pool.all_pages() ||
             described.window_pages != pool.windows().total_pages() ||
             described.page_tokens != pool.page_tokens() ||
             described.states != engine.scheduler().states().slots()) {
    report_.reason = "the directory is of other KV pages";
  }
  vault::Entries entries;
  if (report_.reason.empty()) {
    entries = directory_->entries();
    if (entries.doubtful > 0)
      report_.reason = fmt::format("{} entries of the directory are not whole", entries.doubtful);
  }
  if (!report_.reason.empty()) {
    // Such a directory does not show either to which pages the device may still write.
    if (writer == Writer::kUnsettled) return false;
    spdlog::warn("KV pages are computed anew: {}", report_.reason);
    directory_->empty();
    set_ledgers(engine);
    return true;
  }
  set_ledgers(engine);
  std::vector<engine::EnteredPage> pages;
  pages.reserve(entries.pages.size());
  for (const vault::EnteredPage& page : entries.pages)
    pages.push_back({page.page, page.before, page.tokens, page.content});
  if (const Result<std::uint32_t> taken = engine.adopt(pages); taken.ok()) {
    report_.pages_adopted = *taken;
  } else {
    report_.reason = taken.error().message();
    spdlog::warn("KV pages are computed anew: {}", report_.reason);
    directory_->empty();
  }
  std::vector<engine::EnteredState> states;
  states.reserve(entries.states.size());
  for (const vault::EnteredState& state : entries.states)
    states.push_back({state.slot, state.page, state.content});
  if (const Result<std::uint32_t> taken = engine.adopt_states(states); !taken.ok()) {
    spdlog::warn("saved states are computed anew: {}", taken.error().message());
    for (const engine::EnteredState& state : states)
      directory_->leave_state(state.slot);
  }
  report_.pages_withheld = writer == Writer::kUnsettled ? engine.withhold(entries.open) : 0;
  report_.adopt_microseconds = nanoseconds_since(begin) / 1000;
  return true;
}

Status MainVault::prepare(const forward::Transformer& executor, const model::GgufFile& file) {
  BULKHEAD_TRY(forward::ExportedMemory exported, executor.export_memory());
  const engine::ExecutorLimits& limits = executor.limits();
  vault::Description description;
  description.identity = model_line(file) + change_times_ + "\n" + exported.layout.identity;
  const forward::CacheSize& cache = exported.layout.cache;
  description.context = cache.context;
  description.pages = cache.pages + cache.window_pages;
  vault::copy_sizes(cache, description);
  description.page_tokens = limits.page_tokens;
  description.vocabulary = limits.vocabulary;
  description.states = limits.states;
  description.weight_blocks = exported.layout.weight_blocks;
  description.block_bytes = exported.layout.block_bytes;
  description.checksums = exported.checksums;
  BULKHEAD_TRY(directory_, vault::Directory::create(description));

  offer_ = Offer{};
  Offer& offer = *offer_;
  offer.directory = directory_->take_descriptor();
  offer.blocks = std::move(exported.blocks);
  const std::vector<int> files = file.descriptors();
  offer.descriptors.push_back(offer.directory.get());
  offer.descriptors.insert(offer.descriptors.end(), files.begin(), files.end());
  for (const UniqueFd& block : offer.blocks)
    offer.descriptors.push_back(block.get());
  if (offer.descriptors.size() > ipc::kMostVaultDescriptors) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("it would take {} descriptors, and {} are allowed",
                             offer.descriptors.size(), ipc::kMostVaultDescriptors));
  }
  offer.word = {random_u64() | 1,  // 0 means none
                static_cast<std::uint32_t>(files.size()),
                static_cast<std::uint32_t>(offer.blocks.size())};
  return {};
}

Status MainVault::send_offer() {
  while (offer_->sent < offer_->descriptors.size()) {
    const auto rest = std::span(offer_->descriptors).subspan(offer_->sent);
    const auto packet = rest.first(std::min(kDescriptorsOfPacket, rest.size()));
    BULKHEAD_RETURN_IF_ERROR(channel_.send_descriptors(packet, offer_->word.epoch));
    offer_->sent += packet.size();
  }
  outbox_.send(offer_->word);
  epoch_ = offer_->word.epoch;
  descriptors_ = offer_->descriptors.size();
  offer_.reset();
  return {};
}

// If the daemon can't take a descriptor now, a successor computes the slab's pages again.
void MainVault::slab_added(std::uint32_t slab) {
  if (epoch_ == 0) return;
  const auto exported = executor_->export_slab(slab);
  if (!exported.ok()) return spdlog::debug("no slab for the vault: {}", exported.error().message());
  for (const forward::ExportedSlab& each : *exported) {
    if (each.piece >= ipc::kMostVaultSlabs ||
        descriptors_ + pieces_.size() >= ipc::kMostVaultDescriptors)
      return;
    const int fd = each.memory.get();
    const Status sent = channel_.send_descriptors(std::span(&fd, 1), epoch_);
    if (!sent.ok()) return spdlog::debug("no slab for the vault: {}", sent.error().message());
    outbox_.send(ipc::VaultSlab{epoch_, {each.piece, each.offset}, true});
    pieces_.insert(each.piece);
  }
}

void MainVault::give_back_slabs() {
  if (epoch_ == 0) return;
  const std::vector<std::uint32_t> present = executor_->present_slabs();
  for (const ipc::HeldSlab& held : given_.slabs) {
    const std::uint32_t slab = executor_->slab_of_piece(held.slab);
    if (std::ranges::find(present, slab) == present.end()) slab_returned(slab);
  }
}

void MainVault::slab_returned(std::uint32_t slab) {
  std::erase_if(pieces_, [&](std::uint32_t piece) {
    if (executor_->slab_of_piece(piece) != slab) return false;
    outbox_.send(ipc::VaultSlab{epoch_, {piece, 0}, false});
    return true;
  });
}

}  // namespace bulkhead::worker
