// Results that say themselves which link of a chain made them, so that whoever needs them asks for them alone: no fence, no
// count, no second round to memory. A step of one column hands its residual stream and its products' inputs on so.
//
// A word has a result of sixteen bits in its upper or lower half and the link's tag in the other; a word is stored and read
// as one. A tag comes once in a step: embed_units.comp sets all words to its own or to zero, where a barrier follows, and link
// n's is n + 2.
//
//   input   a word an entry: a half below, the tag above
//   stream  two words an entry, a float's upper and lower half above, the tag below.
//
// Who may overwrite them? A link's workgroups ask for all of an input before they store anything. So the first result of
// link n says that all of those that made its input had asked for theirs, and so on back to the link that counted last.

#ifdef BULKHEAD_CHAINED
layout(buffer_reference, std430, buffer_reference_align = 16) devicecoherent volatile buffer TaggedQuads { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) devicecoherent volatile buffer TaggedPairs { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) nonprivate buffer TaggedWords { uint v[]; };

uvec4 tagged_quad(uint64_t base, uint index) { return TaggedQuads(base).v[index]; }
uvec2 tagged_pair(uint64_t base, uint index) { return TaggedPairs(base).v[index]; }
void tagged_store(uint64_t base, uint index, uint word) {
  atomicStore(TaggedWords(base).v[index], word, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
}
#else
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer TaggedWords { uint v[]; };
void tagged_store(uint64_t base, uint index, uint word) { TaggedWords(base).v[index] = word; }
#endif

const uint kTagOfEmbedding = 1;
uint tag_of_link(uint link) { return link + 2u; }

void store_tagged_input(uint64_t base, uint k, float value, uint tag) {
  uint half_word = packFloat2x16(f16vec2(float16_t(clamp(value, -65504.0, 65504.0)), float16_t(0.0)));
  tagged_store(base, k, half_word & 0xffffu | (tag << 16));
}
void store_tagged_float(uint64_t base, uint index, float value, uint tag) {
  uint bits = floatBitsToUint(value);
  tagged_store(base, index * 2u, bits & 0xffff0000u | tag);
  tagged_store(base, index * 2u + 1u, bits << 16 | tag);
}

bool has_low_tag(uvec2 words, uint tag) { return (((words.x ^ tag) | (words.y ^ tag)) & 0xffffu) == 0u; }
bool has_high_tag(uvec4 words, uint tag) {
  uint other = tag << 16;
  return ((words.x ^ other) | (words.y ^ other) | (words.z ^ other) | (words.w ^ other)) < 0x10000u;
}
float tagged_float(uvec2 words) { return uintBitsToFloat(words.x & 0xffff0000u | words.y >> 16); }
