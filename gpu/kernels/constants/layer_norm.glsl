CONSTANTS(LayerNormConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)  // a power of two
CONSTANT(1, kForm, form, 0u)                   // InputForm of the result
CONSTANTS_END
