// How gated products combine a gate and an up, the same in every kernel.
#include "values/gate.glsl"

// gate * sigmoid(2u) is GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv 1606.08415), because (1 + tanh(u)) /
// 2 = sigmoid(2u); here 2u = sqrt(8 / pi) * (gate + 0.044715 * gate^3).
//
// kClamped (OpenAI 2025, arXiv 2508.10925): both are limited to 7, the gate only from above; the sigmoid is of 1.702
// times the gate; and 1 is added to the up. kSigmoid: only the gate's sigmoid. kSquaredRelu: max(gate, 0)^2.
// kSiluTo7, kSiluTo16 (StepFun 2026, Step 3.5 Flash): SiLU of the gate is limited from above, the up on both sides.
float gated(uint function, float gate, float up) {
  if (function == kClamped) {
    gate = min(gate, 7.0);
    precise float more = clamp(up, -7.0, 7.0) + 1.0;
    up = more;
  }
  precise float turn = function == kClamped ? 1.702 * gate : gate;
  if (function == kGelu) {
    precise float squared = gate * gate;
    precise float cubed = squared * gate;
    turn = 1.5957691216057308 * fma(0.044715, cubed, gate);
  }
  precise float sigmoid = 1.0 / (1.0 + exp(-turn));
  precise float activated = function == kSigmoid ? sigmoid : gate * sigmoid;
  if (function == kSquaredRelu) {
    float positive = max(gate, 0.0);
    activated = positive * positive;
  }
  if (function == kSiluTo7 || function == kSiluTo16) {
    float limit = function == kSiluTo7 ? 7.0 : 16.0;
    activated = min(activated, limit);
    up = clamp(up, -limit, limit);
  }
  precise float result = activated * up;
  return result;
}
