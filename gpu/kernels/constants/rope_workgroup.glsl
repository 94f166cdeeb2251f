// Constants of the kernels that rotate heads by position, with a workgroup for each head.
CONSTANTS(RopeWorkgroupConstants, 0)
INVOCATIONS(0, kLanes, lanes, 8u)
CONSTANTS_END
