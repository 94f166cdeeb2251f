// What products of experts' matrices know besides; ids behind those of any product, before BiasConstants.
CONSTANTS(ExpertConstants, 32)
CONSTANT(32, kShare, share, 1u)    // results that share a column of the input, one for each expert chosen; or 1
CONSTANT(33, kSlices, slices, 0u)  // matrices that all columns take, an input and a result for each; 0: as routes say
CONSTANT(34, kSliceColumns, slice_columns, 1u)  // kSlices: columns of a tile
CONSTANTS_END
