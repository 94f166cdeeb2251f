CONSTANTS(MatvecRowsConstants, 13)
INVOCATIONS(13, kLanes, lanes, 8u)  // subgroup size
CONSTANTS_END
