#include "worker/vault/directory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "config/base/random.hpp"
#include "config/base/splitmix.hpp"

namespace bulkhead::vault {
namespace {

constexpr std::uint64_t kMagic = 0x31544C5541564842;  // "BHVAULT1"
constexpr std::uint32_t kVersion = 8;
constexpr std::uint64_t kDescriptionOffset = 128;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t page_tokens;
  std::uint64_t bytes;              // of the whole directory
  std::uint64_t description_bytes;  // from kDescriptionOffset on
  std::uint64_t pages_offset;
  std::uint32_t context, pages, vocabulary;
  std::uint32_t weight_blocks, blocks, identity_bytes;
  std::uint32_t states, window_pages;
  std::uint32_t first_pages, slab_pages, eager_pages;
  std::uint32_t window_first_pages, window_slab_pages, window_eager_pages;
  std::uint64_t sum;  // over the header without `sum` and `epoch`, and over the description
  std::uint64_t epoch;
};
static_assert(sizeof(Header) == 112 && sizeof(Header) <= kDescriptionOffset);
constexpr std::size_t kSummedHeader = offsetof(Header, sum);

struct Entry {
  std::uint32_t sequence;
  std::uint32_t before;
  std::uint64_t sum;
  Checksum content;
};
static_assert(sizeof(Entry) == 32);

struct StateEntry {
  std::uint32_t sequence;
  std::uint32_t page;
  std::uint64_t sum;
  Checksum content;
};
static_assert(sizeof(StateEntry) == 32);

std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t hash) {
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    hash = splitmix(hash + word + kSplitmixStep);
  }
  return splitmix(hash + bytes.size());
}

std::uint64_t state_sum(std::uint64_t epoch, std::uint32_t slot, std::uint32_t page,
                        const Checksum& content) {
  constexpr std::uint64_t kStates = 0x5354415445;  // keeps these sums apart from pages' sums
  return hash_of(std::as_bytes(std::span(content)),
                 splitmix(epoch + kStates) + (std::uint64_t{slot} << 32 | page));
}

std::uint64_t entry_bytes(std::uint32_t page_tokens) {
  return sizeof(Entry) + std::uint64_t{page_tokens} * 4;
}

// The entries follow the header and the description.
std::uint64_t entries_bytes(std::uint32_t pages, std::uint32_t page_tokens, std::uint32_t states) {
  return pages * entry_bytes(page_tokens) + std::uint64_t{states} * sizeof(StateEntry);
}

std::uint64_t description_bytes(std::size_t identity, std::size_t blocks, std::size_t sums) {
  return identity + blocks * 8 + sums * 16;
}

std::uint64_t pages_offset_for(std::uint64_t description) {
  return (kDescriptionOffset + description + 63) / 64 * 64;
}

// Copies the numbers that a Header and a Description share from one to the other.
template <typename From, typename To>
void copy_numbers(const From& from, To& to) {
  to.context = from.context;
  to.pages = from.pages;
  to.page_tokens = from.page_tokens;
  to.vocabulary = from.vocabulary;
  to.states = from.states;
  copy_sizes(from, to);
  to.weight_blocks = from.weight_blocks;
}

// Returns the sum over the header's fields before `sum` and the description's bytes.
std::uint64_t header_sum(const Header& header, std::span<const std::byte> description) {
  return hash_of(description,
                 hash_of({reinterpret_cast<const std::byte*>(&header), kSummedHeader}, 0));
}

// Memory that other processes may write at any time is read and written as atomics.
std::atomic_ref<std::uint32_t> word_at(std::byte* at) {
  return std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(at));
}
std::atomic_ref<std::uint64_t> long_at(std::byte* at) {
  return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at));
}

void write_checksum(std::byte* at, const Checksum& sum) {
  for (std::size_t i = 0; i < sum.size(); ++i)
    word_at(at + i * 4).store(sum[i], std::memory_order_relaxed);
}
Checksum read_checksum(std::byte* at) {
  Checksum sum{};
  for (std::size_t i = 0; i < sum.size(); ++i)
    sum[i] = word_at(at + i * 4).load(std::memory_order_relaxed);
  return sum;
}

Error corrupt(const std::string& what) {
  return Error(ErrorCode::kCorrupt, "the vault's directory: " + what);
}

