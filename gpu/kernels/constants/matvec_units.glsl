CONSTANTS(MatvecUnitsConstants, 13)
CONSTANT(13, kLanes, lanes, 32u)               // subgroup size
CONSTANT(14, kColumnTiles, column_tiles, 1u)   // of 8 columns, of a subgroup
CONSTANT(15, kSubgroups, subgroups, 4u)
INVOCATIONS(16, kInvocations, invocations, 128u)  // kLanes * kSubgroups
CONSTANT(17, kSegments, segments, 1u)
CONSTANT(18, kSegmentStages, segment_stages, 1u)
CONSTANT(19, kStepGroups, step_groups, 4u)     // groups of a step of the loop: 1, 2 or a multiple of 4
CONSTANT(20, kSerial, serial, 0u)
CONSTANT(21, kColumnSubgroups, column_subgroups, 1u)  // kSerial: subgroups side by side over columns
// 1: weights are loaded a step ahead. 2: only a segment's first ones are, ahead of what has to be waited for.
CONSTANT(22, kAhead, ahead, 0u)
CONSTANT(23, kPartialFloats, partial_floats, 1u)  // shared: kSubgroups * kRows * kColumnTiles * 128
CONSTANT(24, kScaling, scaling, 0u)               // Scaling
CONSTANT(25, kNormColumns, norm_columns, 1u)      // kScaledHere: columns
CONSTANTS_END
