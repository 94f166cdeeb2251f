CONSTANTS(MatvecRowsConstants, 14)
INVOCATIONS(14, kLanes, lanes, 8u)  // subgroup size
CONSTANTS_END
