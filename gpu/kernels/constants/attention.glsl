CONSTANTS(AttentionConstants, 10)
CONSTANT(10, kMode, mode, 0u)  // AttentionMode
INVOCATIONS(11, kInvocations, invocations, 8u)
// in a chain: while it waits, keys and values are loaded into nearer caches, and with matrix units some into registers
CONSTANT(12, kNearFirst, near_first, 0u)
CONSTANT(13, kShare, share, 1u)                // query heads of a KV head whose keys are loaded together; 1 on a CPU
CONSTANT(14, kAhead, ahead, 1u)
CONSTANT(15, kSpreadFrom, spread_from, 1024u)  // kTogether: columns that see more positions than this are spread
CONSTANTS_END
