// Running softmax of some heads: the largest score (in powers of two), the sum of weights, and the weighted values,
// whose entries are spread over the lanes.
#ifndef BULKHEAD_HAS_LANES
layout(constant_id = 0) const uint kLanes = 8;
#endif
layout(constant_id = 5) const uint kHeadsTogether = 1;  // query heads of one KV head in a workgroup: a CPU's
layout(constant_id = 6) const uint kOutForm = 0;  // the result is a product's input
layout(constant_id = 7) const uint kMinimumSplit = 64;  // positions
#ifdef BULKHEAD_ROWS
const uint kRowsMapping = 1;
#else
layout(constant_id = 8) const uint kRowsMapping = 0;    // how a value shared by all lanes is best loaded
#endif
layout(constant_id = 9) const uint kMaximumSplits = 16;

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
