// What all kernels share: vectors of L lanes, storage in float or half, tensors with strides, activations.
//
// A tensor is a pointer, the offset of its first element and the strides of image, channel block, row and column, in
// elements; a block is L channels that lie side by side. PoCL compiles OpenCL's built-in functions to calls, so loads,
// stores and maxima are written as plain C, and the contraction of `a += u * w` is left to the compiler.

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

typedef CAT(float, L) VEC;
typedef CAT(int, L) IVEC;

#if NATIVE
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif

#if CPU
// Vectors of half without built-in functions, and so even for compilers that take half for a type of memory alone.
typedef half HALVES __attribute__((ext_vector_type(L)));
#define HALF_TO_VEC(v) __builtin_convertvector((v), VEC)
#define VEC_TO_HALF(v) __builtin_convertvector((v), HALVES)
#define HALF_LANE(v, l) __builtin_astype((CAT(ushort, L))(((const ushort *)&(v))[l]), HALVES)
#elif NATIVE
typedef CAT(half, L) HALVES;
#define HALF_TO_VEC(v) CAT(convert_float, L)(v)
#define VEC_TO_HALF(v) CAT(convert_half, L)(v)
#define HALF_LANE(v, l) ((HALVES)(((const half *)&(v))[l]))
#endif

#if HALF
#define STORE half
#define LOADS(p, i) vload_half((i), (p))
#define STORES(p, i, v) vstore_half((v), (i), (p))
#if CPU || NATIVE
#define LOADV(p) HALF_TO_VEC(*(__global const HALVES *)(p))
#define STOREV(p, v) (*(__global HALVES *)(p) = VEC_TO_HALF(v))
#else
#define LOADV(p) CAT(vload_half, L)(0, (p))
#define STOREV(p, v) CAT(vstore_half, L)((v), 0, (p))
#endif
#else
#define STORE float
#define LOADS(p, i) ((p)[i])
#define STORES(p, i, v) ((p)[i] = (v))
#define LOADV(p) (*(__global const VEC *)(p))
#define STOREV(p, v) (*(__global VEC *)(p) = (v))
#endif

// What products are made of: halves where the device computes with them (NATIVE), else floats.
#if NATIVE
typedef HALVES TERM;
#define LOADT(p) (*(__global const TERM *)(p))
#define SPREAD(v, l) HALF_LANE(v, l)
// Products that are added up in half: their error stays below 16 · 2^-11 of the sum of their sizes.
#define PRODUCTS 16
#else
typedef VEC TERM;
#define LOADT(p) LOADV(p)
#define SPREAD(v, l) ((TERM)LANE(v, l))
#endif

// Where convolutions read weights and inputs: in buffers, or in images of 4 lanes a texel, which go through the texture cache
// of GPUs that have one. A place is a pointer, or an element's number. WIMAGE: power of 2 of the weights' width.
#if NATIVE
#define TEXEL(image, at) read_imageh(image, at)
#else
#define TEXEL(image, at) read_imagef(image, at)
#endif
#if WIMAGE
#define WEIGHTS __read_only image2d_t weight
#define WEIGHT_START 0
#define WEIGHT_TEXEL(p) (int2)(((p) >> 2) & ((1 << WIMAGE) - 1), (p) >> (2 + WIMAGE))
#define LOADW(p) TEXEL(weight, WEIGHT_TEXEL(p))
#define LOADW_FLOATS(p) read_imagef(weight, WEIGHT_TEXEL(p))
typedef int WEIGHT_PLACE;
#else
#define WEIGHTS __global const STORE *restrict weight
#define WEIGHT_START weight
#define LOADW(p) LOADT(p)
#define LOADW_FLOATS(p) LOADV(p)
typedef __global const STORE *WEIGHT_PLACE;
#endif
#if XIMAGE
#define X_IN __read_only image1d_buffer_t x, const int x_o, const int4 x_s
#define X_START x_o
#define LOADX(p) TEXEL(x, (p) >> 2)
#define LOADX_OR_ZERO(inside, p) ((inside) ? LOADX(p) : (TERM)0)
typedef int X_PLACE;
#elif XPLAIN
#define X_IN IN_FLOAT(x)
#define X_START (x + x_o)
typedef __global const float *X_PLACE;
#else
#define X_IN IN(x)
#define X_START (x + x_o)
#define LOADX(p) LOADT(p)
#define LOADX_OR_ZERO(inside, p) LOADT((inside) ? (p) : zero)
typedef __global const STORE *X_PLACE;
#endif

