// Largest or mean element of each window; each work-item computes one block of channels of one output pixel.

__kernel void pool(IN(x), OUT(y), const int4 image, const int4 result, const int4 window, const int4 border, const int4 padding) {
  // image: H, W, blocks; result: OH, OW; window: KH, KW, strides; border: pads at top and left, dilations; padding: at bottom and right, counted
  const int b = get_global_id(CHANNELS_FIRST ? 0 : 1);
  const int q = get_global_id(CHANNELS_FIRST ? 1 : 0);
  const int n = get_global_id(2);
  if (b >= image.s2 || q >= result.s0 * result.s1) return;
  const int oh = q / result.s1, ow = q % result.s1;
  const int top = oh * window.s2 - border.s0, left = ow * window.s3 - border.s1;
  VEC v = (VEC)(LARGEST ? -FLT_MAX : 0.0f);
  int count = 0;
  for (int kh = 0; kh < window.s0; kh++) {
    const int h = top + kh * border.s2;
    if ((uint)h >= (uint)image.s0) continue;
    for (int kw = 0; kw < window.s1; kw++) {
      const int c = left + kw * border.s3;
      if ((uint)c >= (uint)image.s1) continue;
      const VEC a = LOADV(AT(x, n, b, h, c));
#if LARGEST
      v = a > v ? a : v;
#else
      v += a;
      count++;
#endif
    }
  }
#if !LARGEST
  if (padding.s2) {
    // Padding counts as zeros; what ceil_mode adds beyond the padding does not.
    const int bottom = top + window.s0 < image.s0 + padding.s0 ? top + window.s0 : image.s0 + padding.s0;
    const int right = left + window.s1 < image.s1 + padding.s1 ? left + window.s1 : image.s1 + padding.s1;
    count = (bottom - top) * (right - left);
  }
  v = v / (float)count;
#endif
  STOREV(AT(y, n, b, oh, ow), v);
}
