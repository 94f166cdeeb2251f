CONSTANTS(MatvecUnitsConstants, 14)
CONSTANT(14, kLanes, lanes, 32u)               // subgroup size
CONSTANT(15, kColumnTiles, column_tiles, 1u)   // of 8 columns, of a subgroup
CONSTANT(16, kSubgroups, subgroups, 4u)
INVOCATIONS(17, kInvocations, invocations, 128u)  // kLanes * kSubgroups
CONSTANT(18, kSegments, segments, 1u)
CONSTANT(19, kSegmentStages, segment_stages, 1u)
CONSTANT(20, kStepGroups, step_groups, 4u)     // groups of a step of the loop: 1, 2 or a multiple of 4
CONSTANT(21, kSerial, serial, 0u)
CONSTANT(22, kColumnSubgroups, column_subgroups, 1u)  // kSerial: subgroups side by side over columns
// 1: weights are loaded a step ahead. 2: only a segment's first ones are, ahead of what has to be waited for.
CONSTANT(23, kAhead, ahead, 0u)
CONSTANT(24, kPartialFloats, partial_floats, 1u)  // shared: kSubgroups * kRows * kColumnTiles * 128
CONSTANT(25, kScaling, scaling, 0u)               // Scaling
CONSTANT(26, kNormColumns, norm_columns, 1u)      // kScaledHere: columns
CONSTANTS_END
