CONSTANTS(GreedyConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)  // a power of two
CONSTANT(1, kSecondPass, second_pass, 0u)
CONSTANT(2, kChunk, chunk, 2048u)
CONSTANTS_END
