// Which scores attention uses and how it weighs them, apart from the shape of its heads (attention_state.glsl).
CONSTANTS(AttentionRulesConstants, 16)
// positions that a column sees up to its own, which is one of them; 0: all up to its own
CONSTANT(16, kWindow, window, 0u)
CONSTANT(17, kSoftCap, soft_cap, 0u)  // a float's bits: bound of the scores as exponents of two; 0: no bound
CONSTANT(18, kSinks, sinks, 0u)       // 1: each head has a sink
// values are the first entries, this many, of their keys; 0: values have their own places
CONSTANT(19, kValueEntries, value_entries, 0u)
// with a window in both directions: positions that a column sees behind its own; 0: none
CONSTANT(20, kBehind, behind, 0u)
CONSTANTS_END
