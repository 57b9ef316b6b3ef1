// Copies elements one by one between any two layouts, with a map of each index: layout conversions, Pad, Resize, Slice,
// channel shuffle, and Concat of slices that do not start at a block.
//
// Output element (n, c, h, w) takes input element (n, perm(c) + first channel, (h - top) / down, (w - left) / across), or
// `fill` where that lies outside. BX and BY are the lanes of a block in x and y; 1 is NCHW. Padded lanes of y are zeroed.

#if XPLAIN
#define X_IN IN_FLOAT(x)
#define GET(p) (*(p))
#else
#define X_IN IN(x)
#define GET(p) LOADS((p), 0)
#endif
#if YPLAIN
#define Y_OUT OUT_FLOAT(y)
#define PUT(p, v) (*(p) = (v))
#else
#define Y_OUT OUT(y)
#define PUT(p, v) STORES((p), 0, (v))
#endif

__kernel void move(X_IN, Y_OUT, const int4 from, const int4 to, const int4 start, const int4 scale, const float fill) {
  // from: C, H, W; to: C, H, W; start: first channel of x, top, left, first channel of y; scale: down, across, shuffle's groups and width
  const int b = get_global_id(CHANNELS_FIRST ? 0 : 1);
  const int q = get_global_id(CHANNELS_FIRST ? 1 : 0);
  const int n = get_global_id(2);
  if (b * BLOCK >= to.s0 || q >= to.s1 * to.s2) return;
  const int oh = q / to.s2, ow = q % to.s2;
  const int h = oh - start.s1, w = ow - start.s2;
  const int inside = (uint)h < (uint)(from.s1 * scale.s0) && (uint)w < (uint)(from.s2 * scale.s1);
  const int ih = inside ? h / scale.s0 : 0, iw = inside ? w / scale.s1 : 0;
  for (int l = 0; l < BLOCK; l++) {
    const int oc = b * BLOCK + l;
    float v = 0.0f;
    if (oc < to.s0) {
      int c = scale.s2 > 1 ? (oc % scale.s2) * scale.s3 + oc / scale.s2 : oc;
      c += start.s0;
      v = inside ? GET(AT(x, n, c / BX, ih, iw) + c % BX) : fill;
    } else if (!LAST) {
      continue;
    }
    const int yc = oc + start.s3;
    PUT(AT(y, n, yc / BY, oh, ow) + yc % BY, v);
  }
}
