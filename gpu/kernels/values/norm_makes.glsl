// What rms_norm.comp computes from a column.
VALUES(NormMakes)
VALUE(kNormed, kNormed, 0)    // its norm
VALUE(kScaleOnly, kScale, 1)  // only the norm's scale: `out` is [column]; not in the rows mapping
VALUE(kAdded, kAdded, 2)      // the norm, added to the floats in `out`
VALUE(kCopy, kCopy, 3)        // the column unchanged
VALUE(kTimes, kTimes, 4)      // the column times the gain's first entry
VALUES_END
