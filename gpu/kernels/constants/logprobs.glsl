CONSTANTS(LogprobConstants, 2)
CONSTANT(2, kSums, sums, 0u)  // 1: the first pass
CONSTANTS_END
