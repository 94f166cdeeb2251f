// The passes of sample.comp, in their order. The first three find where top-p ends if there is no top-k; steps without
// such an output leave them out. kClear, kLast and kDraw: a workgroup handles one output. kHistogram and kSums: a
// workgroup handles one chunk of the vocabulary, of one output after the other.
VALUES(SamplePass)
VALUE(kPassClear, kClear, 0)          // empties the histogram
VALUE(kPassHistogram, kHistogram, 1)  // weights by distance to the best
VALUE(kPassLast, kLast, 2)            // the last token that top-p keeps
VALUE(kPassSums, kSums, 3)            // sums of the weights that are kept
VALUE(kPassDraw, kDraw, 4)
VALUES_END
NUMBER(kSampleBuckets, 1024)   // of the histogram: 32 for each factor of e; beyond the last one a weight is 0
NUMBER(kSampleCutBytes, 8208)  // of an output: its buckets, lower words first, and the last token (key and id)
