// How the columns that a product reads ("inputs") lie in memory; store_input() of common.glsl writes them.
VALUES(InputForm)
VALUE(kInputRows, kRows, 0)    // a lane computes a row: floats, each column in order
// A subgroup computes a row, a lane takes 32 neighbouring weights: floats; blocks of 1024 entries of a column are
// stored [8 quarters of a group][32 groups][4], so that the vec4 that each lane needs next lie side by side.
VALUE(kInputLanes, kLanes, 1)
// Matrix units: halves; eight columns together, of each 32 entries before the next 32 of all: 512 bytes, in which the
// sixteen that lane i of a subgroup takes into the unit's fragments are the i-th. Of larger values than a half can
// hold, the largest half is kept.
VALUE(kInputUnits, kUnits, 2)
VALUES_END
