// Running softmax of some heads: the largest score (in powers of two), the sum of weights, and the weighted values,
// whose entries are spread over the lanes.
#include "constants/attention_state.glsl"
#ifdef BULKHEAD_ROWS
const uint kRowsMapping = 1;
#else
const uint kRowsMapping = kByRows;
#endif

// Words of a value row that one lane holds, and head entries in them.
const uint kWordEntries = 4u / kEntryBytes;
const uint kRowWords = kHeadPadded / kWordEntries;
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
