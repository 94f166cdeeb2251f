// Constants that only products of experts' matrices have. Their ids follow those of every product.
CONSTANTS(ExpertConstants, 32)
CONSTANT(32, kShare, share, 1u)    // results that read the same column of the input: the experts of a column, or 1
// every column uses all of this many matrices; 0: a column uses the experts that its route names
CONSTANT(33, kSlices, slices, 0u)
CONSTANT(34, kSliceColumns, slice_columns, 1u)  // columns per tile if kSlices is not 0
CONSTANTS_END
