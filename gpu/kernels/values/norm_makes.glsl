// What rms_norm.comp makes of a column.
VALUES(NormMakes)
VALUE(kNormed, kNormed, 0)    // its norm
VALUE(kScaleOnly, kScale, 1)  // the norm's scale alone: `out` is [column]; not in the rows mapping
VALUE(kAdded, kAdded, 2)      // the norm added to the floats that `out` holds
VALUE(kCopy, kCopy, 3)        // the column as it is
VALUE(kTimes, kTimes, 4)      // the column times the gain's first entry
VALUES_END
