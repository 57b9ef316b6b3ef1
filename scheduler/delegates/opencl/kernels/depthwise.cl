// Depthwise convolution: each work-item computes VW neighbouring pixels of a row for one block of channels.
//
// KW and SW are constants, so that loads shared by neighbouring pixels happen once (MERGED; memory-access merging, paper 001);
// tiles inside the image read without checks (REGIONS), those at its border read zeros outside. Weights: [block][KH][KW][L].

#if YPLAIN
#define Y_OUT OUT_FLOAT(y)
#else
#define Y_OUT OUT(y)
#endif
#if NATIVE
// Products of one row of the window; MAX_WIDTH of depthwise.py keeps them few.
#define SUMS terms
#else
#define SUMS acc
#endif
#define SPAN ((VW - 1) * SW + (KW - 1) * DW + 1)

__kernel void depthwise(X_IN, __global const STORE *restrict zero, WEIGHTS, __global const float *restrict bias,
                        Y_OUT, const int4 image, const int4 result, const int4 window, const int2 tiles, ACT_ARGS) {
  // image: H, W, row dilation; result: OH, OW, blocks, channels; window: KH, row stride, pads; tiles: in a row
  const int b = get_global_id(CHANNELS_FIRST ? 0 : 1);
  const int q = get_global_id(CHANNELS_FIRST ? 1 : 0);
  const int n = get_global_id(2);
  if (q >= tiles.s0 * result.s0 || b >= result.s2) return;
  const int oh = q / tiles.s0;
  int ow = (q % tiles.s0) * VW;
  if (ow > result.s1 - VW) ow = result.s1 - VW;
  const int top = oh * window.s1 - window.s2;
  const int left = ow * SW - window.s3;
  const int interior = REGIONS && left >= 0 && left + SPAN <= image.s1;

  VEC acc[VW];
#pragma unroll
  for (int i = 0; i < VW; i++) acc[i] = *(__global const VEC *)(bias + b * L);
  WEIGHT_PLACE w = WEIGHT_START + b * window.s0 * KW * L;

  for (int kh = 0; kh < window.s0; kh++, w += KW * L) {
    const int h = top + kh * image.s2;
    if ((uint)h >= (uint)image.s0) continue;
    const X_PLACE line = X_START + n * x_s.s0 + b * x_s.s1 + h * x_s.s2;
#if MERGED
    TERM a[SPAN];
    if (interior) {
#pragma unroll
      for (int k = 0; k < SPAN; k++) a[k] = LOADX(line + (left + k) * x_s.s3);
    } else {
#pragma unroll
      for (int k = 0; k < SPAN; k++) {
        const int v = left + k;
        a[k] = LOADX_OR_ZERO((uint)v < (uint)image.s1, line + v * x_s.s3);
      }
    }
#define INPUT(i) a[(i) * SW + kw * DW]
#else
#define INPUT(i) LOADX_OR_ZERO((uint)(left + (i) * SW + kw * DW) < (uint)image.s1, line + (left + (i) * SW + kw * DW) * x_s.s3)
#endif
#if NATIVE
    TERM terms[VW];
#pragma unroll
    for (int i = 0; i < VW; i++) terms[i] = (TERM)0;
#endif
    UNROLLED
    for (int kw = 0; kw < KW; kw++) {
      const TERM u = LOADW(w + kw * L);
#pragma unroll
      for (int i = 0; i < VW; i++) SUMS[i] += INPUT(i) * u;
    }
#if NATIVE
#pragma unroll
    for (int i = 0; i < VW; i++) acc[i] += HALF_TO_VEC(terms[i]);
#endif
  }

#pragma unroll
  for (int i = 0; i < VW; i++) {
    const VEC v = ACTIVATE(acc[i]);
#if YPLAIN
#pragma unroll
    for (int l = 0; l < L; l++)
      if (b * L + l < result.s3) *AT(y, n, b * L + l, oh, ow + i) = LANE(v, l);
#else
    STOREV(AT(y, n, b, oh, ow + i), v);
#endif
  }
}
