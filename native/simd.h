// Eight floats, and the few operations that kernels are written in. Every operation has one result
// per lane that does not depend on its neighbours. For kernel files only: it lives in the namespace
// of the instruction set that the file is being compiled for.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define GLIMPSE_SIMD_AVX2 1
#else
#define GLIMPSE_SIMD_AVX2 0
#endif

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define GLIMPSE_SIMD_VNNI 1
#else
#define GLIMPSE_SIMD_VNNI 0
#endif

#define GLIMPSE_INLINE inline __attribute__((always_inline))

namespace glimpse::GLIMPSE_ISA {

// Vectors of the compiler's own kind: where the machine has narrower ones it splits them.
typedef float Floats __attribute__((vector_size(32)));
typedef std::int32_t Ints __attribute__((vector_size(32)));
typedef std::uint32_t Bits __attribute__((vector_size(32)));
typedef std::uint16_t Halves __attribute__((vector_size(16)));
typedef std::int8_t Bytes __attribute__((vector_size(8)));
typedef std::int16_t Shorts __attribute__((vector_size(32)));
typedef std::int8_t Bytes16 __attribute__((vector_size(16)));

constexpr int kLanes = 8;

// ------------------------------------------------------------------------------- eight integers

struct i32x8 {
  Ints v;

  static GLIMPSE_INLINE i32x8 zero() { return {Ints{}}; }
  static GLIMPSE_INLINE i32x8 set1(std::int32_t x) { return {Ints{} + x}; }
};

GLIMPSE_INLINE i32x8 operator+(i32x8 a, i32x8 b) { return {a.v + b.v}; }
GLIMPSE_INLINE i32x8 operator-(i32x8 a, i32x8 b) { return {a.v - b.v}; }
GLIMPSE_INLINE i32x8 operator*(i32x8 a, i32x8 b) { return {a.v * b.v}; }

// Sixteen short integers, in eight pairs.
struct i16x16 {
  Shorts v;

  static GLIMPSE_INLINE i16x16 load(const std::int16_t* from) {
    i16x16 x;
    std::memcpy(&x.v, from, sizeof x.v);
    return x;
  }
  static GLIMPSE_INLINE i16x16 load(const std::int8_t* from) {
#if GLIMPSE_SIMD_AVX2
    return {(Shorts)_mm256_cvtepi8_epi16(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
#else
    Bytes16 bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return {__builtin_convertvector(bytes, Shorts)};
#endif
  }
  // The same pair in all places.
  static GLIMPSE_INLINE i16x16 set1(const std::int16_t* pair) {
    std::int32_t both;
    std::memcpy(&both, pair, sizeof both);
    return {(Shorts)(Ints{} + both)};
  }
};

// c + the dot product of each pair.
GLIMPSE_INLINE i32x8 dot(i16x16 a, i16x16 b, i32x8 c) {
#if GLIMPSE_SIMD_VNNI
  return {(Ints)_mm256_dpwssd_epi32((__m256i)c.v, (__m256i)a.v, (__m256i)b.v)};
#elif GLIMPSE_SIMD_AVX2
  const __m256i products = _mm256_madd_epi16((__m256i)a.v, (__m256i)b.v);
  // Added in place: left alone, GCC adds late, spills what it has to keep and copies each sum.
  asm("vpaddd %1, %0, %0" : "+x"(c.v) : "x"(products));
  return c;
#else
  // Sums wrap, as those of the instructions do: beside the last key of a text lies what its memory
  // held before, whose sums nobody reads.
  const Ints x = (Ints)a.v, y = (Ints)b.v;
  const Ints low = (x << 16 >> 16) * (y << 16 >> 16), high = (x >> 16) * (y >> 16);
  return {(Ints)((Bits)c.v + (Bits)low + (Bits)high)};
#endif
}

// --------------------------------------------------------------- the widest vectors of integers

// Sixteen sums of products, in as many vectors as the machine needs.
#if GLIMPSE_SIMD_VNNI

struct i32x16 {
  __m512i v;

  static GLIMPSE_INLINE i32x16 zero() { return {_mm512_setzero_si512()}; }
};

struct i16x32 {
  __m512i v;

  static GLIMPSE_INLINE i16x32 load(const std::int16_t* from) { return {_mm512_loadu_si512(from)}; }
  static GLIMPSE_INLINE i16x32 load(const std::int8_t* from) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
  }
  static GLIMPSE_INLINE i16x32 set1(const std::int16_t* pair) {
    std::int32_t both;
    std::memcpy(&both, pair, sizeof both);
    return {_mm512_set1_epi32(both)};
  }
};

GLIMPSE_INLINE i32x16 dot(i16x32 a, i16x32 b, i32x16 c) {
  // Added in place, as below.
  asm("vpdpwssd %2, %1, %0" : "+v"(c.v) : "v"(a.v), "v"(b.v));
  return c;
}

using WideShorts = i16x32;
using WideInts = i32x16;
constexpr int kWideVectors = 1;

GLIMPSE_INLINE i32x8 eight_of(const WideInts (&sums)[kWideVectors], int half) {
  return {(Ints)(half == 0 ? _mm512_castsi512_si256(sums[0].v)
                           : _mm512_extracti64x4_epi64(sums[0].v, 1))};
}

#else

using WideShorts = i16x16;
using WideInts = i32x8;
constexpr int kWideVectors = 2;

GLIMPSE_INLINE i32x8 eight_of(const WideInts (&sums)[kWideVectors], int half) { return sums[half]; }

#endif

constexpr int kWideShorts = 32 / kWideVectors;  // in a vector

// --------------------------------------------------------------------------------- eight floats

struct f32x8 {
  Floats v;