Status check_bounds(const Description& d) {
  if (d.identity.size() > kMostIdentityBytes || d.block_bytes.size() > kMostBlocks ||
      d.weight_blocks > d.block_bytes.size() || d.checksums.size() != d.weight_blocks ||
      d.pages > kMostPages || d.page_tokens == 0 || d.page_tokens > kMostPageTokens ||
      d.window_pages > d.pages || d.states > kMostStates) {
    return Error(ErrorCode::kUnsupported,
                 "the vault's directory has no room for " + std::to_string(d.block_bytes.size()) +
                     " blocks and " + std::to_string(d.pages) + " pages of " +
                     std::to_string(d.page_tokens) + " tokens");
  }
  return {};
}

}  // namespace

Directory::~Directory() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

Result<std::unique_ptr<Directory>> Directory::create(const Description& description) {
  BULKHEAD_RETURN_IF_ERROR(check_bounds(description));
  std::unique_ptr<Directory> self(new Directory);
  self->description_ = description;
  const std::uint64_t length = description_bytes(
      description.identity.size(), description.block_bytes.size(), description.checksums.size());
  self->pages_offset_ = pages_offset_for(length);
  self->bytes_ = self->pages_offset_ +
                 entries_bytes(description.pages, description.page_tokens, description.states);
  self->fd_.reset(::memfd_create("bulkhead vault", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!self->fd_.valid()) return errno_error(ErrorCode::kResourceExhausted, "memfd_create", errno);
  if (::ftruncate(self->fd_.get(), static_cast<off_t>(self->bytes_)) != 0)
    return errno_error(ErrorCode::kResourceExhausted, "the vault's directory", errno);
  if (::fcntl(self->fd_.get(), F_ADD_SEALS, kSeals) != 0)
    return errno_error(ErrorCode::kInternal, "sealing the vault's directory", errno);
  void* const memory =
      ::mmap(nullptr, self->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, self->fd_.get(), 0);
  if (memory == MAP_FAILED)
    return errno_error(ErrorCode::kResourceExhausted, "mapping the vault's directory", errno);
  self->memory_ = static_cast<std::byte*>(memory);

  std::byte* at = self->memory_ + kDescriptionOffset;
  const auto put = [&at](const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(at, from, bytes);
    at += bytes;
  };
  put(description.identity.data(), description.identity.size());
  put(description.block_bytes.data(), description.block_bytes.size() * 8);
  put(description.checksums.data(), description.checksums.size() * 16);
  Header header{};
  header.magic = kMagic;
  header.version = kVersion;
  header.bytes = self->bytes_;
  header.description_bytes = length;
  header.pages_offset = self->pages_offset_;
  copy_numbers(description, header);
  header.blocks = static_cast<std::uint32_t>(description.block_bytes.size());
  header.identity_bytes = static_cast<std::uint32_t>(description.identity.size());
  header.epoch = random_u64();
  header.sum = header_sum(header, {self->memory_ + kDescriptionOffset, length});
  std::memcpy(self->memory_, &header, sizeof header);
  return self;
}

Result<std::unique_ptr<Directory>> Directory::open(const UniqueFd& fd) {
  struct stat file {};
  if (!fd.valid() || ::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode))
    return corrupt("it is not a memory file");
  // Without the seals, somebody could truncate it while it is read.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return corrupt("its size is not sealed");
  const auto size = static_cast<std::uint64_t>(file.st_size);
  constexpr std::uint64_t kMost =
      std::uint64_t{kMostPages} * (sizeof(Entry) + kMostPageTokens * 4) +
      std::uint64_t{kMostStates} * sizeof(StateEntry) + (1 << 20);
  if (size < kDescriptionOffset || size > kMost)
    return corrupt("it has " + std::to_string(size) + " bytes");
  std::unique_ptr<Directory> self(new Directory);
  self->bytes_ = size;
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED)
    return errno_error(ErrorCode::kResourceExhausted, "mapping the vault's directory", errno);
  self->memory_ = static_cast<std::byte*>(memory);

  // A copy, so that the bytes that were checked are the bytes that are used.
  Header header;
  std::memcpy(&header, self->memory_, sizeof header);
  if (header.magic != kMagic) return corrupt("it does not begin as one");
  if (header.version != kVersion)
    return corrupt("it is of version " + std::to_string(header.version));
  if (header.bytes != size) return corrupt("its size is not the one in its header");
  if (header.identity_bytes > kMostIdentityBytes || header.blocks > kMostBlocks ||
      header.weight_blocks > header.blocks || header.pages > kMostPages ||
      header.page_tokens == 0 || header.page_tokens > kMostPageTokens ||
      header.states > kMostStates || header.window_pages > header.pages ||
      header.description_bytes !=
          description_bytes(header.identity_bytes, header.blocks, header.weight_blocks) ||
      header.pages_offset != pages_offset_for(header.description_bytes) ||
      header.pages_offset + entries_bytes(header.pages, header.page_tokens, header.states) !=
          size) {
    return corrupt("its numbers contradict each other");
  }
  const std::vector<std::byte> copy(self->memory_ + kDescriptionOffset,
                                    self->memory_ + kDescriptionOffset + header.description_bytes);
  if (header_sum(header, copy) != header.sum) return corrupt("its sum is wrong");
  Description& d = self->description_;
  copy_numbers(header, d);
  const std::byte* at = copy.data();
  d.identity.assign(reinterpret_cast<const char*>(at), header.identity_bytes);
  at += header.identity_bytes;
  d.block_bytes.resize(header.blocks);
  d.checksums.resize(header.weight_blocks);
  if (header.blocks > 0) std::memcpy(d.block_bytes.data(), at, std::size_t{header.blocks} * 8);
  at += std::size_t{header.blocks} * 8;
  if (header.weight_blocks > 0)
    std::memcpy(d.checksums.data(), at, std::size_t{header.weight_blocks} * 16);
  self->pages_offset_ = header.pages_offset;
  return self;
}

