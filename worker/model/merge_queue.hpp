// The queue of possible merges: lowest rank first, and within a rank leftmost place first. A few items are kept in a
// heap. For a long word, each rank has a bucket, and the buckets are visited once, in rising order. A merge may make
// a pair of a lower rank than the bucket being visited; such a pair always lies left of what is left in that bucket,
// so it goes to the heap, which is emptied first. So each of millions of items costs a few nanoseconds; a heap of
// them would cost a cache miss at every level.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace bulkhead::model {

class MergeQueue {
 public:
  struct Item {
    std::uint32_t rank;
    std::uint32_t at;
  };

  // Prepares for a word of `symbols` symbols, with ranks below `ranks`. The queue must be empty: it is popped to the
  // end each time.
  void start(std::uint32_t ranks, std::size_t symbols);

  // After the first pop, `at` must be at most that of the item popped last.
  void push(std::uint32_t rank, std::uint32_t at) {
    if (rank < heap_below_) {
      heap_.push_back(std::uint64_t{rank} << 32 | at);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    } else {
      push_to_bucket(rank, at);
    }
  }

  std::optional<Item> pop() {
    if (!heap_.empty()) {
      const std::uint64_t best = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      heap_.pop_back();
      return Item{static_cast<std::uint32_t>(best >> 32), static_cast<std::uint32_t>(best)};
    }
    if (cursor_ == cursor_end_ && !refill()) return std::nullopt;
    return Item{static_cast<std::uint32_t>(heap_below_ - 1), *cursor_++};
  }

  // Returns a place that will come up soon and is worth prefetching.
  std::uint32_t upcoming() const {
    constexpr std::ptrdiff_t kAhead = 8;
    return cursor_end_ - cursor_ > kAhead ? cursor_[kAhead] : 0;
  }

 private:
  static constexpr std::uint32_t kNone = ~0U;
  static constexpr std::uint32_t kUnsorted = 1U << 31;

  // Buckets are lists of chunks, which are reused: the memory is for the items that wait at once, whatever their
  // ranks.
  struct Chunk {
    static constexpr std::uint32_t kItems = 62;
    std::uint32_t next;
    std::uint32_t count;
    std::uint32_t at[kItems];
  };
  static constexpr std::uint32_t kSlabChunks = 4096;
  struct Bucket {
    std::uint32_t first = kNone;
    std::uint32_t last = kNone;  // plus kUnsorted, if an item came after one to the right of it
  };

  Chunk& chunk(std::uint32_t index) { return slabs_[index / kSlabChunks][index % kSlabChunks]; }
  std::uint32_t take_chunk();
  void push_to_bucket(std::uint32_t rank, std::uint32_t at);
  void show_chunk();
  bool refill();
  void gather(std::uint32_t first);

  std::vector<std::uint64_t> heap_;  // rank, then place
  std::uint64_t heap_below_ =
      0;  // ranks below this go to the heap; the visited bucket is the last of them

  const std::uint32_t* cursor_ =
      nullptr;  // what is left of the visited bucket, or of its chunk
  const std::uint32_t* cursor_end_ = nullptr;
  std::uint32_t visited_ = kNone;  // that chunk
  std::vector<std::uint32_t> sorted_;
  std::vector<std::uint32_t> spare_;

  std::vector<Bucket> buckets_;
  std::vector<std::uint64_t> filled_;  // one bit for each bucket
  std::vector<std::unique_ptr<Chunk[]>> slabs_;
  std::uint32_t chunks_ = 0;
  std::uint32_t free_ = kNone;
};

}  // namespace bulkhead::model
