// A kernel computes the attention of the columns at positions [kFrom, kUntil) (kernels.hpp, AttentionRange).
CONSTANTS(AttentionRangeConstants, 21)
CONSTANT(21, kFrom, from, 0u)
CONSTANT(22, kUntil, until, 0xffffffffu)
CONSTANTS_END
