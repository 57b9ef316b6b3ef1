// What one core can do at most: multiply-adds in registers, and reads of a buffer.

typedef float8 VEC;

// Twelve sums that do not wait for each other, of `steps` multiply-adds each; x and y are not known to the compiler.
__kernel void multiply_add(__global float *out, const float x, const float y, const int steps) {
  VEC sums[12];
#pragma unroll
  for (int i = 0; i < 12; i++) sums[i] = (VEC)((float)i);
  const VEC u = (VEC)x, v = (VEC)y;
  for (int k = 0; k < steps; k++) {
#pragma unroll
    for (int i = 0; i < 12; i++) sums[i] = sums[i] * u + v;
  }
  VEC total = sums[0];
#pragma unroll
  for (int i = 1; i < 12; i++) total += sums[i];
  *(__global VEC *)(out + 8 * get_global_id(0)) = total;
}

// Reads `vectors` vectors, `repeats` times over.
__kernel void read(__global const float *in, __global float *out, const int vectors, const int repeats) {
  VEC sums[8];
#pragma unroll
  for (int i = 0; i < 8; i++) sums[i] = (VEC)0.0f;
  for (int r = 0; r < repeats; r++)
    for (int k = 0; k < vectors; k += 8) {
#pragma unroll
      for (int i = 0; i < 8; i++) sums[i] += *(__global const VEC *)(in + 8 * (k + i));
    }
  VEC total = sums[0];
#pragma unroll
  for (int i = 1; i < 8; i++) total += sums[i];
  *(__global VEC *)(out + 8 * get_global_id(0)) = total;
}
