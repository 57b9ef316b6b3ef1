// First convolution of a network: reads few channels of an NCHW image in floats, so that no layout conversion runs before it.
//
// Each work-item computes VW neighbouring pixels of a row times VC channel blocks. The loop over columns stays a loop: where
// it is unrolled, compilers keep the inputs that pixels share in registers, and the sums no longer fit. Tiles at the left and right border check each column, those in between
// do not (REGIONS; its nine regions, rows being left out as a whole). Weights: [tile][c][kh][KW][VC][L].

#if YPLAIN
#define Y_OUT OUT_FLOAT(y)
#else
#define Y_OUT OUT(y)
#endif

#define TAPS(VALUE)                                                                                                                         \
  _Pragma("unroll 1") for (int kw = 0; kw < KW; kw++) {                                                                                     \
    VEC u[VC];                                                                                                                              \
    _Pragma("unroll") for (int j = 0; j < VC; j++) u[j] = LOADW_FLOATS(w + (kw * VC + j) * L);                                                     \
    _Pragma("unroll") for (int i = 0; i < VW; i++) {                                                                                        \
      const int v = left + i * SW + kw;                                                                                                     \
      const float a = VALUE;                                                                                                                \
      _Pragma("unroll") for (int j = 0; j < VC; j++) acc[i][j] += a * u[j];                                                                 \
    }                                                                                                                                       \
  }

__kernel void stem(IN_FLOAT(x), WEIGHTS, __global const float *restrict bias, Y_OUT, const int4 image,
                   const int4 result, const int4 window, const int4 tiles, ACT_ARGS) {
  // image: H, W, C; result: OH, OW, blocks, channels; window: KH, row stride, pads; tiles: in a row, of channels
  const int t = get_global_id(CHANNELS_FIRST ? 0 : 1);
  const int q = get_global_id(CHANNELS_FIRST ? 1 : 0);
  const int n = get_global_id(2);
  if (q >= tiles.s0 * result.s0 || t >= tiles.s1) return;
  const int o = t * VC;
  const int oh = q / tiles.s0;
  int ow = (q % tiles.s0) * VW;
  if (ow > result.s1 - VW) ow = result.s1 - VW;
  const int top = oh * window.s1 - window.s2;
  const int left = ow * SW - window.s3;
  const int interior = REGIONS && left >= 0 && left + (VW - 1) * SW + KW <= image.s1;

  VEC acc[VW][VC];
#pragma unroll
  for (int i = 0; i < VW; i++)
#pragma unroll
    for (int j = 0; j < VC; j++) acc[i][j] = *(__global const VEC *)(bias + (o + j) * L);

  for (int c = 0; c < image.s2; c++)
    for (int kh = 0; kh < window.s0; kh++) {
      const int h = top + kh;
      if ((uint)h >= (uint)image.s0) continue;
      __global const float *line = AT(x, n, c, h, 0);
      WEIGHT_PLACE w = WEIGHT_START + (((long)t * image.s2 + c) * window.s0 + kh) * KW * VC * L;
      if (interior) {
        TAPS(line[v])
      } else {
        TAPS((uint)v < (uint)image.s1 ? line[v] : 0.0f)
      }
    }

#pragma unroll
  for (int i = 0; i < VW; i++)
#pragma unroll
    for (int j = 0; j < VC; j++) {
      if (o + j >= result.s2) continue;
      VEC v = ACTIVATE(acc[i][j]);
#if YPLAIN
#pragma unroll
      for (int l = 0; l < L; l++)
        if ((o + j) * L + l < result.s3) *AT(y, n, (o + j) * L + l, oh, ow + i) = LANE(v, l);
#else
      STOREV(AT(y, n, o + j, oh, ow + i), v);
#endif
    }
}
