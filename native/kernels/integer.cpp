#include "kernels/integer.h"

#include "kernels/store.h"
#include "kernels/unpack.h"
#include "simd.h"

namespace glimpse::GLIMPSE_ISA {
namespace {

constexpr int kHalfBlock = kBlock / 2;
constexpr std::int64_t kRowsInCache = 100;

// ---------------------------------------------------------------------------- sums of one block

#if GLIMPSE_SIMD_AVX2

GLIMPSE_INLINE __m256i load256(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

GLIMPSE_INLINE std::int32_t load32(const void* from) {
  std::int32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}

GLIMPSE_INLINE __m256i broadcast32(const void* from) { return _mm256_set1_epi32(load32(from)); }

// Pins a sum to a register here: left alone, GCC adds late and spills what it has to keep.
GLIMPSE_INLINE void pin(__m256i& x) { asm("" : "+x"(x)); }

#if GLIMPSE_SIMD_VNNI

// Values of 4 bits times `x` [R][32].
template <int R>
GLIMPSE_INLINE void dot_nibbles(const std::uint8_t* weights, const std::int8_t* x,
                                std::int64_t stride, i32x8 (&sums)[R]) {
  const __m256i low_half = _mm256_set1_epi8(15);
  __m256i total[R];
  for (int r = 0; r < R; ++r) total[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int step = 0; step < 4; ++step) {
    const __m256i packed = load256(weights + 32 * step);
    const __m256i low = _mm256_and_si256(packed, low_half);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low_half);
    for (int r = 0; r < R; ++r) {
      const std::int8_t* at = x + r * stride + 4 * step;
      total[r] = _mm256_dpbusd_epi32(total[r], low, broadcast32(at));
      total[r] = _mm256_dpbusd_epi32(total[r], high, broadcast32(at + 16));
    }
  }
  for (int r = 0; r < R; ++r) sums[r] = {(Ints)total[r]};
}

#else

// Values of 4 bits times `x` [R][32]. Sixteen products of at most 15 * 127 fit into 16 bits.
template <int R>
GLIMPSE_INLINE void dot_nibbles(const std::uint8_t* weights, const std::int8_t* x,
                                std::int64_t stride, i32x8 (&sums)[R]) {
  const __m256i low_half = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  __m256i partial[R];
  for (int r = 0; r < R; ++r) partial[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int step = 0; step < 4; ++step) {
    const __m256i packed = load256(weights + 32 * step);
    const __m256i low = _mm256_and_si256(packed, low_half);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low_half);
    for (int r = 0; r < R; ++r) {
      const std::int8_t* at = x + r * stride + 4 * step;
      partial[r] = _mm256_add_epi16(partial[r], _mm256_maddubs_epi16(low, broadcast32(at)));
      partial[r] = _mm256_add_epi16(partial[r], _mm256_maddubs_epi16(high, broadcast32(at + 16)));
      pin(partial[r]);
    }
  }
  for (int r = 0; r < R; ++r) sums[r] = {(Ints)_mm256_madd_epi16(partial[r], ones)};
}

#endif

#else

GLIMPSE_INLINE Ints load_ints(const void* from) {
  Ints v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <int R>
GLIMPSE_INLINE void dot_nibbles(const std::uint8_t* weights, const std::int8_t* x,
                                std::int64_t stride, i32x8 (&sums)[R]) {
  for (int r = 0; r < R; ++r) sums[r] = i32x8::zero();
  for (int step = 0; step < 4; ++step) {
    const Ints packed = load_ints(weights + 32 * step);
    for (int i = 0; i < 4; ++i) {
      const i32x8 low = {packed >> (8 * i) & 15}, high = {packed >> (8 * i + 4) & 15};
      for (int r = 0; r < R; ++r) {
        const std::int8_t* at = x + r * stride + 4 * step + i;
        sums[r] = sums[r] + low * i32x8::set1(at[0]) + high * i32x8::set1(at[16]);
      }
    }
  }
}

#endif

// Values of 8 bits times `x` [R][N].
template <int R, int N>
GLIMPSE_INLINE void dot_bytes(const std::uint8_t* weights, const std::int16_t* x,
                              std::int64_t stride, i32x8 (&sums)[R]) {
  i32x8 total[R];
  for (int r = 0; r < R; ++r) total[r] = i32x8::zero();
#pragma GCC unroll 16
  for (int step = 0; step < N / 2; ++step) {
    const i16x16 w = i16x16::load(reinterpret_cast<const std::int8_t*>(weights) + 16 * step);
    for (int r = 0; r < R; ++r)
      total[r] = dot(w, i16x16::set1(x + r * stride + 2 * step), total[r]);
  }
  for (int r = 0; r < R; ++r) sums[r] = total[r];
}

// --------------------------------------------------------------------------------- a tile of rows

template <WeightType T, int R>
GLIMPSE_INLINE void dot_block(const std::uint8_t* weights, const IntegerRows& rows,
                              std::int64_t at, i32x8 (&sums)[R]) {
  if constexpr (is_nibbles(T)) {
    dot_nibbles<R>(weights, rows.bytes + at, rows.num_inputs, sums);
  } else {
    dot_bytes<R, block_size(T)>(weights, rows.shorts + at, rows.num_inputs, sums);
  }
}

// Eight outputs for the R rows from `row` on.
template <WeightType T, int R>
GLIMPSE_INLINE void multiply_tile(const std::uint8_t* panel, const IntegerRows& rows,
                                  std::int64_t row, f32x8 (&total)[R]) {
  constexpr int kSize = block_size(T), kScaleBytes = kPanel * (has_half_scales(T) ? 2 : 4);
  constexpr int kHeader = kScaleBytes * (has_stored_minima(T) ? 2 : 1);
  const std::int64_t num_inputs = rows.num_inputs;
  const float* const scales = rows.scales + row * (num_inputs / kBlock);
  const float* const sums = rows.sums + row * (num_inputs / kHalfBlock);
  for (int r = 0; r < R; ++r) total[r] = f32x8::zero();
  for (std::int64_t block = 0; block < num_inputs / kSize; ++block, panel += block_bytes(T)) {
    const f32x8 weight_scales = load_scales<T>(panel);
    i32x8 dots[R];
    dot_block<T, R>(panel + kHeader, rows, row * num_inputs + block * kSize, dots);
    for (int r = 0; r < R; ++r) {
      const float scale = scales[r * (num_inputs / kBlock) + block * kSize / kBlock];
      total[r] = fma(weight_scales * f32x8::set1(scale), to_float(dots[r]), total[r]);
    }
    if constexpr (has_stored_minima(T) || T == WeightType::q4_0) {
      const f32x8 minima = T == WeightType::q4_0 ? weight_scales * f32x8::set1(-8.0f)
                                                 : load_scales<T>(panel + kScaleBytes);
      for (int r = 0; r < R; ++r) {
        const float* const at = sums + r * (num_inputs / kHalfBlock) + block * kSize / kHalfBlock;
        const float sum = kSize == kBlock ? at[0] + at[1] : at[0];
        total[r] = fma(minima, f32x8::set1(sum), total[r]);
      }
    }
  }
}

template <WeightType T, int R>
void multiply_rows(const Matrix& matrix, std::int64_t panel, const IntegerRows& rows,
                   std::int64_t row, Output out) {
  f32x8 total[R];
  multiply_tile<T, R>(matrix.panels + panel * panel_bytes(T, matrix.num_inputs), rows, row, total);
  store_tile<R>(matrix, panel, total, row, out);
}

#if GLIMPSE_SIMD_VNNI

// Of two panels, one in each half.
GLIMPSE_INLINE __m512i both(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
GLIMPSE_INLINE __m512 both(f32x8 low, f32x8 high) {
  return _mm512_castsi512_ps(both((__m256i)low.v, (__m256i)high.v));
}

// Eight outputs of each of two panels of 4-bit weights, which share what is read of the rows. The
// sums are those of `multiply_tile`.
template <WeightType T, int R>
GLIMPSE_INLINE void multiply_pair(const std::uint8_t* one, const std::uint8_t* other,
                                  const IntegerRows& rows, std::int64_t row, __m512 (&total)[R]) {
  constexpr int kScaleBytes = kPanel * (has_half_scales(T) ? 2 : 4);
  constexpr int kHeader = kScaleBytes * (has_stored_minima(T) ? 2 : 1);
  const std::int64_t num_inputs = rows.num_inputs, num_blocks = num_inputs / kBlock;
  const __m512i low_half = _mm512_set1_epi8(15);
  for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    __m512i dots[R];
    for (int r = 0; r < R; ++r) dots[r] = _mm512_setzero_si512();
    const std::int8_t* const x = rows.bytes + row * num_inputs + block * kBlock;
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      const __m512i packed =
          both(load256(one + kHeader + 32 * step), load256(other + kHeader + 32 * step));
      const __m512i low = _mm512_and_si512(packed, low_half);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low_half);
      for (int r = 0; r < R; ++r) {
        const std::int8_t* at = x + r * num_inputs + 4 * step;
        dots[r] = _mm512_dpbusd_epi32(dots[r], low, _mm512_set1_epi32(load32(at)));
        dots[r] = _mm512_dpbusd_epi32(dots[r], high, _mm512_set1_epi32(load32(at + 16)));
      }
    }
    const __m512 weight_scales = both(load_scales<T>(one), load_scales<T>(other));
    const __m512 minima =
        T == WeightType::q4_0
            ? _mm512_mul_ps(weight_scales, _mm512_set1_ps(-8.0f))
            : both(load_scales<T>(one + kScaleBytes), load_scales<T>(other + kScaleBytes));
    for (int r = 0; r < R; ++r) {
      const float scale = rows.scales[(row + r) * num_blocks + block];
      const float* const halves = rows.sums + ((row + r) * num_blocks + block) * 2;
      total[r] = _mm512_fmadd_ps(_mm512_mul_ps(weight_scales, _mm512_set1_ps(scale)),
                                 _mm512_cvtepi32_ps(dots[r]), total[r]);
      total[r] = _mm512_fmadd_ps(minima, _mm512_set1_ps(halves[0] + halves[1]), total[r]);
    }
    one += block_bytes(T), other += block_bytes(T);
  }
}

