// The constants of every product's kernel, apart from its weights' type.
CONSTANTS(MatvecConstants, 9)
CONSTANT(9, kColumns, columns, 1u)      // per workgroup
CONSTANT(10, kRows, rows, 1u)           // row blocks per lane or subgroup
CONSTANT(11, kEpilogue, epilogue, 0u)   // Epilogue
CONSTANT(12, kOutForm, out_form, 0u)    // InputForm of the result; kAdd: always kInputRows, in plain order
CONSTANT(13, kGate, gate, 0u)          // Gate, for kGated
CONSTANTS_END
