// What products of experts' matrices know besides; ids behind those of any product.
CONSTANTS(ExpertConstants, 32)
CONSTANT(32, kShare, share, 1u)  // results that share a column of the input, one for each expert chosen; or 1
CONSTANTS_END
