// The constants of a product by matrix units that also adds up the results of a column's experts (expert_sum.glsl).
// Their ids follow those of choosing.glsl.
CONSTANTS(ExpertSumConstants, 43)
CONSTANT(43, kSumsExperts, sums_experts, 0u)
CONSTANT(44, kSumFloats, sum_floats, 1u)  // shared: a block's rows for each expert, and for each of its segments
CONSTANTS_END
