CONSTANTS(EmbedConstants, 9)
INVOCATIONS(9, kInvocations, invocations, 8u)
CONSTANT(10, kForm, form, 0u)  // InputForm of the first product's input; with matrix units there is only one
CONSTANTS_END
