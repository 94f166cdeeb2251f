// Partial results of attention in memory: one workgroup writes them and another reads them. The includer has `push`.
#ifdef BULKHEAD_CHAINED
layout(buffer_reference, std430, buffer_reference_align = 16) nonprivate buffer PartialRef { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) nonprivate buffer PartialFloatRef { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) nonprivate buffer DoneRef { uint v[]; };
#else
layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer PartialRef { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer PartialFloatRef { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) coherent buffer DoneRef { uint v[]; };
#endif


// The bytes of a column's partial results.
uint64_t column_partials() { return uint64_t(kHeads) * push.most_splits * (kPartialFloats * 4u); }
uint64_t partial_at(uint64_t base, uint h, uint split) {
  return base + (h * push.most_splits + split) * (kPartialFloats * 4u);
}