std::byte* Directory::entry(std::uint32_t page) const {
  return memory_ + pages_offset_ + page * entry_bytes(description_.page_tokens);
}

std::byte* Directory::state_entry(std::uint32_t slot) const {
  return entry(description_.pages) + std::uint64_t{slot} * sizeof(StateEntry);
}

std::uint64_t Directory::epoch() const {
  return long_at(memory_ + offsetof(Header, epoch)).load(std::memory_order_acquire);
}

std::uint64_t Directory::sum(std::uint64_t epoch, std::uint32_t page, std::uint32_t before,
                             std::span<const std::uint32_t> tokens, const Checksum& content) const {
  const std::uint64_t place =
      splitmix(epoch) + splitmix(std::uint64_t{page} << 32 | std::uint64_t{before});
  return hash_of(std::as_bytes(tokens), hash_of(std::as_bytes(std::span(content)), place));
}

void Directory::enter(std::uint32_t page, std::uint32_t before,
                      std::span<const std::uint32_t> tokens, const Checksum& content) {
  if (page >= description_.pages || tokens.size() != description_.page_tokens) return;
  std::byte* const at = entry(page);
  const auto sequence = word_at(at);
  const std::uint32_t odd = sequence.load(std::memory_order_relaxed) | 1;
  // The sequence is odd before the first of these stores, and even after the last. (If a machine made a later store
  // visible before the first one, the checksum would show that.)
  sequence.exchange(odd, std::memory_order_acq_rel);
  word_at(at + offsetof(Entry, before)).store(before, std::memory_order_relaxed);
  long_at(at + offsetof(Entry, sum))
      .store(sum(epoch(), page, before, tokens, content), std::memory_order_relaxed);
  write_checksum(at + offsetof(Entry, content), content);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    word_at(at + sizeof(Entry) + i * 4).store(tokens[i], std::memory_order_relaxed);
  sequence.store(odd + 1 == 0 ? 2 : odd + 1, std::memory_order_release);
}

void Directory::leave(std::uint32_t page) {
  if (page >= description_.pages) return;
  const auto sequence = word_at(entry(page));
  // The device may write to the page only after this, in a submission that comes later in this thread.
  sequence.store(sequence.load(std::memory_order_relaxed) | 1, std::memory_order_seq_cst);
}

void Directory::enter_state(std::uint32_t slot, std::uint32_t page, const Checksum& content) {
  if (slot >= description_.states) return;
  std::byte* const at = state_entry(slot);
  const auto sequence = word_at(at);
  const std::uint32_t odd = sequence.load(std::memory_order_relaxed) | 1;
  sequence.exchange(odd, std::memory_order_acq_rel);
  word_at(at + offsetof(StateEntry, page)).store(page, std::memory_order_relaxed);
  long_at(at + offsetof(StateEntry, sum))
      .store(state_sum(epoch(), slot, page, content), std::memory_order_relaxed);
  write_checksum(at + offsetof(StateEntry, content), content);
  sequence.store(odd + 1 == 0 ? 2 : odd + 1, std::memory_order_release);
}

