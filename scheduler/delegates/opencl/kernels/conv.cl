// Convolution as a matrix product over gathered pixels: each work-item computes VW output pixels times VC channel blocks.
//
// The VW pixels may lie in different rows or images, so no tile is wasted at the end of a row, and a pixel outside the
// image reads zeros: borders need no padded copy of the input and no code of their own. Without pads nothing is CHECKED. Weights: [tile][kh][kw][input
// block][input lane][VC][L]. UNROLL: over the lanes of a block. BATCHED runs one 1×1 product for each z of the grid (Winograd's 36 matrices).
// SPLIT work-items of a group share the input channels of one tile and add up their sums, where a GPU would have too few.
//
// VH, VW, VC of paper 004's template with VH folded into VW; XPLAIN reads channel by channel from NCHW, YPLAIN writes it.

#if YPLAIN
#define Y_OUT OUT_FLOAT(y)
#else
#define Y_OUT OUT(y)
#endif

// Where output pixel i of the tile lies. FLAT: a 1×1 window with stride 1, so that pixels lie at equal distances in all tensors
// and neither images nor rows are told apart.
#if FLAT
#define PIXEL(t, b) (t + t##_o + (b) * t##_s.s1 + (p0 + i) * t##_s.s3)
#else
#define PIXEL(t, b) AT(t, n, b, oh, ow)
#endif
// Where sums of products go: in half precision a few of them are added up before they join the others, in floats.
#if NATIVE
#define SUMS terms
#define JOIN_TERMS                                                                                                                          \
  _Pragma("unroll") for (int i = 0; i < VW; i++) {                                                                                          \
    _Pragma("unroll") for (int j = 0; j < VC; j++) {                                                                                        \
      acc[i][j] += HALF_TO_VEC(terms[i][j]);                                                                                                \
      terms[i][j] = (TERM)0;                                                                                                                \
    }                                                                                                                                       \
  }
#else
#define SUMS acc
#endif
// A division takes as long as ten multiply-adds, so there is one a tile.
#define NEXT_PIXEL                                                                                                                          \
  if (++ow == result.s1) {                                                                                                                  \
    ow = 0;                                                                                                                                 \
    if (++oh == result.s0) oh = 0, n++;                                                                                                     \
  }

