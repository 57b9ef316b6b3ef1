// Mean or largest element of each channel; each work-item reduces one block of channels of one image.

#if YPLAIN
#define Y_OUT OUT_FLOAT(y)
#else
#define Y_OUT OUT(y)
#endif

__kernel void global_pool(IN(x), Y_OUT, const int4 image) {
  // image: H, W, blocks, channels
  const int b = get_global_id(0);
  const int n = get_global_id(1);
  if (b >= image.s2) return;
  // Four sums hide the latency of an addition and round less than one.
  VEC v[4];
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = (VEC)(LARGEST ? -FLT_MAX : 0.0f);
  for (int h = 0; h < image.s0; h++) {
    int w = 0;
    for (; w + 4 <= image.s1; w += 4) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const VEC a = LOADV(AT(x, n, b, h, w + i));
        v[i] = LARGEST ? (a > v[i] ? a : v[i]) : v[i] + a;
      }
    }
    for (; w < image.s1; w++) {
      const VEC a = LOADV(AT(x, n, b, h, w));
      v[0] = LARGEST ? (a > v[0] ? a : v[0]) : v[0] + a;
    }
  }
#if LARGEST
  VEC s = v[0];
#pragma unroll
  for (int i = 1; i < 4; i++) s = v[i] > s ? v[i] : s;
#else
  VEC s = ((v[0] + v[1]) + (v[2] + v[3])) / (float)(image.s0 * image.s1);
#endif
#if YPLAIN
#pragma unroll
  for (int l = 0; l < L; l++)
    if (b * L + l < image.s3) *AT(y, n, b * L + l, 0, 0) = LANE(s, l);
#else
  STOREV(AT(y, n, b, 0, 0), s);
#endif
}
