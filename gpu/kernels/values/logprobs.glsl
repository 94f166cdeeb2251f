// Numbers of the format that logprobs.comp writes for an output (LogprobRow).
NUMBER(kMostLogprobs, 20)   // the most tokens that it reports
NUMBER(kLogprobBytes, 192)
