// Dimensions of a plain tensor of rank up to 6 in another order; each work-item does one element.

__kernel void transpose(__global const float *restrict x, const int x_at, __global float *restrict y, const int y_at, const int8 size,
                        const int8 strides) {
  // size: of the output, last dimension first, then 1; strides: of x, in the same order
  const int out = get_global_id(0);
  if (out >= size.s0 * size.s1 * size.s2 * size.s3 * size.s4 * size.s5) return;
  int rest = out;
  int at = x_at + (rest % size.s0) * strides.s0;
  rest /= size.s0;
  at += (rest % size.s1) * strides.s1;
  rest /= size.s1;
  at += (rest % size.s2) * strides.s2;
  rest /= size.s2;
  at += (rest % size.s3) * strides.s3;
  rest /= size.s3;
  at += (rest % size.s4) * strides.s4;
  at += (rest / size.s4) * strides.s5;
  y[y_at + out] = x[at];
}
