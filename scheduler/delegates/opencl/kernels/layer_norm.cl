// Normalisation of each line of a plain tensor to mean 0 and variance 1, then scale and shift; each work-item does one line.

__kernel void layer_norm(__global const float *restrict x, const int x_at, __global const float *restrict scale,
                         __global const float *restrict shift, __global float *restrict y, const int y_at, const int4 size, const float epsilon) {
  // size: lines, length
  const int line = get_global_id(0);
  if (line >= size.s0) return;
  __global const float *from = x + x_at + (long)line * size.s1;
  __global float *to = y + y_at + (long)line * size.s1;
  float mean = 0.0f;
  for (int i = 0; i < size.s1; i++) mean += from[i];
  mean /= size.s1;
  float variance = 0.0f;
  for (int i = 0; i < size.s1; i++) variance += (from[i] - mean) * (from[i] - mean);
  const float factor = 1.0f / sqrt(variance / size.s1 + epsilon);
  for (int i = 0; i < size.s1; i++) to[i] = (from[i] - mean) * factor * scale[i] + shift[i];
}
