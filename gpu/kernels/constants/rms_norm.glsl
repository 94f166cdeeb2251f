CONSTANTS(RmsNormConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)  // a power of two
CONSTANT(1, kForm, form, 0u)                   // InputForm of the result
CONSTANT(2, kLanes, lanes, 0u)                 // > 0: the workgroup has kNormParts of these
CONSTANT(3, kMakes, makes, 0u)                 // NormMakes
CONSTANT(4, kNextForm, next_form, 0u)          // InputForm of the next product's input
CONSTANTS_END
