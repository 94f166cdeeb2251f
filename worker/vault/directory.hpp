// The directory of a vault: host memory that describes to a successor what the device memory beside it holds. A
// worker writes the directory while it runs. The daemon holds the directory's descriptor and never looks inside. The
// process that left the directory may have been killed in the middle of a store, or may have malfunctioned. So the
// successor uses only entries that pass these checks:
//
//   +0       header    magic, version, sizes, the sum over header and description
//   +128     description: identity (text), blocks' bytes, the weights' checksums; never changes
//   +pages   one entry for each KV page, of 32 + 4 * page_tokens bytes
//
//   entry    +0  u32 sequence   even and not 0: complete; odd: being written, or withdrawn;
//                               0: no step has ever been given the page
//            +4  u32 before     the page that comes before it, or kRoot; for a window page
//                               (engine/window_pages.hpp) the page of the other layers to which it belongs
//            +8  u64 sum        over epoch, page number, `before`, content and tokens
//            +16 u32 content[4] the checksum that the device computed of the page's bytes
//            +32 u32 tokens[page_tokens]
//
//   +states  one entry for each slot of layers' states, of 32 bytes
//
//   entry    +0  u32 sequence   as above
//            +4  u32 page       the slot holds the states after this page's last position
//            +8  u64 sum        over epoch, slot, page and content
//            +16 u32 content[4] the checksum that the device computed of the slot's bytes
//
// The worker enters a page or a slot when the device has finished writing it, has made the sum of its bytes
// and will not write to it again. The worker takes the entry back before the device may write there again. A
// process that adopts a page or a slot makes the sum again. If a store is cut short, the entry has an odd
// sequence number or a sum that does not match it. The epoch is part of each sum, so a new epoch empties the
// directory at once.
//
// A worker that wants to deceive its successor can do so, because sums are not signatures. The successor is confined
// as its predecessor was; with false pages it computes wrong tokens for this model, and nothing worse. It must not
// trust a length or an index: it copies, then checks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/base/error.hpp"
#include "config/base/unique_fd.hpp"

namespace bulkhead::vault {

inline constexpr std::uint32_t kRoot = 0xFFFFFFFF;  // the page "before" the first page

struct Description {
  std::string identity;  // text; equal for two processes that may share
  std::uint32_t context = 0;
  std::uint32_t pages = 0;
  std::uint32_t window_pages = 0;  // how many of `pages` are window pages, which come last
  // Of a cache that grows: how many pages are always there, and how many each slab has (engine/executor.hpp).
  std::uint32_t first_pages = 0, slab_pages = 0, eager_pages = 0;
  std::uint32_t window_first_pages = 0, window_slab_pages = 0, window_eager_pages = 0;
  std::uint32_t page_tokens = 0;
  std::uint32_t vocabulary = 0;
  std::uint32_t states = 0;  // slots
  std::uint32_t weight_blocks = 0;
  std::vector<std::uint64_t> block_bytes;               // the weights' blocks, then the others
  std::vector<std::array<std::uint32_t, 4>> checksums;  // of the weights' blocks
  bool operator==(const Description&) const = default;
};

// Copies the sizes of a growing cache between structs that name them as Description does.
template <typename From, typename To>
void copy_sizes(const From& from, To& to) {
  to.window_pages = from.window_pages;
  to.first_pages = from.first_pages;
  to.slab_pages = from.slab_pages;
  to.eager_pages = from.eager_pages;
  to.window_first_pages = from.window_first_pages;
  to.window_slab_pages = from.window_slab_pages;
  to.window_eager_pages = from.window_eager_pages;
}

// Limits for the values of a header.
inline constexpr std::size_t kMostIdentityBytes = 16384;
inline constexpr std::size_t kMostBlocks = 192;
inline constexpr std::uint32_t kMostPages = 1U << 24;
inline constexpr std::uint32_t kMostPageTokens = 256;
inline constexpr std::uint32_t kMostStates = 1U << 16;

using Checksum = std::array<std::uint32_t, 4>;  // of device memory

struct EnteredPage {
  std::uint32_t page = 0;
  std::uint32_t before = kRoot;
  std::span<const std::uint32_t> tokens;
  Checksum content{};
};

struct EnteredState {
  std::uint32_t slot = 0;
  std::uint32_t page = 0;
  Checksum content{};
};

// The pages whose entries are whole, each after the page that it follows, and the states after pages.
struct Entries {
  std::vector<EnteredPage> pages;
  std::vector<EnteredState> states;
  // Entries that claim to be complete but fail a check, or that follow a page without a valid entry.
  std::uint64_t doubtful = 0;
  // Pages to which the writer's steps may have been writing when it ended: those that were ever given to a step and
  // have no complete entry.
  std::vector<std::uint32_t> open;
  std::vector<std::uint32_t> tokens;  // EnteredPage::tokens points into this
};

class Directory {
 public:
  // Makes new shared memory with this description and no pages. Its size can't change from then on.
  static Result<std::unique_ptr<Directory>> create(const Description& description);
  // Maps what another process created. kCorrupt says what is wrong with it.
  static Result<std::unique_ptr<Directory>> open(const UniqueFd& fd);
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  const Description& description() const { return description_; }
  // Gives the descriptor of what create() made to the caller.
  UniqueFd take_descriptor() { return std::move(fd_); }

  // ---- writing, by the one process that owns the KV pages now ----
  // Enters that `page` holds the keys and values of these page_tokens tokens, after `before`, and that `content` is
  // the checksum of its bytes. A window page must leave no later than the page to which it belongs.
  void enter(std::uint32_t page, std::uint32_t before, std::span<const std::uint32_t> tokens,
             const Checksum& content);
  // Withdraws the page's entry: steps may write to the page from now on.
  void leave(std::uint32_t page);
  // Enters that the slot holds the states after `page`, which is entered already, and that `content` is the checksum
  // of its bytes. Call leave_state() for the slot before leave() for the page.
  void enter_state(std::uint32_t slot, std::uint32_t page, const Checksum& content);
  void leave_state(std::uint32_t slot);
  // Withdraws all entries.
  void empty();

  // ---- reading: the writer has ended ----
  Entries entries() const;

 private:
  Directory() = default;
  std::byte* entry(std::uint32_t page) const;
  std::byte* state_entry(std::uint32_t slot) const;
  void read_states(Entries& entries) const;
  std::uint64_t sum(std::uint64_t epoch, std::uint32_t page, std::uint32_t before,
                    std::span<const std::uint32_t> tokens, const Checksum& content) const;
  std::uint64_t epoch() const;

  Description description_;
  UniqueFd fd_;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t pages_offset_ = 0;
};

}  // namespace bulkhead::vault