void Directory::leave_state(std::uint32_t slot) {
  if (slot >= description_.states) return;
  const auto sequence = word_at(state_entry(slot));
  sequence.store(sequence.load(std::memory_order_relaxed) | 1, std::memory_order_seq_cst);
}

void Directory::empty() {
  long_at(memory_ + offsetof(Header, epoch))
      .store(splitmix(epoch() + 1), std::memory_order_seq_cst);
  // No successor uses entries of an earlier epoch, but they must not look damaged either, so each one is taken back.
  // An entry that was never made stays as it is.
  for (std::uint32_t page = 0; page < description_.pages; ++page) {
    if (word_at(entry(page)).load(std::memory_order_relaxed) != 0) leave(page);
  }
  for (std::uint32_t slot = 0; slot < description_.states; ++slot)
    leave_state(slot);
}

void Directory::read_states(Entries& entries) const {
  const std::uint64_t now = epoch();
  for (std::uint32_t slot = 0; slot < description_.states; ++slot) {
    std::byte* const at = state_entry(slot);
    const std::uint32_t sequence = word_at(at).load(std::memory_order_acquire);
    if (sequence == 0 || sequence % 2 != 0) continue;
    const std::uint32_t page =
        word_at(at + offsetof(StateEntry, page)).load(std::memory_order_relaxed);
    const std::uint64_t told =
        long_at(at + offsetof(StateEntry, sum)).load(std::memory_order_relaxed);
    const Checksum content = read_checksum(at + offsetof(StateEntry, content));
    if (told == state_sum(now, slot, page, content) && page < description_.pages) {
      entries.states.push_back({slot, page, content});
    } else {
      ++entries.doubtful;
    }
  }
}

Entries Directory::entries() const {
  struct Candidate {
    std::uint32_t before = kRoot;
    Checksum content{};
    bool whole = false;
    bool walked = false;
    bool placed = false;
  };
  Entries entries;
  const std::uint64_t now = epoch();
  const std::uint32_t count = description_.pages, size = description_.page_tokens;
  std::vector<Candidate> all(count);
  entries.tokens.resize(std::size_t{count} * size);
  for (std::uint32_t page = 0; page < count; ++page) {
    std::byte* const at = entry(page);
    const std::uint32_t sequence = word_at(at).load(std::memory_order_acquire);
    if (sequence % 2 != 0) entries.open.push_back(page);
    if (sequence == 0 || sequence % 2 != 0) continue;
    Candidate& candidate = all[page];
    candidate.before = word_at(at + offsetof(Entry, before)).load(std::memory_order_relaxed);
    const std::uint64_t told = long_at(at + offsetof(Entry, sum)).load(std::memory_order_relaxed);
    candidate.content = read_checksum(at + offsetof(Entry, content));
    const std::span<std::uint32_t> tokens(entries.tokens.data() + std::size_t{page} * size, size);
    for (std::uint32_t i = 0; i < size; ++i)
      tokens[i] = word_at(at + sizeof(Entry) + i * 4).load(std::memory_order_relaxed);
    candidate.whole =
        told == sum(now, page, candidate.before, tokens, candidate.content) &&
        (candidate.before == kRoot || candidate.before < count) &&
        std::ranges::all_of(tokens, [&](std::uint32_t t) { return t < description_.vocabulary; });
    if (!candidate.whole) ++entries.doubtful;
  }
  read_states(entries);
  // This follows each chain back to the root or to a page that is already placed, and then places the chain's pages
  // from there. Pages are dropped if their chain ends anywhere else or runs in a circle.
  std::vector<std::uint32_t> chain;
  for (std::uint32_t page = 0; page < count; ++page) {
    chain.clear();
    std::uint32_t at = page;
    while (at != kRoot && all[at].whole && !all[at].walked) {
      all[at].walked = true;
      chain.push_back(at);
      at = all[at].before;
    }
    const bool holds = at == kRoot || all[at].placed;
    for (; !chain.empty(); chain.pop_back()) {
      Candidate& link = all[chain.back()];
      if (!holds) {
        if (link.whole) ++entries.doubtful;
        link.whole = false;
        continue;
      }
      link.placed = true;
      entries.pages.push_back({chain.back(), link.before,
                               std::span<const std::uint32_t>(
                                   entries.tokens.data() + std::size_t{chain.back()} * size, size),
                               link.content});
    }
  }
  return entries;
}

}  // namespace bulkhead::vault
