// Where keys and values are stored. A layer has its keys, then its values, each [page][kv head] of 32 positions:
//   keys   [head entry / entries of a cell][position] of cells: lanes are positions and load neighbouring cells
//   values [position][head entry]:                              lanes are head entries and load neighbouring entries
// A cell has 16 bytes, which are 8 halves or 4 floats; with bytes it has 8 entries. Heads are padded with zeros to a
// multiple of eight entries; with bytes, to a multiple of 32.
//
// Bytes (Q8): an entry is (byte - 128) * scale; 32 neighbouring entries of a position share a scale, which is a half.
// A page's scales follow its bytes, as [block][position] for keys and [position][block] for values.
#include "page_tokens.glsl"

#include "constants/heads.glsl"
#include "constants/page_stride.glsl"

#include "values/kv_format.glsl"
const uint kScaleBlock = 32;  // entries

const uint kHeadPadded = kKvFormat == kKvQ8 ? (kHead + 31u) & ~31u : (kHead + 7u) & ~7u;
const uint kEntryBytes = kKvFormat == kKvQ8 ? 1u : kKvFormat == kKvFloat ? 4u : 2u;
const uint kCellEntries = kKvFormat == kKvFloat ? 4u : 8u;
const uint kCellBytes = kCellEntries * kEntryBytes;
const uint kBlocks = kHeadPadded / kScaleBlock;
const uint kScalesAt = kPageTokens * kHeadPadded;  // Q8: in a head's part of a page
const uint kHeadBytes =
    kPageTokens * (kHeadPadded * kEntryBytes + (kKvFormat == kKvQ8 ? kHeadPadded / kScaleBlock * 2u : 0u));
const uint kPageBytes = kKvHeads * kHeadBytes;

// Returns how many bytes after a layer's first key (or value) those of a page begin. Pages of a cache that grows may
// begin at any multiple of kPageStride.
uint64_t page_at(uint page) { return uint64_t(page) * (kPageStride == 0u ? kPageBytes : kPageStride); }

// Q8: return the address of the scale of a block of a key, or of a value; `head_at` is a head's part of a page.
uint64_t key_scale_at(uint64_t head_at, uint slot, uint block) {
  return head_at + kScalesAt + (block * kPageTokens + slot) * 2u;
}
uint64_t value_scale_at(uint64_t head_at, uint slot, uint block) {
  return head_at + kScalesAt + (slot * kBlocks + block) * 2u;
}

// Returns the four entries of a word of bytes, without their scale: a byte in the mantissa of 2^23 is exact.
vec4 bytes_of(uint word) {
  vec4 made;
  [[unroll]] for (uint i = 0; i < 4; i++) {
    made[i] = uintBitsToFloat(0x4b000000u | ((word >> (8u * i)) & 255u)) - 8388736.0;
  }
  return made;
}
float scale_at(uint64_t at) {
  return unpackHalf2x16(Words(at & ~3ul).v[0] >> ((uint(at) & 2u) * 8u)).x;
}
