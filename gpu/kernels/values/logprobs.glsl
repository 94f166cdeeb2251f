// The form of what logprobs.comp writes for an output (LogprobRow).
NUMBER(kMostLogprobs, 20)   // tokens that it tells at most
NUMBER(kLogprobBytes, 192)
