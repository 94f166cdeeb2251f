// log(1 + exp(x)).
float softplus(float x) {
  precise float grown = log(1.0 + exp(x));
  return x > 20.0 ? x : grown;
}
