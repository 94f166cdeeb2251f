CONSTANTS(SamplingConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 64u)  // 32, or a multiple of it
CONSTANT(1, kChunk, chunk, 2048u)
CONSTANTS_END
