// Ids behind those of any product.
CONSTANTS(BiasConstants, 33)
CONSTANT(33, kBiased, biased, 0u)  // results have biases: FusedOperands::bias
CONSTANTS_END
