CONSTANTS(RopeWorkgroupConstants, 0)
INVOCATIONS(0, kLanes, lanes, 8u)
CONSTANTS_END
CONSTANTS(RopeConstants, 5)
CONSTANT(5, kPairing, pairing, 0u)  // 0: (2i, 2i + 1); 1: (i, i + pairs)
CONSTANTS_END
