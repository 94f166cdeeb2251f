// What a gated product makes of its gate before the up multiplies it (gates.glsl).
VALUES(Gate)
VALUE(kSilu, kSilu, 0)
VALUE(kGelu, kGelu, 1)        // in its tanh form
VALUE(kClamped, kClamped, 2)  // SiLU's like with both kept within bounds, which changes the up, too
VALUE(kSigmoid, kSigmoid, 3)  // the sigmoid alone
VALUES_END
