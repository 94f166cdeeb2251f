#include "worker/model/merge_queue.hpp"

#include <array>
#include <bit>

namespace bulkhead::model {
namespace {

// For fewer entries, the walk over the buckets costs more than the heap.
constexpr std::size_t kLeastForBuckets = 512;

// Sorts by place. Many places are sorted digit by digit, which takes a fifth of the time of comparing them.
void sort_places(std::vector<std::uint32_t>& places, std::vector<std::uint32_t>& spare) {
  constexpr std::size_t kLeastForDigits = 1024;
  constexpr unsigned kDigitBits = 11;
  constexpr std::uint32_t kDigits = 1U << kDigitBits;
  if (places.size() < kLeastForDigits) {
    std::sort(places.begin(), places.end());
    return;
  }
  spare.resize(places.size());
  const auto width =
      static_cast<unsigned>(std::bit_width(*std::max_element(places.begin(), places.end())));
  for (unsigned shift = 0; shift < width; shift += kDigitBits) {
    std::array<std::uint32_t, kDigits> start{};
    for (const std::uint32_t place : places)
      ++start[place >> shift & (kDigits - 1)];
    std::uint32_t sum = 0;
    for (std::uint32_t& each : start) {
      const std::uint32_t count = each;
      each = sum;
      sum += count;
    }
    for (const std::uint32_t place : places)
      spare[start[place >> shift & (kDigits - 1)]++] = place;
    places.swap(spare);
  }
}

}  // namespace

void MergeQueue::start(std::uint32_t ranks, std::size_t symbols) {
  if (symbols < kLeastForBuckets) {
    heap_below_ = std::uint64_t{1} << 32;
    return;
  }
  heap_below_ = 0;
  if (buckets_.size() < ranks) {
    buckets_.resize(ranks);
    filled_.resize((std::size_t{ranks} + 63) / 64);
  }
}

std::uint32_t MergeQueue::take_chunk() {
  std::uint32_t index = free_;
  if (index != kNone) {
    free_ = chunk(index).next;
  } else {
    if (chunks_ % kSlabChunks == 0)
      slabs_.push_back(std::make_unique_for_overwrite<Chunk[]>(kSlabChunks));
    index = chunks_++;
  }
  chunk(index).next = kNone;
  chunk(index).count = 0;
  return index;
}

void MergeQueue::push_to_bucket(std::uint32_t rank, std::uint32_t at) {
  Bucket& bucket = buckets_[rank];
  if (bucket.first == kNone) {
    bucket.first = bucket.last = take_chunk();
    filled_[rank / 64] |= std::uint64_t{1} << rank % 64;
  }
  std::uint32_t index = bucket.last & ~kUnsorted;
  Chunk* last = &chunk(index);
  const bool unsorted =
      (bucket.last & kUnsorted) != 0 || (last->count > 0 && last->at[last->count - 1] > at);
  if (last->count == Chunk::kItems) {
    index = last->next = take_chunk();
    last = &chunk(index);
  }
  last->at[last->count++] = at;
  bucket.last = index | (unsorted ? kUnsorted : 0);
}

void MergeQueue::show_chunk() {
  const Chunk& shown = chunk(visited_);
  cursor_ = shown.at;
  cursor_end_ = shown.at + shown.count;
}

// Takes all entries of an unsorted bucket, in order.
void MergeQueue::gather(std::uint32_t first) {
  sorted_.clear();
  for (std::uint32_t index = first; index != kNone;) {
    Chunk& from = chunk(index);
    sorted_.insert(sorted_.end(), from.at, from.at + from.count);
    const std::uint32_t next = from.next;
    from.next = free_;
    free_ = index;
    index = next;
  }
  sort_places(sorted_, spare_);
  cursor_ = sorted_.data();
  cursor_end_ = sorted_.data() + sorted_.size();
}

// Takes the next chunk of the current bucket, or the next bucket.
bool MergeQueue::refill() {
  if (visited_ != kNone) {
    Chunk& done = chunk(visited_);
    const std::uint32_t next = done.next;
    done.next = free_;
    free_ = visited_;
    visited_ = next;
    if (visited_ != kNone) {
      show_chunk();
      return true;
    }
  }
  for (std::size_t word = heap_below_ / 64; word < filled_.size(); ++word) {
    if (filled_[word] == 0) continue;  // all later buckets are empty, so no mask is needed
    const auto bit = static_cast<std::size_t>(std::countr_zero(filled_[word]));
    filled_[word] &= filled_[word] - 1;
    Bucket& bucket = buckets_[word * 64 + bit];
    heap_below_ = word * 64 + bit + 1;
    if ((bucket.last & kUnsorted) != 0) {
      gather(bucket.first);
    } else {
      visited_ = bucket.first;
      show_chunk();
    }
    bucket = {};
    return true;
  }
  return false;
}

}  // namespace bulkhead::model
