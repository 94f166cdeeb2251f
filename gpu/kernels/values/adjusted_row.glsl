// Numbers of the list of adjusted outputs (adjusted_rows.glsl).
NUMBER(kAdjustedRowsOffset, 8)
NUMBER(kAdjustedRowBytes, 48)
NUMBER(kAdjustedShift, 8)  // the bits of a SampleChoice's mode from this one on are 1 + the output's row in the list
