// The layout of the columns that a product reads ("inputs"); store_input() of common.glsl writes them.
VALUES(InputForm)
VALUE(kInputRows, kRows, 0)    // a lane computes a row: floats, each column in order
// A subgroup computes a row, and a lane takes 32 neighbouring weights: floats; blocks of 1024 entries of a column are
// stored as [8 quarters of a group][32 groups][4], so that the vec4 that the lanes need next are adjacent.
VALUE(kInputLanes, kLanes, 1)
// Matrix units: halves. Eight columns are stored together: 32 entries of each before the next 32 of all, which is 512
// bytes. In these, the sixteen bytes that lane i of a subgroup loads into the unit's fragments are the i-th. A value
// beyond the largest half is stored as the largest half.
VALUE(kInputUnits, kUnits, 2)
VALUES_END
