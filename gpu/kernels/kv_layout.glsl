// Where keys and values lie. A layer has its keys, then its values, each [page][kv head] of 32 positions:
//   keys   [head entry / entries of 16 bytes][position] of 16 bytes: lanes are positions and load side by side
//   values [position][head entry]:                                  lanes are head entries and load side by side
// Heads are padded with zeros to a multiple of eight entries.
#include "page_tokens.glsl"

layout(constant_id = 1) const uint kHead = 64;
layout(constant_id = 2) const uint kHeads = 8;
layout(constant_id = 3) const uint kKvHeads = 8;
layout(constant_id = 4) const uint kKvFloat = 0;  // 1: float32, 0: float16

const uint kHeadPadded = (kHead + 7u) & ~7u;
const uint kEntryBytes = kKvFloat != 0u ? 4u : 2u;
const uint kEntriesOf16 = 16u / kEntryBytes;
const uint kHeadBytes = kPageTokens * kHeadPadded * kEntryBytes;  // of one KV head in a page
const uint kPageBytes = kKvHeads * kHeadBytes;
