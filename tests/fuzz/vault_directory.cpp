// Reads the directory of a vault as a successor does, with any bytes in it. What the successor accepts must be within
// bounds, in order and without circles.
//
// An input is read unchanged, and also as orders that fill and damage a proper directory, so that mutations reach the
// entries.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "worker/vault/directory.hpp"

using namespace bulkhead;
using namespace bulkhead::vault;

namespace {

constexpr std::uint32_t kPages = 16, kPageTokens = 2, kStates = 4;

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const UniqueFd& fd) {
  const auto opened = Directory::open(fd);
  if (!opened.ok()) return require(!opened.error().message().empty());
  const Description& described = (*opened)->description();
  require(described.pages <= kMostPages && described.block_bytes.size() <= kMostBlocks);
  const Entries kept = (*opened)->entries();
  require(kept.pages.size() <= described.pages);
  std::vector<bool> seen(described.pages);
  for (const EnteredPage& page : kept.pages) {
    require(page.page < described.pages && !seen[page.page]);
    require(page.before == kRoot || (page.before < described.pages && seen[page.before]));
    require(page.tokens.size() == described.page_tokens);
    for (const std::uint32_t token : page.tokens)
      require(token < described.vocabulary);
    seen[page.page] = true;
  }
  require(kept.states.size() <= described.states);
  for (const EnteredState& state : kept.states)
    require(state.slot < described.states && state.page < described.pages);
  if (described.pages == 0) return;
  // Enters what the successor continues with.
  (*opened)->enter(0, kRoot, std::vector<std::uint32_t>(described.page_tokens, 0), {});
  (*opened)->leave(described.pages - 1);
  (*opened)->enter_state(0, 0, {});
  (*opened)->leave_state(described.states);
  (*opened)->empty();
  require((*opened)->entries().states.empty());
  require((*opened)->entries().pages.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const UniqueFd plain(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  require(::ftruncate(plain.get(), static_cast<off_t>(size)) == 0);
  require(::pwrite(plain.get(), data, size, 0) == static_cast<ssize_t>(size));
  require(::fcntl(plain.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  check(plain);

  Description description;
  description.identity = "model\n";
  description.pages = kPages;
  description.page_tokens = kPageTokens;
  description.vocabulary = 100;
  description.states = kStates;
  description.block_bytes = {4096};
  description.weight_blocks = 1;
  description.checksums = {{1, 2, 3, 4}};
  auto made = *Directory::create(description);
  const UniqueFd fd = made->take_descriptor();
  const off_t end = ::lseek(fd.get(), 0, SEEK_END);
  // Four bytes for each order: a page, the page before it, its tokens, and whether something is damaged.
  for (std::size_t at = 0; at + 4 <= size; at += 4) {
    const std::uint32_t page = data[at] % (kPages + 1), follows = data[at + 1] % (kPages + 2);
    const std::uint32_t tokens[] = {data[at + 2], data[at + 2] / 2U};
    made->enter(page, follows == kPages + 1 ? kRoot : follows, tokens, {page, follows, 0, 1});
    const std::uint8_t spoil = data[at + 3];
    if (spoil % 4 == 0) made->enter_state(spoil / 4 % kStates, page, {page, 0, 0, spoil});
    if (spoil % 4 == 1) made->leave_state(spoil / 16 % kStates);
    if (spoil % 4 == 1) made->leave(spoil / 4 % kPages);
    if (spoil % 4 == 2) require(::pwrite(fd.get(), &spoil, 1, end - 1 - spoil * 2 % end) == 1);
  }
  check(fd);
  return 0;
}
