CONSTANTS(GatedProductConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kForm, form, 0u)  // InputForm of the result
CONSTANT(2, kGate, gate, 0u)  // Gate
CONSTANT(3, kPerColumn, per_column, 1u)  // columns here for each of the step's
CONSTANTS_END
