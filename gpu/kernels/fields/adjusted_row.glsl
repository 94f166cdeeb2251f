// What an output gets before its draw (adjusted_rows.glsl).
uint64_t list;    // [edits] of LogitEdit, in memory that the host maps
uint64_t ahead;   // [ahead_edits]; they replace those of the list with the same tokens
uint64_t before;  // [edits + ahead_edits]: where the logits are kept as they were, or 0
uint edits;
uint ahead_edits;
float repetition;
float inverse;    // of the repetition penalty
uint output_index;
uint masked;      // 1: the row has a mask, at the same index as the row; 0: all tokens may come
