// The scale of a root-mean-square norm on GPUs. A separate kernel computes it, or the product that needs it; the
// order of additions is the same.
//
// kNormParts parts take the column's quads of entries in turn, kLanes quads at a time; a lane adds its quads' squares
// in rising order; then the lanes by halving distances; then the parts in order.
const uint kNormParts = 8;

float norm_scale(float squares, uint width, float epsilon) {
  precise float mean = squares / float(width);
  precise float scale = 1.0 / sqrt(mean + epsilon);
  return scale;
}
