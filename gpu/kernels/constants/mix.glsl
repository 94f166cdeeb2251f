CONSTANTS(MixConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kUsed, used, 1u)               // experts of a column
CONSTANT(2, kSharedGate, shared_gate, 0u)  // the weights' last is the shared expert's
CONSTANT(3, kAdds, adds, 0u)               // to what is there
CONSTANT(4, kForm, form, 0u)               // InputForm of the next product's input
CONSTANTS_END
