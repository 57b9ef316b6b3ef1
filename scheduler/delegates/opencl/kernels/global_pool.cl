// Mean or largest element of each channel; each work-group of GROUP items, WIDE in a row, reduces one block of channels of one image.

#if YPLAIN
#define Y_OUT OUT_FLOAT(y)
#else
#define Y_OUT OUT(y)
#endif
#define MORE(v, a) (LARGEST ? ((a) > (v) ? (a) : (v)) : (v) + (a))

__kernel void global_pool(IN(x), Y_OUT, const int4 image) {
  // image: H, W, blocks, channels
  const int b = get_global_id(0) / GROUP;
  const int n = get_global_id(1);
#if GROUP == 1
  const int item = 0;
  if (b >= image.s2) return;
#else
  const int item = get_local_id(0);
  __local VEC parts[GROUP];
#endif
  // Four sums hide the latency of an addition and round less than one.
  VEC v[4];
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = (VEC)(LARGEST ? -FLT_MAX : 0.0f);
  for (int h = item / WIDE; h < image.s0; h += GROUP / WIDE) {
    int w = item % WIDE;
    for (; w + 3 * WIDE < image.s1; w += 4 * WIDE) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const VEC a = LOADV(AT(x, n, b, h, w + i * WIDE));
        v[i] = MORE(v[i], a);
      }
    }
    for (; w < image.s1; w += WIDE) {
      const VEC a = LOADV(AT(x, n, b, h, w));
      v[0] = MORE(v[0], a);
    }
  }
  VEC s = MORE(MORE(v[0], v[1]), MORE(v[2], v[3]));
#if GROUP > 1
  parts[item] = s;
  for (int left = GROUP / 2; left > 0; left /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < left) parts[item] = MORE(parts[item], parts[item + left]);
  }
  if (item > 0) return;
  s = parts[0];
#endif
#if !LARGEST
  s /= (float)(image.s0 * image.s1);
#endif
#if YPLAIN
#pragma unroll
  for (int l = 0; l < L; l++)
    if (b * L + l < image.s3) *AT(y, n, b * L + l, 0, 0) = LANE(s, l);
#else
  STOREV(AT(y, n, b, 0, 0), s);
#endif
}
