// Numbers of the list of adjusted outputs (adjusted_rows.glsl).
NUMBER(kAdjustedRowsOffset, 8)
NUMBER(kAdjustedRowBytes, 48)
NUMBER(kAdjustedShift, 8)  // in a SampleChoice's mode, above which 1 + an adjusted output's row is