  static GLIMPSE_INLINE f32x8 zero() { return {Floats{}}; }
  static GLIMPSE_INLINE f32x8 set1(float x) { return {Floats{x, x, x, x, x, x, x, x}}; }
  static GLIMPSE_INLINE f32x8 load(const float* from) {
    f32x8 x;
    std::memcpy(&x.v, from, sizeof x.v);
    return x;
  }
  GLIMPSE_INLINE void store(float* to) const { std::memcpy(to, &v, sizeof v); }
  GLIMPSE_INLINE float operator[](int lane) const { return v[lane]; }

  // IEEE half precision, exact.
  static GLIMPSE_INLINE f32x8 load_f16(const std::uint16_t* from) {
#if GLIMPSE_SIMD_AVX2
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
#else
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    const Bits h = __builtin_convertvector(halves, Bits);
    // Moving exponent and fraction into place is off by 2^112, subnormals included; an exponent
    // of all ones stays so.
    const Floats magnitude = (Floats)((h & 0x7fffu) << 13) * 0x1p112f;
    const Bits special = (Bits)((h & 0x7c00u) == 0x7c00u) & 0x7f800000u;
    return {(Floats)((Bits)magnitude | special | (h & 0x8000u) << 16)};
#endif
  }

  static GLIMPSE_INLINE f32x8 load_bf16(const std::uint16_t* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return {(Floats)(__builtin_convertvector(halves, Bits) << 16)};
  }

  static GLIMPSE_INLINE f32x8 load_i8(const std::int8_t* from) {
    Bytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
#if GLIMPSE_SIMD_AVX2
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))))};
#else
    return {__builtin_convertvector(bytes, Floats)};
#endif
  }
};

GLIMPSE_INLINE f32x8 operator+(f32x8 a, f32x8 b) { return {a.v + b.v}; }
GLIMPSE_INLINE f32x8 operator-(f32x8 a, f32x8 b) { return {a.v - b.v}; }
GLIMPSE_INLINE f32x8 operator*(f32x8 a, f32x8 b) { return {a.v * b.v}; }
GLIMPSE_INLINE f32x8 operator/(f32x8 a, f32x8 b) { return {a.v / b.v}; }

