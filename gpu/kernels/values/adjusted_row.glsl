// Numbers of the list of adjusted outputs (adjusted_rows.glsl).
NUMBER(kAdjustedRowsOffset, 8)
NUMBER(kAdjustedRowBytes, 48)
