CONSTANTS(AttentionConstants, 10)
CONSTANT(10, kMode, mode, 0u)  // AttentionMode
INVOCATIONS(11, kInvocations, invocations, 8u)
CONSTANT(12, kNearFirst, near_first, 0u)       // in a chain: keys and values come nearer while it waits
CONSTANT(13, kShare, share, 1u)                // query heads of a KV head that are loaded for at once; 1 on a CPU
CONSTANT(14, kAhead, ahead, 1u)
CONSTANT(15, kSpreadFrom, spread_from, 1024u)  // kTogether: columns that see more than so many are spread
CONSTANTS_END
