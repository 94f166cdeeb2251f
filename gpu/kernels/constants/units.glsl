// What kernels know about a tensor type that is packed for matrix units (units.glsl): its form (tensor_row.hpp).
CONSTANTS(UnitConstants, 0)
CONSTANT(0, kQuants, quants, 0u)        // UnitQuants
CONSTANT(1, kHighBits, high_bits, 0u)   // besides a nibble: 0, 1 or 2
CONSTANT(2, kScales, scales, 0u)        // UnitScales
CONSTANT(3, kHasMinima, minima, 0u)
CONSTANT(4, kBias, bias, 0u)            // of the integers
// the values of nibbles, plus 128; all zeros: nibbles are the numbers themselves
CONSTANT(5, kCodebook0, codebook_0, 0u)
CONSTANT(6, kCodebook1, codebook_1, 0u)
CONSTANT(7, kCodebook2, codebook_2, 0u)
CONSTANT(8, kCodebook3, codebook_3, 0u)
CONSTANTS_END
