// The constants of both of attention's kernels (attention_state.glsl).
CONSTANTS(AttentionLanesConstants, 0)
CONSTANT(0, kLanes, lanes, 8u)  // subgroup size
CONSTANTS_END
CONSTANTS(AttentionSplitConstants, 5)
CONSTANT(5, kHeadsTogether, heads_together, 1u)  // query heads of one KV head in a workgroup, on a CPU
CONSTANT(6, kOutForm, out_form, 0u)              // InputForm: the result is a product's input
CONSTANT(7, kMinimumSplit, minimum_split, 64u)   // positions
CONSTANT(8, kByRows, by_rows, 0u)                // how best to load a value that all lanes share
CONSTANT(9, kMaximumSplits, maximum_splits, 16u)
CONSTANTS_END
