// The constants of the kernels of gated delta nets and of Mamba-2 (delta.glsl).
CONSTANTS(DeltaConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 64u)
CONSTANT(1, kSize, size, 128u)  // entries of a head of q or k; a multiple of four
CONSTANT(2, kKeyHeads, key_heads, 1u)
CONSTANT(3, kValueHeads, value_heads, 1u)
CONSTANT(4, kTaps, taps, 4u)    // taps of the convolution
CONSTANT(5, kParts, parts, 8u)  // lanes that share a value's keys; a power of two
CONSTANT(6, kLanes, lanes, 8u)  // subgroup size
CONSTANT(7, kNeighbours, neighbours, 0u)  // 1: the value heads of a key head are neighbours
CONSTANT(8, kForm, form, 0u)    // InputForm of the result
CONSTANT(9, kValueSize, value_size, 128u)  // entries of a value head; a multiple of four
CONSTANT(10, kRule, rule, 0u)   // StateRule
CONSTANT(11, kNormed, normed, 128u)  // entries of the result that are normed together
CONSTANT(12, kTogether, together, 1u)  // the scan: columns whose inputs are loaded at the same time
CONSTANT(13, kFew, few, 0u)     // the scan: the most long runs that get a dispatch of their own; 0: none
CONSTANT(14, kNorms, norms, 1u)  // 0: the result is not normed
CONSTANTS_END
