CONSTANTS(ReadBandwidthConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 256u)
CONSTANTS_END
