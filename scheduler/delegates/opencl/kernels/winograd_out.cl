// Aᵀ m A of Winograd's F(4×4, 3×3), bias, addition and activation: each work-item makes one 4×4 tile of one block of channels.
//
// Lavin and Gray (2016), section 4.3. x holds 36 matrices of tiles × channels.

__kernel void winograd_out(IN(x), __global const float *restrict bias,
#if RESIDUAL
                           IN(r),
#endif
                           OUT(y), const int4 result, const int4 tiles, ACT_ARGS) {
  // result: OH, OW, blocks; tiles: down, across, in all
  const int b = get_global_id(0);
  const int t = get_global_id(1);
  if (b >= result.s2 || t >= tiles.s2) return;
  const int n = t / (tiles.s0 * tiles.s1);
  const int at = t - n * tiles.s0 * tiles.s1;
  const int top = (at / tiles.s1) * 4, left = (at % tiles.s1) * 4;
  const int step = tiles.s2 * x_s.s0;
  __global const STORE *from = AT(x, t, b, 0, 0);
  VEC m[24];
#pragma unroll
  for (int j = 0; j < 6; j++) {
    VEC d[6];
#pragma unroll
    for (int i = 0; i < 6; i++) d[i] = LOADV(from + (i * 6 + j) * step);
    const VEC p = d[1] + d[2], q = d[1] - d[2], s = d[3] + d[4], u = d[3] - d[4];
    m[j] = d[0] + p + s;
    m[6 + j] = q + 2.0f * u;
    m[12 + j] = p + 4.0f * s;
    m[18 + j] = q + 8.0f * u + d[5];
  }
  const VEC shift = *(__global const VEC *)(bias + b * L);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int h = top + i;
    if (h >= result.s0) continue;
    const VEC p = m[i * 6 + 1] + m[i * 6 + 2], q = m[i * 6 + 1] - m[i * 6 + 2];
    const VEC s = m[i * 6 + 3] + m[i * 6 + 4], u = m[i * 6 + 3] - m[i * 6 + 4];
    VEC v[4];
    v[0] = m[i * 6] + p + s;
    v[1] = q + 2.0f * u;
    v[2] = p + 4.0f * s;
    v[3] = q + 8.0f * u + m[i * 6 + 5];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int w = left + j;
      if (w >= result.s1) continue;
      VEC a = v[j] + shift;
#if RESIDUAL
#if RESIDUAL_LAST
      a = ACTIVATE(a) + LOADV(AT(r, n, b, h, w));
#else
      a += LOADV(AT(r, n, b, h, w));
      a = ACTIVATE(a);
#endif
#else
      a = ACTIVATE(a);
#endif
      STOREV(AT(y, n, b, h, w), a);
    }
  }
}
