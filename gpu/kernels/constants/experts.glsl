// Constants that only products of experts' matrices have. Their ids follow those of every product.
CONSTANTS(ExpertConstants, 32)
CONSTANT(32, kShare, share, 1u)    // results that share a column of the input: the experts of a column, or 1
CONSTANT(33, kSlices, slices, 0u)  // every column takes all of so many matrices; 0: a column takes the experts that its route names
CONSTANT(34, kSliceColumns, slice_columns, 1u)  // columns of a tile where kSlices is not 0
CONSTANTS_END
