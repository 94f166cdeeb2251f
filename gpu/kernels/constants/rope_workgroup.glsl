// Constants of the kernels that turn heads by position, a workgroup for each head.
CONSTANTS(RopeWorkgroupConstants, 0)
INVOCATIONS(0, kLanes, lanes, 8u)
CONSTANTS_END
