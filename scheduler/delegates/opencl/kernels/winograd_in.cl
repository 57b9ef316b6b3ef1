// Bᵀ d B of Winograd's F(4×4, 3×3): each work-item transforms one 6×6 tile of one block of channels.
//
// Lavin and Gray (2016), section 4.3. y holds 36 matrices of tiles × channels.

#define TRANSFORM(d, o, s)                                                                                                                   \
  {                                                                                                                                          \
    const VEC p = d[o + 4 * s] - 4.0f * d[o + 2 * s], q = d[o + 3 * s] - 4.0f * d[o + s];                                                    \
    const VEC t = d[o + 4 * s] - d[o + 2 * s], u = 2.0f * (d[o + 3 * s] - d[o + s]);                                                         \
    const VEC first = 4.0f * d[o] - 5.0f * d[o + 2 * s] + d[o + 4 * s];                                                                      \
    const VEC last = 4.0f * d[o + s] - 5.0f * d[o + 3 * s] + d[o + 5 * s];                                                                   \
    d[o] = first, d[o + s] = p + q, d[o + 2 * s] = p - q, d[o + 3 * s] = t + u, d[o + 4 * s] = t - u, d[o + 5 * s] = last;                   \
  }

__kernel void winograd_in(IN(x), __global const STORE *restrict zero, OUT(y), const int4 image, const int4 tiles, const int2 border) {
  // image: H, W, blocks; tiles: down, across, in all; border: pads at top and left
  const int b = get_global_id(0);
  const int t = get_global_id(1);
  if (b >= image.s2 || t >= tiles.s2) return;
  const int n = t / (tiles.s0 * tiles.s1);
  const int r = t - n * tiles.s0 * tiles.s1;
  const int top = (r / tiles.s1) * 4 - border.s0, left = (r % tiles.s1) * 4 - border.s1;
  const int interior = top >= 0 && left >= 0 && top + 6 <= image.s0 && left + 6 <= image.s1;
  VEC d[36];
  if (interior) {
    __global const STORE *from = AT(x, n, b, top, left);
#pragma unroll
    for (int i = 0; i < 6; i++)
#pragma unroll
      for (int j = 0; j < 6; j++) d[i * 6 + j] = LOADV(from + i * x_s.s2 + j * x_s.s3);
  } else {
#pragma unroll
    for (int i = 0; i < 6; i++)
#pragma unroll
      for (int j = 0; j < 6; j++) {
        const int h = top + i, w = left + j;
        d[i * 6 + j] = LOADV((uint)h < (uint)image.s0 && (uint)w < (uint)image.s1 ? AT(x, n, b, h, w) : zero);
      }
  }
#pragma unroll
  for (int i = 0; i < 6; i++) TRANSFORM(d, i, 6)
#pragma unroll
  for (int i = 0; i < 6; i++) TRANSFORM(d, i * 6, 1)
  const int step = tiles.s2 * y_s.s0;
#pragma unroll
  for (int k = 0; k < 36; k++) STOREV(AT(y, t, b, 0, 0) + k * step, d[k]);
}
