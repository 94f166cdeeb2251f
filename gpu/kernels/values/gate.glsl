// What a gated product does with its gate before the up multiplies it (gates.glsl).
VALUES(Gate)
VALUE(kSilu, kSilu, 0)
VALUE(kGelu, kGelu, 1)        // in its tanh form
VALUE(kClamped, kClamped, 2)  // like SiLU, with gate and up kept within bounds, which changes the up, too
VALUE(kSigmoid, kSigmoid, 3)  // only the sigmoid
VALUE(kSquaredRelu, kSquaredRelu, 4)  // max(gate, 0)^2
VALUE(kSiluTo7, kSiluTo7, 5)    // SiLU of at most 7; the up is kept within 7, too
VALUE(kSiluTo16, kSiluTo16, 6)  // the same with 16
VALUES_END
