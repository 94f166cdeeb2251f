// In a chain, an attention kernel waits for the kernel before it. While it waits, it loads keys and values, so that
// they are in the device's caches when it needs them: those of the splits with which its subgroups begin.
#ifdef BULKHEAD_CHAINED
// The kernel loads a word of each sector of the first pages of a subgroup's split. kTouchParts workgroups share them;
// this one is number `part` of these.
const uint kTouchPages = 2;
const uint kPageTouches = (kHeadBytes / 32u + kLanes * kTouchParts - 1u) / (kLanes * kTouchParts);
const uint kTouchWords = kTouchPages * kPageTouches * 2u;

void touch_split(uint page_table, Splits all, uint kv_head, uint part, out uint touched[kTouchWords]) {
  uint start = split_begin(all, gl_SubgroupID), end = split_end(all, gl_SubgroupID);
  [[unroll]] for (uint i = 0; i < kTouchWords; i++) touched[i] = 0u;
  if (start >= all.end) return;
  uint pages[kTouchPages];
  [[unroll]] for (uint b = 0; b < kTouchPages; b++) {
    pages[b] = Words(push.pages).v[page_table + min(start + b * kPageTokens, end - 1u) / kPageTokens];
  }
  [[unroll]] for (uint b = 0; b < kTouchPages; b++) {
    uint64_t at = page_at(pages[b]) + kv_head * kHeadBytes;
    [[unroll]] for (uint i = 0; i < kPageTouches; i++) {
      uint sector = min((i * kTouchParts + part) * kLanes + gl_SubgroupInvocationID, kHeadBytes / 32u - 1u) * 32u;
      touched[(b * kPageTouches + i) * 2u] = Words(push.keys + at + sector).v[0];
      touched[(b * kPageTouches + i) * 2u + 1u] = Words(push.values + at + sector).v[0];
    }
  }
}

// A compiler removes loads that nothing uses. So this function turns the words into one that nobody reads.
void keep_touched(uint touched[kTouchWords]) {
  uint all = 0u;
  [[unroll]] for (uint i = 0; i < kTouchWords; i++) all ^= touched[i];
  if (all == 0x9e3779b9u) WordsOut(push.chain_counts + push.chain_link * 128u).v[1] = all;
}
#endif
