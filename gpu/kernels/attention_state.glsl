// Running softmax of some heads: the largest score (in powers of two), the sum of weights, and the weighted values,
// whose entries are spread over the lanes.
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

// Positions in a split of a column that sees `visible` positions: a function of these alone, so a column's order of
// additions is its own.
uint split_size(uint visible) {
  uint size = kMinimumSplit;
  while (size * kMaximumSplits < visible) size *= 2u;
  return size;
}

uint entry_of(uint lane, uint i) {
  return ((i / kWordEntries) * kLanes + lane) * kWordEntries + i % kWordEntries;
}

// What a column sees of its sequence. Pages that lie before its window are left out: positions count from the first page
// that does not, whose first `hidden` positions have no weight.
struct Sight {
  uint positions;
  uint hidden;
  uint page_table;
};
Sight sight_of(uint position, uint page_table) {
  uint first = kWindow != 0u && position >= kWindow ? position + 1u - kWindow : 0u;
  uint pages = first / kPageTokens;
  return Sight(position + 1u - pages * kPageTokens, first % kPageTokens, page_table + pages);
}

float capped_score(float score) {
  return kSoftCap == 0u ? score : soft_capped(score, uintBitsToFloat(kSoftCap));
}

// The sum of a head's weights and that of its sink: a score of which there is no value. Scores, the sink's too, are in powers
// of two; `maximum` is the largest of the others.
float with_sink(uint64_t sinks, uint head, float maximum, float sum) {
  if (kSinks == 0u) return sum;
  precise float weight = exp2(Floats(sinks).v[head] - maximum);
  precise float all = sum + weight;
  return all;
}
