"""CUDA C of the leaves of a replay: what :mod:`gemmdesc.arithmetic.kernels` does for lanes, done by a thread each.

The same exact float64 operations in the same order, so that both give the same bits; tests compile this text for the
host as well.  Contraction has to be off (``--fmad=false``).
"""

from __future__ import annotations

#: The kernels, and how they must be compiled.
KERNEL_NAMES = ("gather", "leaves")
OPTIONS = ("--fmad=false",)
#: Threads of a block.
THREADS = 128
#: How float32 patterns are rounded before they are used: not, or as an operand's cast says.
CAST_NONE, CAST_TOWARD_ZERO, CAST_NEAREST_AWAY, CAST_NEAREST_EVEN = range(4)

SOURCE = """\
typedef long long i64;
typedef unsigned int u32;
#define ZERO_OPERAND_EXPONENT (-16384)
#define ZERO_PRODUCT (-8192)
#define EXPONENT_CAP 400

static __device__ double power_of_two(int e) { return __longlong_as_double((i64)(e + 1023) << 52); }

static __device__ int exponent_of(double v) { return (int)((__double_as_longlong(v) >> 52) & 0x7FF) - 1023; }

static __device__ double rounded(double v, int nearest, int fraction_bits, int min_exponent, double infinity) {
  int e = exponent_of(v);
  e = (e < min_exponent ? min_exponent : e > EXPONENT_CAP ? EXPONENT_CAP : e) - fraction_bits;
  const double scaled = v * power_of_two(-e);
  const double r = (nearest ? rint(scaled) : trunc(scaled)) * power_of_two(e);
  return fabs(r) >= infinity ? copysign(__longlong_as_double(0x7FF0000000000000LL), r) : r;
}

static __device__ int aligned_by(float x, int min_exponent) {
  const int field = (__float_as_int(x) >> 23 & 255) - 127;
  return x == 0.0f ? ZERO_OPERAND_EXPONENT : field < min_exponent ? min_exponent : field;
}

static __device__ float cast(u32 pattern, int how, int spare) {
  const u32 magnitude = pattern & 0x7FFFFFFFu;
  u32 r = pattern;
  if (how >= 2) {
    const u32 half = 1u << (spare - 1);
    r += how == 2 ? half : half - 1 + (pattern >> spare & 1u);
    r = magnitude < 0x7F800000u ? r : magnitude > 0x7F800000u ? 0x7FFFFFFFu : pattern;
  }
  return __int_as_float((int)(how ? r & (0xFFFFFFFFu << spare) : r));
}

// out[kk * count + j]: the value at order[kk] (or kk) of row rows[j] of bits, whose rows are row_stride apart.
extern "C" __global__ void gather(float* out, const void* bits, const float* table, const i64* rows, const i64* order,
                                  i64 count, i64 length, i64 row_stride, i64 itemsize, i64 how, i64 spare) {
  const i64 total = count * length, step = (i64)gridDim.x * blockDim.x;
  for (i64 t = (i64)blockIdx.x * blockDim.x + threadIdx.x; t < total; t += step) {
    const i64 j = t / length, kk = t % length;
    const i64 at = rows[j] * row_stride + (order ? order[kk] : kk);
    float value;
    if (itemsize == 1) value = table[((const unsigned char*)bits)[at]];
    else if (itemsize == 2) value = table[((const unsigned short*)bits)[at]];
    else value = cast(((const u32*)bits)[at], (int)how, (int)spare);
    out[kk * count + j] = value;
  }
}

struct Step { int fraction_bits, zero_exponent, zero_enters, nearest, to_bits, to_exponent, a_exponent, b_exponent; };

// What brings a step's terms, of which the products' exponents reach from low to high, to integers.
static __device__ double scale_of(double c, int high, int low, Step s) {
  int top = high;
  if (c != 0.0) {
    int e = exponent_of(c);
    e = e < s.to_exponent ? s.to_exponent : e > EXPONENT_CAP ? EXPONENT_CAP : e;
    top = e > top ? e : top;
  }
  if (!s.zero_enters || c == 0.0 || low < ZERO_PRODUCT) top = top < s.zero_exponent ? s.zero_exponent : top;
  return power_of_two(s.fraction_bits - top);
}

template <int N>
static __device__ double fused_step(double c, const float* a, const float* b, i64 m, i64 n, int length, Step s,
                                    double infinity) {
  float x[N], y[N];
  int high = -32768, low = 32767;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    // What a step lacks takes no part: neither in the largest exponent nor in the sum.
    x[k] = k < length ? a[k * m] : 0.0f;
    y[k] = k < length ? b[k * n] : 0.0f;
  }
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const int e = aligned_by(x[k], s.a_exponent) + aligned_by(y[k], s.b_exponent);
    if (k < length && e > high) high = e;
    if (k < length && e < low) low = e;
  }
  const double scale = scale_of(c, high, low, s);
  double total = trunc(c * scale);
#pragma unroll
  for (int k = 0; k < N; ++k)
    if (k < length) total += trunc((double)x[k] * (double)y[k] * scale);
  return rounded(total / scale, s.nearest, s.to_bits, s.to_exponent, infinity) + 0.0;
}

// A step longer than the registers take: as above, reading the operands twice.
static __device__ double long_step(double c, const float* a, const float* b, i64 m, i64 n, i64 length, Step s,
                                   double infinity) {
  int high = -32768, low = 32767;
  for (i64 k = 0; k < length; ++k) {
    const int e = aligned_by(a[k * m], s.a_exponent) + aligned_by(b[k * n], s.b_exponent);
    high = e > high ? e : high;
    low = e < low ? e : low;
  }
  const double scale = scale_of(c, high, low, s);
  double total = trunc(c * scale);
  for (i64 k = 0; k < length; ++k) total += trunc((double)a[k * m] * (double)b[k * n] * scale);
  return rounded(total / scale, s.nearest, s.to_bits, s.to_exponent, infinity) + 0.0;
}

// out[leaf][i][j], each a chain from start; kind 0: fused steps, 1: an fma each, 2: a product and an addition each.
extern "C" __global__ void leaves(float* out, const float* a, const float* b, const i64* leaf_offsets,
                                  const i64* step_ends, const i64* step_offsets, i64 count, i64 m, i64 n, i64 kind,
                                  float start, i64 fraction_bits, i64 zero_exponent, i64 zero_enters, i64 nearest,
                                  i64 to_bits, i64 to_exponent, double infinity, i64 a_exponent, i64 b_exponent) {
  const i64 size = m * n, total = count * size, stride = (i64)gridDim.x * blockDim.x;
  const Step s = {(int)fraction_bits, (int)zero_exponent, (int)zero_enters, (int)nearest,
                  (int)to_bits, (int)to_exponent, (int)a_exponent, (int)b_exponent};
  for (i64 t = (i64)blockIdx.x * blockDim.x + threadIdx.x; t < total; t += stride) {
    const i64 leaf = t / size, i = t % size / n, j = t % n;
    const float* const x = a + i;
    const float* const y = b + j;
    i64 begin = leaf_offsets[leaf];
    const i64 end = leaf_offsets[leaf + 1];
    if (kind) {
      float sum = start;
      for (i64 k = begin; k < end; ++k)
        sum = kind == 1 ? __fmaf_rn(x[k * m], y[k * n], sum) : __fadd_rn(__fmul_rn(x[k * m], y[k * n]), sum);
      out[t] = sum;
      continue;
    }
    double sum = (double)start;
    for (i64 step = step_offsets[leaf]; step < step_offsets[leaf + 1]; ++step) {
      const i64 length = step_ends[step] - begin;
      const float* const u = x + begin * m;
      const float* const v = y + begin * n;
      sum = length <= 8 ? fused_step<8>(sum, u, v, m, n, (int)length, s, infinity)
          : length <= 16 ? fused_step<16>(sum, u, v, m, n, (int)length, s, infinity)
          : length <= 32 ? fused_step<32>(sum, u, v, m, n, (int)length, s, infinity)
          : long_step(sum, u, v, m, n, length, s, infinity);
      begin = step_ends[step];
    }
    out[t] = (float)sum;
  }
}
"""
