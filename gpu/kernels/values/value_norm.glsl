// What rope_kv.comp does to values before it stores them.
VALUES(ValueNorm)
VALUE(kNoValueNorm, kNone, 0)
VALUE(kUnitValueNorm, kUnit, 1)  // normalises each head without a gain; the push's q_gain must not be 0
VALUES_END
