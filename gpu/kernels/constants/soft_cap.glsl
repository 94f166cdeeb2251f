CONSTANTS(SoftCapConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kEntries, entries, 2048u)  // of a workgroup
CONSTANTS_END
