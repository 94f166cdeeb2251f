uint64_t logits;    // [output][stride]
uint64_t partials;  // [output][chunks] of {largest, its id, sum of exp2 of the distances to it, 0}
uint64_t results;   // [output] of {id, log-probability}
uint64_t parameters;
uint vocabulary;
uint stride;
uint chunks;
uint unused;