__kernel void conv(X_IN, __global const STORE *restrict zero, WEIGHTS, __global const float *restrict bias,
#if RESIDUAL
                   IN(r),
#endif
#if GROUPED
                   __global const int *restrict first,
#endif
                   Y_OUT, const int4 image, const int4 result, const int4 window, const int4 border, const int2 tiles, const int4 z, ACT_ARGS) {
  // image: H, W, input blocks (XPLAIN: channels) of a tile, C; result: OH, OW, blocks, channels; window: KH, KW, strides
  int t = get_global_id(CHANNELS_FIRST ? 0 : 1);
  int q = get_global_id(CHANNELS_FIRST ? 1 : 0);
#if SPLIT > 1
  __local VEC sums[(SPLIT - 1) * GROUP * VW * VC];
  const int part = get_local_id(2);
  const int live = q < tiles.s0 && t < tiles.s1;
  // All work-items of a group meet at the barrier below, so none may leave before it.
  if (!live) t = 0, q = 0;
#else
  const int part = 0;
  if (q >= tiles.s0 || t >= tiles.s1) return;
#endif
  const int pixels = z.s3;
  const int o = t * VC;
  int p0 = q * VW;
  if (p0 > pixels - VW) p0 = pixels - VW;

  VEC acc[VW][VC];
#pragma unroll
  for (int i = 0; i < VW; i++)
#pragma unroll
    for (int j = 0; j < VC; j++)
      acc[i][j] = (BATCHED | part) ? (VEC)0.0f : *(__global const VEC *)(bias + (o + j) * L);
#if NATIVE && !XPLAIN
  TERM terms[VW][VC];
#pragma unroll
  for (int i = 0; i < VW; i++)
#pragma unroll
    for (int j = 0; j < VC; j++) terms[i][j] = (TERM)0;
  int held = 0;
#endif

  WEIGHT_PLACE w = WEIGHT_START + (long)t * image.s2 * window.s0 * window.s1 * (XPLAIN ? 1 : L) * VC * L;
  X_PLACE start = X_START;
#if BATCHED
  start += (long)get_global_id(2) * z.s0;
  w += (long)get_global_id(2) * z.s1;
#endif
#if GROUPED
  start += first[t] * x_s.s1;
#endif

#if !FLAT
  int base[VW], row[VW], column[VW];
  {
    int n = p0 / (result.s0 * result.s1);
    int oh = (p0 - n * result.s0 * result.s1) / result.s1;
    int ow = p0 - (n * result.s0 + oh) * result.s1;
#pragma unroll
    for (int i = 0; i < VW; i++) {
      base[i] = n * x_s.s0;
      row[i] = oh * window.s2 - border.s0;
      column[i] = ow * window.s3 - border.s1;
      NEXT_PIXEL
    }
  }
#endif

  for (int kh = 0; kh < window.s0; kh++)
    for (int kw = 0; kw < window.s1; kw++) {
      X_PLACE xp[VW];
      int inside[VW];
#pragma unroll
      for (int i = 0; i < VW; i++) {
#if FLAT
        xp[i] = start + (p0 + i) * x_s.s3;
        inside[i] = 1;
#else
        const int h = row[i] + kh * border.s2;
        const int v = column[i] + kw * border.s3;
        inside[i] = !CHECKED || ((uint)h < (uint)image.s0 && (uint)v < (uint)image.s1);
        const int at = base[i] + h * x_s.s2 + v * x_s.s3;
#if XPLAIN || XVEC
        xp[i] = start + (inside[i] ? at : 0);
#else
        xp[i] = inside[i] ? start + at : zero;
#endif
#endif
      }
#if XPLAIN
      for (int c = 0; c < image.s2; c++) {
        const int k = c * x_s.s1;
        VEC u[VC];
#pragma unroll
        for (int j = 0; j < VC; j++) u[j] = LOADW_FLOATS(w + j * L);
#pragma unroll
        for (int i = 0; i < VW; i++) {
          const float a = inside[i] ? xp[i][k] : 0.0f;
#pragma unroll
          for (int j = 0; j < VC; j++) acc[i][j] += a * u[j];
        }
        w += VC * L;
      }
#else
      WEIGHT_PLACE wc = w + part * (L * VC * L);
      for (int c = part, k = part * x_s.s1; c < image.s2; c += SPLIT, k += SPLIT * x_s.s1) {
#if XVEC
        TERM a[VW];
#pragma unroll
        for (int i = 0; i < VW; i++) a[i] = inside[i] ? LOADX(xp[i] + k) : (TERM)0;
#endif
        UNROLLED
        for (int l = 0; l < L; l++) {
          TERM u[VC];
#pragma unroll
          for (int j = 0; j < VC; j++) u[j] = LOADW(wc + (l * VC + j) * L);
#pragma unroll
          for (int i = 0; i < VW; i++) {
#if XVEC
            const TERM s = SPREAD(a[i], l);
#else
            const float s = LOADS(xp[i], k + l);
#endif
#pragma unroll
            for (int j = 0; j < VC; j++) SUMS[i][j] += s * u[j];
          }
        }
#if NATIVE
        if (++held == PRODUCTS / L) {
          held = 0;
          JOIN_TERMS
        }
#endif
        wc += SPLIT * (L * VC * L);
      }
      w += image.s2 * (L * VC * L);
#endif
    }
#if NATIVE && !XPLAIN
  JOIN_TERMS
#endif

#if SPLIT > 1
  const int slot = (get_local_id(1) * get_local_size(0) + get_local_id(0)) * VW * VC;
  if (part)
#pragma unroll
    for (int i = 0; i < VW; i++)
#pragma unroll
      for (int j = 0; j < VC; j++) sums[(part - 1) * GROUP * VW * VC + slot + i * VC + j] = acc[i][j];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (part || !live) return;
  for (int s = 0; s < SPLIT - 1; s++)
#pragma unroll
    for (int i = 0; i < VW; i++)
#pragma unroll
      for (int j = 0; j < VC; j++) acc[i][j] += sums[s * GROUP * VW * VC + slot + i * VC + j];
#endif

#if !FLAT
  int n = p0 / (result.s0 * result.s1);
  int oh = (p0 - n * result.s0 * result.s1) / result.s1;
  int ow = p0 - (n * result.s0 + oh) * result.s1;
#endif
#pragma unroll
  for (int i = 0; i < VW; i++) {
#pragma unroll
    for (int j = 0; j < VC; j++) {
      if (o + j >= result.s2) continue;
      VEC v = acc[i][j];
#if RESIDUAL
#if RESIDUAL_LAST
      v = ACTIVATE(v) + LOADV(PIXEL(r, o + j));
#else
      v += LOADV(PIXEL(r, o + j));
      v = ACTIVATE(v);
#endif
#else
      v = ACTIVATE(v);
#endif
#if YPLAIN
#pragma unroll
      for (int l = 0; l < L; l++)
        if ((o + j) * L + l < result.s3) *PIXEL(y, (o + j) * L + l) = LANE(v, l);
#elif BATCHED
      STOREV(PIXEL(y, o + j) + (long)get_global_id(2) * z.s2, v);
#else
      STOREV(PIXEL(y, o + j), v);
#endif
    }
#if !FLAT
    NEXT_PIXEL
#endif
  }
}