// a * b + c; rounded once where the machine can do so fast.
GLIMPSE_INLINE f32x8 fma(f32x8 a, f32x8 b, f32x8 c) {
#if GLIMPSE_SIMD_AVX2
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
#elif defined(__FP_FAST_FMAF)
  Floats r;
  for (int i = 0; i < kLanes; ++i) r[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return {r};
#else
  return {a.v * b.v + c.v};
#endif
}

GLIMPSE_INLINE f32x8 max(f32x8 a, f32x8 b) { return {a.v > b.v ? a.v : b.v}; }
GLIMPSE_INLINE f32x8 min(f32x8 a, f32x8 b) { return {a.v < b.v ? a.v : b.v}; }
GLIMPSE_INLINE f32x8 abs(f32x8 a) { return {(Floats)((Bits)a.v & 0x7fffffffu)}; }

GLIMPSE_INLINE f32x8 to_float(i32x8 a) { return {__builtin_convertvector(a.v, Floats)}; }

// Nearest integer, ties to even; for |a| < 2^22.
GLIMPSE_INLINE i32x8 round_to_int(f32x8 a) {
  constexpr float kShift = 0x1.8p23f;
  return {(Ints)(a.v + kShift) - (Ints)(Floats{} + kShift)};
}

GLIMPSE_INLINE void store_i16(i32x8 a, std::int16_t* to) {
  typedef std::int16_t Shorts8 __attribute__((vector_size(16)));
  const Shorts8 shorts = __builtin_convertvector(a.v, Shorts8);
  std::memcpy(to, &shorts, sizeof shorts);
}

GLIMPSE_INLINE void store_i8(i32x8 a, std::int8_t* to) {
  const Bytes bytes = __builtin_convertvector(a.v, Bytes);
  std::memcpy(to, &bytes, sizeof bytes);
}

// Sum of the lanes in one fixed order.
GLIMPSE_INLINE float sum(f32x8 a) {
  const float s0 = a.v[0] + a.v[4], s1 = a.v[1] + a.v[5];
  const float s2 = a.v[2] + a.v[6], s3 = a.v[3] + a.v[7];
  return (s0 + s2) + (s1 + s3);
}

GLIMPSE_INLINE float max(f32x8 a) {
  float m = a.v[0];
  for (int i = 1; i < kLanes; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}

// e^a with an error of about a unit in the last place; 0 below -87.3, so also at -infinity.
// For a <= 88.
GLIMPSE_INLINE f32x8 exp(f32x8 a) {
  constexpr float kLog2E = 0x1.715476p0f, kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  constexpr float kLowest = -87.3f;
  const f32x8 x = max(a, f32x8::set1(kLowest));
  const i32x8 n = round_to_int(x * f32x8::set1(kLog2E));
  const f32x8 nf = to_float(n);
  f32x8 r = fma(nf, f32x8::set1(-kLn2High), x);
  r = fma(nf, f32x8::set1(-kLn2Low), r);
  f32x8 p = f32x8::set1(0x1.a01a02p-13f);  // 1/5040 ... 1/2: the series, |r| < 0.35
  p = fma(p, r, f32x8::set1(0x1.6c16c2p-10f));
  p = fma(p, r, f32x8::set1(0x1.111112p-7f));
  p = fma(p, r, f32x8::set1(0x1.555556p-5f));
  p = fma(p, r, f32x8::set1(0x1.555556p-3f));
  p = fma(p, r, f32x8::set1(0.5f));
  p = fma(p * r, r, r) + f32x8::set1(1.0f);
  const Floats scaled = (Floats)((Ints)p.v + (n.v << 23));
  return {(Floats)((Ints)scaled & (a.v >= kLowest))};
}

// Store as IEEE half precision, rounded to nearest even.
GLIMPSE_INLINE void store_f16(f32x8 a, std::uint16_t* to) {
#if GLIMPSE_SIMD_AVX2
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
#else
  const Bits bits = (Bits)a.v;
  const Bits magnitude = bits & 0x7fffffffu;
  // Normal results: rebias, add just under half a unit plus the last kept bit, cut.
  const Bits normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  // Subnormal ones: adding 0.5 leaves the rounded value in the low bits.
  const Bits tiny = (Bits)((Floats)magnitude + 0.5f) - 0x3f000000u;
  const Bits huge = Bits{} + 0x7c00u + ((Bits)(magnitude > 0x7f800000u) & 0x0200u);
  const Bits small = magnitude < 0x38800000u ? tiny : normal;
  const Bits result = (magnitude >= 0x477ff000u ? huge : small) | (bits >> 16 & 0x8000u);
  const Halves halves = __builtin_convertvector(result, Halves);
  std::memcpy(to, &halves, sizeof halves);
#endif
}

}  // namespace glimpse::GLIMPSE_ISA
