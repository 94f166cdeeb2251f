// Of attention by matrix units (attention_units.comp), behind AttentionRulesConstants.
CONSTANTS(AttentionUnitsConstants, 20)
CONSTANT(20, kQueryTiles, query_tiles, 1u)  // a subgroup makes so many tiles of eight queries
CONSTANT(21, kAlone, alone, 0u)             // kWhole: the kernel skips columns that kTiles makes
CONSTANT(22, kValuesAhead, values_ahead, 0u)   // tiles of 16 values that are asked for before scores are made
CONSTANT(23, kEarlyKeys, early_keys, 0u)       // 1: keys are asked for a block ahead
CONSTANT(24, kShareTogether, share_together, 8u)  // kTogether: heads that a workgroup makes for a column with few positions
CONSTANTS_END
