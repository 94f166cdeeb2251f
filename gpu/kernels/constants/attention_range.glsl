// A kernel computes the attention of the columns at positions [kFrom, kUntil) (kernels.hpp, AttentionRange).
CONSTANTS(AttentionRangeConstants, 20)
CONSTANT(20, kFrom, from, 0u)
CONSTANT(21, kUntil, until, 0xffffffffu)
CONSTANTS_END
