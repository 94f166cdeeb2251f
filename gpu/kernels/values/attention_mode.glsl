// How workgroups divide a column's heads and splits. All modes give the same bits.
VALUES(AttentionMode)
VALUE(kWhole, kWhole, 0)  // a subgroup computes a column's head, or the heads that share a KV head
// Rows mapping: each workgroup computes a split of a column's head group, and leaves a partial result for
// attention_combine.
VALUE(kPartial, kPartial, 1)
// Mappings with attention_together: a workgroup computes a column's head (with matrix units, some of the heads that
// share a KV head, or some entries of their results), and its subgroups take the splits in turns. If the column sees
// many positions, its workgroups may share the splits, as in kSpread.
VALUE(kTogether, kTogether, 2)
// Not in the rows mapping: some workgroups compute the heads of a column that share a KV head, and the last of them
// combines the partial results.
VALUE(kSpread, kSpread, 3)
#ifndef BULKHEAD_ROWS  // a module without them
VALUE(kTiles, kTiles, 4)  // matrix units: a workgroup computes neighbouring columns of a sequence
// Matrix units: some workgroups compute a few neighbouring columns, and the last of them combines the partial
// results. attention_alone(), which goes with these two, computes columns that have no neighbour.
VALUE(kSpreadTiles, kSpreadTiles, 5)
#endif
VALUES_END