template <WeightType T, int R>
void multiply_pair_rows(const Matrix& matrix, std::int64_t panel, const IntegerRows& rows,
                        std::int64_t row, Output out) {
  __m512 total[R];
  multiply_pair<T, R>(matrix.panel(panel), matrix.panel(panel + 1), rows, row, total);
  f32x8 halves[2][R];
  for (int r = 0; r < R; ++r) {
    halves[0][r] = {_mm512_castps512_ps256(total[r])};
    halves[1][r] = {_mm512_extractf32x8_ps(total[r], 1)};
  }
  for (int i = 0; i < 2; ++i) store_tile<R>(matrix, panel + i, halves[i], row, out);
}

#endif

// Panels that are multiplied together.
template <WeightType T>
constexpr int panels_at_once() {
  return GLIMPSE_SIMD_VNNI && is_nibbles(T) ? 2 : 1;
}

template <WeightType T, int R>
void multiply_some(const Matrix& matrix, std::int64_t panel, [[maybe_unused]] int num_panels,
                   const IntegerRows& rows, std::int64_t row, Output out) {
#if GLIMPSE_SIMD_VNNI
  if constexpr (panels_at_once<T>() == 2) {
    if (num_panels == 2) return multiply_pair_rows<T, R>(matrix, panel, rows, row, out);
  }
#endif
  multiply_rows<T, R>(matrix, panel, rows, row, out);
}

