// The logit of a token that a mask excludes (greedy.comp). Draws give it no weight, however high the temperature.
const float kExcluded = -1.0e38;
