// The ids follow those of every product.
CONSTANTS(BiasConstants, 35)
CONSTANT(35, kBiased, biased, 0u)  // results have biases: FusedOperands::bias
CONSTANTS_END
