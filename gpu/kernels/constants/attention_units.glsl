// Of attention by matrix units (attention_units.comp), behind AttentionRangeConstants.
CONSTANTS(AttentionUnitsConstants, 22)
CONSTANT(22, kQueryTiles, query_tiles, 1u)  // a subgroup makes so many tiles of eight queries
CONSTANT(23, kAlone, alone, 0u)             // kWhole: the kernel skips columns that kTiles makes
CONSTANT(24, kValuesAhead, values_ahead, 0u)   // tiles of 16 values that are asked for before scores are made
CONSTANT(25, kEarlyKeys, early_keys, 0u)       // 1: keys are asked for a block ahead
CONSTANT(26, kShareTogether, share_together, 8u)  // kTogether: heads that a workgroup makes for a column with few positions
CONSTANTS_END
