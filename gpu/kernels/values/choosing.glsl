// What one dispatch of choose.comp does.
VALUES(ChoosePart)
VALUE(kBoth, kBoth, 0)            // one workgroup does everything
VALUE(kChoose, kChoose, 1)        // many workgroups choose
VALUE(kSort, kSort, 2)            // then one sorts
VALUE(kOneColumn, kOneColumn, 3)  // a single column, whose tiles need no sorting
VALUES_END
// Which kernel chooses the experts of a product of one column (choose_here.glsl).
VALUES(ChoosesHere)
VALUE(kByRoute, kByRoute, 0)
VALUE(kHere, kHere, 1)
VALUE(kHereAndTells, kHereAndTells, 2)  // the product also writes its choice, for the other products of the step
VALUES_END
