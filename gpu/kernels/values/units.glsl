// How a tensor type's weights are packed for matrix units (weight_layout.hpp, units.glsl).
VALUES(UnitQuants)
VALUE(kHalves, kHalves, 0)
VALUE(kBytes, kBytes, 1)
VALUE(kNibbles, kNibbles, 2)
VALUES_END
VALUES(UnitScales)
VALUE(kScaleGroups, kGroups, 0)      // a half for each group
VALUE(kScaleSixteens, kSixteens, 1)  // a half for each sixteen weights
VALUE(kScaleSupers, kSupers, 2)      // a half for 256 weights times an int8 for each sixteen
VALUES_END
