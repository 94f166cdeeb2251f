CONSTANTS(RopeConstants, 5)
CONSTANT(5, kPairing, pairing, 0u)  // 0: (2i, 2i + 1); 1: (i, i + pairs)
CONSTANT(6, kValueNorm, value_norm, 0u)  // ValueNorm
CONSTANT(7, kTemperature, temperature, 0u)  // a float's bits: of q at long positions; 0: none
CONSTANT(8, kTemperatureSpan, temperature_span, 1u)  // positions
CONSTANTS_END