template <WeightType T>
void multiply_panels(const Matrix& matrix, std::int64_t panel, int num_panels,
                     const IntegerRows& rows, std::int64_t row, std::int64_t end, Output out) {
  while (row < end) {
    const std::int64_t size = tile_size(end - row);
    switch (size) {
      case 5: multiply_some<T, 5>(matrix, panel, num_panels, rows, row, out); break;
      case 4: multiply_some<T, 4>(matrix, panel, num_panels, rows, row, out); break;
      case 3: multiply_some<T, 3>(matrix, panel, num_panels, rows, row, out); break;
      case 2: multiply_some<T, 2>(matrix, panel, num_panels, rows, row, out); break;
      default: multiply_some<T, 1>(matrix, panel, num_panels, rows, row, out); break;
    }
    row += size;
  }
}

template <WeightType T>
void multiply_as(const Matrix& matrix, std::int64_t first, std::int64_t last,
                 const IntegerRows& rows, Output out) {
  constexpr int kMost = panels_at_once<T>();
  for (std::int64_t row = 0; row < rows.num_rows; row += kRowsInCache) {
    const std::int64_t end =
        row + kRowsInCache < rows.num_rows ? row + kRowsInCache : rows.num_rows;
    for (std::int64_t panel = first; panel < last; panel += kMost) {
      const int num_panels = last - panel < kMost ? 1 : kMost;
      multiply_panels<T>(matrix, panel, num_panels, rows, row, end, out);
    }
  }
}

