// y = activation(x) or activation(x OP z), element by element; a stride of 0 repeats z along that dimension.
//
// SPLAT: z has one channel, which all lanes share.

#define OP_first(x, z) (x)
#define OP_add(x, z) ((x) + (z))
#define OP_mul(x, z) ((x) * (z))
#define OP_prelu(x, z) ((x) < 0.0f ? (x) * (z) : (x))

__kernel void elementwise(IN(x),
#if BINARY
                          IN(z),
#endif
                          OUT(y), const int4 size, ACT_ARGS) {
  // size: N, blocks, H, W
  const int b = get_global_id(CHANNELS_FIRST ? 0 : 1);
  const int q = get_global_id(CHANNELS_FIRST ? 1 : 0);
  const int n = get_global_id(2);
  if (b >= size.s1 || q >= size.s2 * size.s3) return;
  const int h = q / size.s3, w = q % size.s3;
#if SPLAT_X
  const VEC a = (VEC)LOADS(AT(x, n, b, h, w), 0);
#else
  const VEC a = LOADV(AT(x, n, b, h, w));
#endif
#if BINARY
#if SPLAT
  const VEC c = (VEC)LOADS(AT(z, n, b, h, w), 0);
#else
  const VEC c = LOADV(AT(z, n, b, h, w));
#endif
  const VEC v = OP(a, c);
#else
  const VEC v = a;
#endif
  STOREV(AT(y, n, b, h, w), ACTIVATE(v));
}
