// Returns cap * tanh(x / cap), with one exponential: tanh(y) = 1 - 2 / (exp(2y) + 1). Its error is in the cap's last
// bits.
float soft_capped(float x, float cap) {
  precise float grown = exp2(x / cap * 2.8853900817779268);
  precise float made = cap * (1.0 - 2.0 / (grown + 1.0));
  return made;
}
