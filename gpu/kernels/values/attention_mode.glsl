// How workgroups share a column's heads and splits. All modes give the same bits.
VALUES(AttentionMode)
VALUE(kWhole, kWhole, 0)  // a subgroup makes a column's head, or the heads that share a KV head
// Rows mapping: each workgroup makes a split of a column's head group, and leaves a partial result for
// attention_combine.
VALUE(kPartial, kPartial, 1)
// Mappings with attention_together: a workgroup makes a column's head, or with matrix units some of the heads that
// share a KV head, with a subgroup for each split. If the column sees much, all of its workgroups share the splits,
// as in kSpread.
VALUE(kTogether, kTogether, 2)
// Not in the rows mapping: some workgroups make the heads of a column that share a KV head, and the last of them
// folds the partial results.
VALUE(kSpread, kSpread, 3)
#ifndef BULKHEAD_ROWS  // a module without them
VALUE(kTiles, kTiles, 4)  // matrix units: a workgroup makes neighbouring columns of a sequence
// Matrix units: some workgroups make a few neighbouring columns, and the last of them folds the partial results.
// attention_alone(), which goes with these two, makes columns that have no neighbour.
VALUE(kSpreadTiles, kSpreadTiles, 5)
#endif
VALUES_END