#if UNROLL
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("unroll 1")
#endif

#define LANE(v, l) (((const float *)&(v))[l])

// Arguments of a tensor called x: pointer, offset, strides.
#define IN(x) __global const STORE *restrict x, const int x##_o, const int4 x##_s
#define OUT(x) __global STORE *restrict x, const int x##_o, const int4 x##_s
#define IN_FLOAT(x) __global const float *restrict x, const int x##_o, const int4 x##_s
#define OUT_FLOAT(x) __global float *restrict x, const int x##_o, const int4 x##_s
#define AT(x, n, b, h, w) (x + x##_o + (n) * x##_s.s0 + (b) * x##_s.s1 + (h) * x##_s.s2 + (w) * x##_s.s3)

#if CPU
// 2^(x·log2 e): adding 1.5·2^23 rounds to a whole number, whose bits then raise the exponent of a polynomial in what is left,
// fitted to a relative error of 2e-7 over ±1/2.
static inline VEC exp_(VEC x) {
  x = x < 87.0f ? x : (VEC)87.0f;
  x = x > -87.0f ? x : (VEC)-87.0f;
  const VEC t = x * 1.44269504f + 12582912.0f;
  const VEC r = x * 1.44269504f - (t - 12582912.0f);
  VEC y = r * 1.3276468e-3f + 9.6755410e-3f;
  y = y * r + 5.5507135e-2f;
  y = y * r + 2.4022120e-1f;
  y = y * r + 6.9314694e-1f;
  y = y * r + 1.0f;
  return __builtin_astype(__builtin_astype(y, IVEC) + (__builtin_astype(t, IVEC) << 23), VEC);
}
#else
static inline VEC exp_(VEC x) { return exp(x); }
#endif

static inline VEC sigmoid_(VEC x) { return 1.0f / (1.0f + exp_(-x)); }

static inline VEC clip_(VEC x, float low, float high) {
  x = x > low ? x : (VEC)low;
  return x < high ? x : (VEC)high;
}

static inline VEC tanh_(VEC x) {
  VEC e = exp_(2.0f * clip_(x, -20.0f, 20.0f));
  return (e - 1.0f) / (e + 1.0f);
}

// Activations by number; `activations` in activations.py has the same list.
static inline VEC act_none(VEC x, float a, float b) { return x; }
static inline VEC act_relu(VEC x, float a, float b) { return x > 0.0f ? x : (VEC)0.0f; }
static inline VEC act_clip(VEC x, float a, float b) { return clip_(x, a, b); }
static inline VEC act_hard_sigmoid(VEC x, float a, float b) { return clip_(x * a + b, 0.0f, 1.0f); }
static inline VEC act_hard_swish(VEC x, float a, float b) { return x * clip_(x * (1.0f / 6.0f) + 0.5f, 0.0f, 1.0f); }
static inline VEC act_sigmoid(VEC x, float a, float b) { return sigmoid_(x); }
static inline VEC act_silu(VEC x, float a, float b) { return x * sigmoid_(x); }
static inline VEC act_tanh(VEC x, float a, float b) { return tanh_(x); }
static inline VEC act_gelu(VEC x, float a, float b) { return 0.5f * x * (1.0f + erf(x * 0.70710678f)); }
static inline VEC act_gelu_tanh(VEC x, float a, float b) { return 0.5f * x * (1.0f + tanh_(0.79788456f * (x + 0.044715f * x * x * x))); }
static inline VEC act_elu(VEC x, float a, float b) { return x < 0.0f ? a * (exp_(x) - 1.0f) : x; }
static inline VEC act_leaky_relu(VEC x, float a, float b) { return x < 0.0f ? x * a : x; }
static inline VEC act_mish(VEC x, float a, float b) {
  VEC e = exp_(x < 20.0f ? x : (VEC)20.0f);
  VEC n = e * (e + 2.0f);
  return x * n / (n + 2.0f);
}

#ifndef ACT
#define ACT act_none
#endif
#define ACTIVATE(v) ACT(v, act_a, act_b)
#define ACT_ARGS const float act_a, const float act_b
