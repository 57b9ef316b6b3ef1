// Softmax and its logarithm along one dimension of a plain tensor; each work-item does one line.

__kernel void softmax(__global const float *restrict x, const int x_at, __global float *restrict y, const int y_at, const int4 size) {
  // size: lines outside, length, lines inside
  const int line = get_global_id(0);
  if (line >= size.s0 * size.s2) return;
  const int start = (line / size.s2) * size.s1 * size.s2 + line % size.s2;
  x += x_at + start;
  y += y_at + start;
  float largest = x[0];
  for (int i = 1; i < size.s1; i++) {
    const float v = x[i * size.s2];
    largest = v > largest ? v : largest;
  }
  float total = 0.0f;
  for (int i = 0; i < size.s1; i++) total += exp(x[i * size.s2] - largest);
#if LOGARITHM
  const float shift = largest + log(total);
  for (int i = 0; i < size.s1; i++) y[i * size.s2] = x[i * size.s2] - shift;
#else
  for (int i = 0; i < size.s1; i++) y[i * size.s2] = exp(x[i * size.s2] - largest) / total;
#endif
}