void multiply(const Matrix& matrix, std::int64_t first, std::int64_t last,
              const IntegerRows& rows, Output out) {
  switch (matrix.type) {
    case WeightType::q4_0: return multiply_as<WeightType::q4_0>(matrix, first, last, rows, out);
    case WeightType::q4_1: return multiply_as<WeightType::q4_1>(matrix, first, last, rows, out);
    case WeightType::q4_s32: return multiply_as<WeightType::q4_s32>(matrix, first, last, rows, out);
    case WeightType::q8_0: return multiply_as<WeightType::q8_0>(matrix, first, last, rows, out);
    case WeightType::q8_s32: return multiply_as<WeightType::q8_s32>(matrix, first, last, rows, out);
    case WeightType::q8_s16: return multiply_as<WeightType::q8_s16>(matrix, first, last, rows, out);
    case WeightType::q8_m16: return multiply_as<WeightType::q8_m16>(matrix, first, last, rows, out);
    default: return;
  }
}

// ------------------------------------------------------------------------------------ activations

void quantize_block(const float* x, std::int8_t* bytes, std::int16_t* shorts, float* scale,
                    float* sums) {
  f32x8 parts[4];
  for (int i = 0; i < 4; ++i) parts[i] = f32x8::load(x + 8 * i);
  const float largest =
      max(max(max(abs(parts[0]), abs(parts[1])), max(abs(parts[2]), abs(parts[3]))));
  *scale = largest / 127.0f;
  const f32x8 inverse = f32x8::set1(largest > 0 ? 127.0f / largest : 0.0f);
  Ints values[4];
  for (int i = 0; i < 4; ++i) {
    values[i] = round_to_int(parts[i] * inverse).v;
    store_i16({values[i]}, shorts + 8 * i);
    store_i8({values[i]}, bytes + 8 * i);
  }
  for (int half = 0; half < 2; ++half) {
    const Ints pair = values[2 * half] + values[2 * half + 1];
    std::int32_t sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += pair[lane];
    sums[half] = *scale * static_cast<float>(sum);
  }
}

void quantize(const float* x, std::int64_t num_inputs, std::int8_t* bytes, std::int16_t* shorts,
              float* scales, float* sums) {
  for (std::int64_t i = 0; i < num_inputs; i += kBlock) {
    quantize_block(x + i, bytes + i, shorts + i, scales + i / kBlock, sums + i / kHalfBlock);
  }
}

}  // namespace

const IntegerKernels& integer_kernels() {
  static const IntegerKernels table{quantize, multiply};
  return table;
}

}  // namespace glimpse::GLIMPSE_ISA
