// Writes the entries of a key or a value to its page. The includer has kv_layout.glsl and kLanes, the workgroup's
// invocations.

// With Q8 pages: the entries before they are rounded.
const uint kMadeFloats = kKvFormat == kKvQ8 ? kHeadPadded : 1u;
shared float to_round[kMadeFloats];

layout(buffer_reference, std430, buffer_reference_align = 2) buffer ShortsOut { uint16_t v[]; };

// Writes to_round as bytes. Each 32 entries have a scale, which maps their largest magnitude to 127.
void write_bytes(uint64_t head_at, uint slot, bool is_value, uint lane) {
  for (uint word = lane; word < kHeadPadded / 4u; word += kLanes) {
    uint block = word / (kScaleBlock / 4u);
    float largest = 0.0;
    for (uint i = 0; i < kScaleBlock; i++) largest = max(largest, abs(to_round[block * kScaleBlock + i]));
    precise float wanted = min(largest * (1.0 / 127.0), 65504.0);
    uint bits = half_bits(wanted);
    float scale = unpackHalf2x16(bits).x;
    precise float inverse = scale == 0.0 ? 0.0 : 1.0 / scale;
    uint packed = 0u;
    [[unroll]] for (uint i = 0; i < 4; i++) {
      precise float scaled = to_round[word * 4u + i] * inverse;
      packed |= uint(int(clamp(roundEven(scaled), -127.0, 127.0)) + 128) << (8u * i);
    }
    uint64_t at = is_value ? head_at + slot * kHeadPadded + word * 4u
                           : head_at + ((word / 2u) * kPageTokens + slot) * kCellBytes + (word & 1u) * 4u;
    WordsOut(at).v[0] = packed;
    if (word % (kScaleBlock / 4u) == 0u) {
      uint64_t scale_place = is_value ? value_scale_at(head_at, slot, block) : key_scale_at(head_at, slot, block);
      ShortsOut(scale_place).v[0] = uint16_t(bits);
    }
  }
}

// Writes entries pair * 2 and pair * 2 + 1. With Q8 pages it only stores them for later: the caller must pass a
// barrier and then call write_bytes().
void write_pair(uint64_t head_at, uint slot, bool is_value, uint pair, float a, float b) {
  uint i = pair * 2u;
  if (kKvFormat == kKvQ8) {
    to_round[i] = a;
    to_round[i + 1u] = b;
    return;
  }
  uint64_t at = is_value ? head_at + (slot * kHeadPadded + i) * kEntryBytes
                         : head_at + ((i / kCellEntries) * kPageTokens + slot) * 16u + (i % kCellEntries) * kEntryBytes;
  if (kKvFormat == kKvFloat) {
    WordsOut(at).v[0] = floatBitsToUint(a);
    WordsOut(at).v[1] = floatBitsToUint(b);
  } else {
    WordsOut(at).v[0] = half_bits(a) | (half_bits(b) << 16);
  }
}
