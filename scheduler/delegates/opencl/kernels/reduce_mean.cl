// Mean over up to four dimensions of a plain tensor of rank 4; each work-item does one output element.

__kernel void reduce_mean(__global const float *restrict x, const int x_at, __global float *restrict y, const int y_at, const int4 kept,
                          const int4 reduced, const int4 strides) {
  // kept: size of each dimension in the output, 1 where it is reduced; reduced: the other way round
  const int out = get_global_id(0);
  if (out >= kept.s0 * kept.s1 * kept.s2 * kept.s3) return;
  int rest = out;
  int at = x_at + (rest % kept.s3) * strides.s3;
  rest /= kept.s3;
  at += (rest % kept.s2) * strides.s2;
  rest /= kept.s2;
  at += (rest % kept.s1) * strides.s1;
  at += (rest / kept.s1) * strides.s0;
  float total = 0.0f;
  for (int a = 0; a < reduced.s0; a++)
    for (int b = 0; b < reduced.s1; b++)
      for (int c = 0; c < reduced.s2; c++) {
        float line = 0.0f;
        for (int d = 0; d < reduced.s3; d++) line += x[at + a * strides.s0 + b * strides.s1 + c * strides.s2 + d * strides.s3];
        total += line;
      }
  y[y_at + out] = total / (reduced.s0 * reduced.s1 * reduced.s2 * reduced.s3);
}
