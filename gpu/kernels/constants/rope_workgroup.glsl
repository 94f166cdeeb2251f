// Of the kernels that turn heads: each makes one by a workgroup.
CONSTANTS(RopeWorkgroupConstants, 0)
INVOCATIONS(0, kLanes, lanes, 8u)
CONSTANTS_END
