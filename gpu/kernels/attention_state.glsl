// The running softmax of some heads: the largest score (as an exponent of two), the sum of weights, and the weighted
// values, whose entries are distributed over the lanes.
#include "constants/attention_state.glsl"
#include "constants/attention_rules.glsl"
#include "soft_cap.glsl"
#ifdef BULKHEAD_ROWS
const uint kRowsMapping = 1;
#else
const uint kRowsMapping = kByRows;
#endif

// Words of a value row that one lane holds, and head entries in them.
const uint kWordEntries = 4u / kEntryBytes;
const uint kRowWords = (kValueEntries == 0u ? kHeadPadded : (kValueEntries + 7u) & ~7u) / kWordEntries;
const uint kLaneWords = (kRowWords + kLanes - 1u) / kLanes;
const uint kLaneEntries = kLaneWords * kWordEntries;
// A split's partial result: kHeadPadded entries, largest score, sum.
const uint kPartialFloats = kHeadPadded + 8u;

// Returns the positions in a split of a column that sees `visible` positions. It depends on nothing else, so a
// column's order of additions depends only on the column.
uint split_size(uint visible) {
  uint size = kMinimumSplit;
  while (size * kMaximumSplits < visible) size *= 2u;
  return size;
}

// The positions [begin, end) in splits. Splits begin at multiples of `size`, a power of two; of the first split, only
// the positions from `begin` on count.
struct Splits {
  uint begin;
  uint end;
  uint size;
};
uint first_split(Splits splits) { return splits.begin & ~(splits.size - 1u); }
uint split_count(Splits splits) { return (splits.end - first_split(splits) + splits.size - 1u) / splits.size; }
uint split_begin(Splits splits, uint split) { return max(first_split(splits) + split * splits.size, splits.begin); }
uint split_end(Splits splits, uint split) {
  return min(first_split(splits) + (split + 1u) * splits.size, splits.end);
}

uint entry_of(uint lane, uint i) {
  return ((i / kWordEntries) * kLanes + lane) * kWordEntries + i % kWordEntries;
}

// What a column sees of its sequence. Pages before its window are left out: positions count from the first page that
// is not left out, and the first `hidden` positions of that page have no weight.
struct Sight {
  uint positions;
  uint hidden;
  uint page_table;
};
// `info` is the column's entry among the step's columns. If kBehind is not 0, info.x is the column's position and
// info.y is the last position of the column's sequence. Otherwise info.y is the column's position.
Sight sight_of(uvec4 info) {
  uint own = kBehind == 0u ? info.y : info.x;
  uint last = kBehind == 0u ? info.y : min(info.y, own + kBehind);
  uint first = kWindow != 0u && own >= kWindow ? own + 1u - kWindow : 0u;
  uint pages = first / kPageTokens;
  return Sight(last + 1u - pages * kPageTokens, first % kPageTokens, info.z + pages);
}

float capped_score(float score) {
  return kSoftCap == 0u ? score : soft_capped(score, uintBitsToFloat(kSoftCap));
}

// Adds a head's sink to the sum of its weights: the sink is a score without a value. Scores, including the sink's,
// are exponents of two; `maximum` is the largest of the others.
float with_sink(uint64_t sinks, uint head, float maximum, float sum) {
  if (kSinks == 0u) return sum;
  precise float weight = exp2(Floats(sinks).v[head] - maximum);
  precise float all = sum + weight;
  return all;
}
