CONSTANTS(MatvecLanesConstants, 14)
CONSTANT(14, kLanes, lanes, 32u)  // subgroup size
CONSTANT(15, kSplit, split, 1u)   // subgroups that share a row
CONSTANT(16, kSubgroups, subgroups, 4u)
INVOCATIONS(17, kInvocations, invocations, 32u)  // kLanes * kSubgroups
CONSTANT(18, kScaling, scaling, 0u)              // Scaling
CONSTANTS_END
