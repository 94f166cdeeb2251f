// What one dispatch of choose.comp does.
VALUES(ChoosePart)
VALUE(kBoth, kBoth, 0)            // one workgroup does all
VALUE(kChoose, kChoose, 1)        // many workgroups choose
VALUE(kSort, kSort, 2)            // then one sorts
VALUE(kOneColumn, kOneColumn, 3)  // a single column, whose tiles need no sorting
VALUES_END
// Who chooses the experts of a product of one column (choose_here.glsl).
VALUES(ChoosesHere)
VALUE(kByRoute, kByRoute, 0)
VALUE(kHere, kHere, 1)
VALUE(kHereAndTells, kHereAndTells, 2)  // the product writes what it has chosen, for the others of the step
VALUES_END
