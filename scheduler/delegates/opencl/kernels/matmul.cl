// Product of a plain matrix with a matrix of constants, plus a bias; each work-item does one row times L columns.

__kernel void matmul(__global const float *restrict x, const int x_at, __global const float *restrict weight,
                     __global const float *restrict bias, __global float *restrict y, const int y_at, const int4 size) {
  // size: rows, inner length, columns; weight is padded to whole vectors of columns
  const int column = get_global_id(0) * L;
  const int row = get_global_id(1);
  if (column >= size.s2 || row >= size.s0) return;
  const int width = (size.s2 + L - 1) / L * L;
  VEC v = *(__global const VEC *)(bias + column);
  for (int k = 0; k < size.s1; k++) v += x[x_at + row * size.s1 + k] * *(__global const VEC *)(weight + (long)k * width + column);
#pragma unroll
  for (int l = 0; l < L; l++)
    if (column + l < size.s2) y[y_at + row * size.s2 + column + l] = LANE(v, l);
}
