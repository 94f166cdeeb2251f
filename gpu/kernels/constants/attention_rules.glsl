// What scores attention weighs, and how, besides its heads' shape (attention_state.glsl).
CONSTANTS(AttentionRulesConstants, 16)
CONSTANT(16, kWindow, window, 0u)     // positions that a column sees, its own included; 0: all up to its own
CONSTANT(17, kSoftCap, soft_cap, 0u)  // a float's bits: scores in powers of two stay within it; 0: they are as they come
CONSTANT(18, kSinks, sinks, 0u)       // 1: each head has a sink
CONSTANT(19, kValueEntries, value_entries, 0u)  // values are so many first entries of their keys; 0: they have places of their own
CONSTANTS_END
