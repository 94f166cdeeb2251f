CONSTANTS(RouteConstants, 0)
CONSTANT(0, kLanes, lanes, 8u)          // subgroup size
CONSTANT(1, kSubgroups, subgroups, 1u)  // each makes a router's row
INVOCATIONS(2, kInvocations, invocations, 8u)  // kLanes * kSubgroups
CONSTANT(3, kColumns, columns, 1u)             // of a workgroup
CONSTANTS_END
