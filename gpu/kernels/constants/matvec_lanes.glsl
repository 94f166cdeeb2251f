CONSTANTS(MatvecLanesConstants, 13)
CONSTANT(13, kLanes, lanes, 32u)  // subgroup size
CONSTANT(14, kSplit, split, 1u)   // subgroups that share a row
CONSTANT(15, kSubgroups, subgroups, 4u)
INVOCATIONS(16, kInvocations, invocations, 32u)  // kLanes * kSubgroups
CONSTANT(17, kScaling, scaling, 0u)              // Scaling
CONSTANTS_END
