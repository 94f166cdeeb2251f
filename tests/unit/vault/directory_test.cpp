// The directory of a vault, as a worker writes it, and as a dying process, or one out of control,
// leaves it.
#include "worker/vault/directory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include <gtest/gtest.h>

namespace bulkhead::vault {
namespace {

constexpr std::uint32_t kPages = 24, kPageTokens = 4;

Description description() {
  Description d;
  d.identity = "model 1\ndevice a\n";
  d.context = 64;
  d.pages = kPages;
  d.page_tokens = kPageTokens;
  d.vocabulary = 1000;
  d.weight_blocks = 2;
  d.block_bytes = {4096, 8192, 65536};
  d.checksums = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  return d;
}

std::array<std::uint32_t, kPageTokens> tokens_of(std::uint32_t page) {
  return {page, page + 1, page + 2, 999};
}

Checksum content_of(std::uint32_t page) {
  return {page * 7, page ^ 5, 3, page};
}

// A directory, and its bytes as another process can reach them.
struct Shared {
  std::unique_ptr<Directory> directory;
  UniqueFd fd;
  std::span<std::byte> bytes;

  Shared() {
    directory = *Directory::create(description());
    fd = directory->take_descriptor();
    const auto size = static_cast<std::size_t>(::lseek(fd.get(), 0, SEEK_END));
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    EXPECT_NE(memory, MAP_FAILED);
    bytes = {static_cast<std::byte*>(memory), size};
  }
  ~Shared() { ::munmap(bytes.data(), bytes.size()); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  void enter(std::uint32_t page, std::uint32_t before) const {
    directory->enter(page, before, tokens_of(page), content_of(page));
  }
  std::vector<std::byte> copy() const { return {bytes.begin(), bytes.end()}; }
  std::span<std::byte> entry(std::uint32_t page) const {
    constexpr std::size_t kStride = 32 + kPageTokens * 4;
    return bytes.subspan(bytes.size() - kPages * kStride + page * kStride, kStride);
  }
  std::vector<std::uint32_t> believed() const {
    const auto opened = Directory::open(fd);
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    std::vector<std::uint32_t> pages;
    for (const EnteredPage& page : (*opened)->entries().pages)
      pages.push_back(page.page);
    return pages;
  }
};

TEST(Directory, ShowsAnotherProcessWhatWasEntered) {
  const Shared shared;
  shared.enter(7, kRoot);
  shared.enter(2, 7);
  shared.enter(9, 7);
  shared.enter(0, 2);
  const auto opened = Directory::open(shared.fd);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  EXPECT_EQ((*opened)->description(), description());
  const Entries kept = (*opened)->entries();
  EXPECT_EQ(kept.doubtful, 0U);
  ASSERT_EQ(kept.pages.size(), 4U);
  std::map<std::uint32_t, std::size_t> at;
  for (std::size_t i = 0; i < kept.pages.size(); ++i) {
    const EnteredPage& page = kept.pages[i];
    at[page.page] = i;
    EXPECT_TRUE(std::ranges::equal(page.tokens, tokens_of(page.page)));
    EXPECT_EQ(page.content, content_of(page.page));
    if (page.before != kRoot) {
      ASSERT_TRUE(at.contains(page.before)) << "a page comes before the one that it follows";
    }
  }
  EXPECT_EQ(kept.pages[at[0]].before, 2U);
  EXPECT_EQ(kept.pages[at[7]].before, kRoot);
}

TEST(Directory, APageThatLeftTakesItsFollowersAlong) {
  const Shared shared;
  shared.enter(1, kRoot);
  shared.enter(2, 1);
  shared.enter(3, 2);
  shared.directory->leave(2);
  EXPECT_EQ(shared.believed(), std::vector<std::uint32_t>{1});
  shared.enter(2, 1);  // the page that follows it comes back, too
  EXPECT_EQ(shared.believed().size(), 3U);
}

TEST(Directory, ANewEpochEmptiesIt) {
  const Shared shared;
  shared.enter(1, kRoot);
  shared.directory->empty();
  EXPECT_TRUE(shared.believed().empty());
  EXPECT_EQ(shared.directory->entries().doubtful, 0U);
  shared.enter(1, kRoot);
  EXPECT_EQ(shared.believed().size(), 1U);
}

TEST(Directory, ShowsWhichSlotsHoldStatesAfterWhichPages) {
  Description with_states = description();
  with_states.states = 3;
  const auto directory = *Directory::create(with_states);
  const UniqueFd fd = directory->take_descriptor();
  const auto slots = [&fd] {
    const auto opened = Directory::open(fd);
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    const Entries kept = (*opened)->entries();
    EXPECT_EQ(kept.doubtful, 0U);
    std::map<std::uint32_t, std::uint32_t> made;
    for (const EnteredState& state : kept.states)
      made[state.slot] = state.page;
    return made;
  };
  using Slots = std::map<std::uint32_t, std::uint32_t>;
  EXPECT_EQ(slots(), Slots{});
  directory->enter_state(0, 7, {1, 2, 3, 4});
  directory->enter_state(2, 9, {5, 6, 7, 8});
  directory->enter_state(3, 9, {});  // slot 3 does not exist
  EXPECT_EQ(slots(), (Slots{{0, 7}, {2, 9}}));
  directory->leave_state(0);
  EXPECT_EQ(slots(), (Slots{{2, 9}}));
  directory->enter_state(0, 1, {9, 0, 9, 0});
  EXPECT_EQ(slots(), (Slots{{0, 1}, {2, 9}}));

  const auto size = static_cast<std::size_t>(::lseek(fd.get(), 0, SEEK_END));
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  // The entry names another page than was entered, or has another checksum of the slot.
  for (const std::size_t from_end : {7, 1}) {
    std::uint32_t& word = static_cast<std::uint32_t*>(memory)[size / 4 - from_end];
    word ^= 1;
    const Entries kept = directory->entries();
    EXPECT_EQ(kept.doubtful, 1U);
    ASSERT_EQ(kept.states.size(), 1U);
    EXPECT_EQ(kept.states[0].slot, 0U);
    EXPECT_EQ(kept.states[0].content, (Checksum{9, 0, 9, 0}));
    word ^= 1;
  }
  ::munmap(memory, size);
  directory->empty();
  EXPECT_EQ(slots(), Slots{});
}

TEST(Directory, CirclesAndChainsWithoutABeginningAreNotBelieved) {
  const Shared shared;
  shared.enter(5, 5);  // the page follows itself
  shared.enter(1, 2);
  shared.enter(2, 3);
  shared.enter(3, 1);
  shared.enter(8, 20);  // the page before it does not exist
  shared.enter(9, kPages + 3);
  shared.enter(4, kRoot);
  EXPECT_EQ(shared.believed(), std::vector<std::uint32_t>{4});
}

TEST(Directory, AWriterThatStopsAnywhereLeavesNoFalsePage) {
  const Shared shared;
  shared.enter(3, kRoot);
  const std::vector<std::byte> before = shared.copy();
  shared.directory->leave(3);
  shared.directory->enter(3, kRoot, std::array<std::uint32_t, kPageTokens>{9, 9, 9, 9},
                          content_of(3));
  const std::vector<std::byte> after = shared.copy();
  // The stores that change the entry from one state to the other, in all combinations of four-byte words: a reader
  // must accept only one of the two states.
  const std::size_t offset = static_cast<std::size_t>(shared.entry(3).data() - shared.bytes.data());
  constexpr std::size_t kWords = (32 + kPageTokens * 4) / 4;
  for (std::uint32_t mix = 0; mix < 1U << kWords; ++mix) {
    for (std::size_t word = 0; word < kWords; ++word) {
      const auto& from = (mix >> word & 1) != 0 ? after : before;
      std::memcpy(shared.bytes.data() + offset + word * 4, from.data() + offset + word * 4, 4);
    }
    const auto opened = Directory::open(shared.fd);
    ASSERT_TRUE(opened.ok());
    for (const EnteredPage& page : (*opened)->entries().pages) {
      const bool old = std::ranges::equal(page.tokens, tokens_of(3));
      const bool fresh = std::ranges::all_of(page.tokens, [](std::uint32_t t) { return t == 9; });
      ASSERT_TRUE(old || fresh) << "mix " << mix;
    }
  }
}

TEST(Directory, EveryChangedByteOfTheDescriptionIsSeen) {
  const Shared shared;
  const std::size_t end = shared.bytes.size() - shared.entry(0).size() * kPages;
  const std::size_t summed = 128 + description().identity.size() + 3 * 8 + 2 * 16;
  for (std::size_t at = 0; at < end; ++at) {
    // The epoch, and bytes that are never read.
    if ((at >= 72 && at < 128) || at >= summed) continue;
    for (const int bit : {0, 3, 7}) {
      shared.bytes[at] ^= static_cast<std::byte>(1 << bit);
      const auto opened = Directory::open(shared.fd);
      EXPECT_FALSE(opened.ok()) << "byte " << at << ", bit " << bit;
      shared.bytes[at] ^= static_cast<std::byte>(1 << bit);
    }
  }
  EXPECT_TRUE(Directory::open(shared.fd).ok());
}

TEST(Directory, AnyChangeOfAnEntryHidesItAndNothingElse) {
  const Shared shared;
  for (std::uint32_t page = 0; page < 6; ++page)
    shared.enter(page, page == 0 ? kRoot : page - 1);
  for (std::size_t at = 0; at < shared.entry(3).size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      shared.entry(3)[at] ^= static_cast<std::byte>(1 << bit);
      const auto opened = Directory::open(shared.fd);
      const Entries kept = (*opened)->entries();
      // Its sequence number may change to another even one: then it is as whole as before.
      const bool still_whole = at < 4 && kept.pages.size() == 6;
      if (!still_whole) {
        EXPECT_EQ(kept.pages.size(), 3U) << at << " " << bit;
        for (const EnteredPage& page : kept.pages)
          EXPECT_LT(page.page, 3U);
      }
      shared.entry(3)[at] ^= static_cast<std::byte>(1 << bit);
    }
  }
}

TEST(Directory, RandomDamageIsSurvivedAndNothingFalseBelieved) {
  std::mt19937 random(11);
  const Shared shared;
  for (std::uint32_t page = 0; page < kPages; ++page)
    shared.enter(page, page % 5 == 0 ? kRoot : page - 1);
  const std::vector<std::byte> whole = shared.copy();
  for (int round = 0; round < 20000; ++round) {
    std::ranges::copy(whole, shared.bytes.begin());
    for (int changes = 1 + static_cast<int>(random() % 8); changes > 0; --changes) {
      const std::size_t at = random() % shared.bytes.size();
      shared.bytes[at] = static_cast<std::byte>(random());
    }
    const auto opened = Directory::open(shared.fd);
    if (!opened.ok()) {
      EXPECT_FALSE(opened.error().message().empty());
      continue;
    }
    EXPECT_EQ((*opened)->description(), description());
    for (const EnteredPage& page : (*opened)->entries().pages) {
      ASSERT_LT(page.page, kPages);
      ASSERT_TRUE(std::ranges::equal(page.tokens, tokens_of(page.page)));
      ASSERT_EQ(page.before, page.page % 5 == 0 ? kRoot : page.page - 1);
    }
  }
}

TEST(Directory, OtherFilesAreRefused) {
  EXPECT_FALSE(Directory::open(UniqueFd()).ok());
  EXPECT_FALSE(Directory::open(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC))).ok());
  const UniqueFd unsealed(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 1 << 20), 0);
  const auto opened = Directory::open(unsealed);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message().find("not sealed"), std::string::npos);
  ASSERT_EQ(::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_FALSE(Directory::open(unsealed).ok());
}

TEST(Directory, BoundsAreKept) {
  Description d = description();
  d.block_bytes.assign(kMostBlocks + 1, 4096);
  EXPECT_FALSE(Directory::create(d).ok());
  d = description();
  d.checksums.pop_back();
  EXPECT_FALSE(Directory::create(d).ok());
  const Shared shared;
  shared.enter(kPages, kRoot);  // out of range, so nothing happens
  shared.directory->leave(kPages + 100);
  EXPECT_TRUE(shared.believed().empty());
}

}  // namespace
}  // namespace bulkhead::vault
