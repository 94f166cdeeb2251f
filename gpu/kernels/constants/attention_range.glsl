// Of which columns a kernel makes the attention: those at positions [kFrom, kUntil) (kernels.hpp, AttentionRange).
CONSTANTS(AttentionRangeConstants, 20)
CONSTANT(20, kFrom, from, 0u)
CONSTANT(21, kUntil, until, 0xffffffffu)
CONSTANTS_END
