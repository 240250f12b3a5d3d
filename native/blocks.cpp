#include "blocks.h"

#include <cmath>
#include <cstring>

namespace glimpse {
namespace {

float half_at(const std::uint8_t* from) {
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return half_to_float(bits);
}

// ------------------------------------------------------------- blocks of 32: scale, minimum, values

// Low halves of 16 bytes are the first 16 values, high halves the others.
void split_halves(const std::uint8_t* from, std::int8_t* values) {
  for (int i = 0; i < 16; ++i) {
    values[i] = static_cast<std::int8_t>(from[i] & 15);
    values[16 + i] = static_cast<std::int8_t>(from[i] >> 4);
  }
}

// Adds a fifth bit to each of 32 values.
void add_fifth_bits(const std::uint8_t* from, std::int8_t* values) {
  for (int i = 0; i < 32; ++i) {
    values[i] = static_cast<std::int8_t>(values[i] | (from[i / 8] >> (i % 8) & 1) << 4);
  }
}

void decode_q4_0(const std::uint8_t* block, BlockParts parts) {
  parts.scales[0] = half_at(block);
  split_halves(block + 2, parts.values);
}

void decode_q4_1(const std::uint8_t* block, BlockParts parts) {
  parts.scales[0] = half_at(block);
  parts.minima[0] = half_at(block + 2);
  split_halves(block + 4, parts.values);
}

void decode_q5_0(const std::uint8_t* block, BlockParts parts) {
  parts.scales[0] = half_at(block);
  split_halves(block + 6, parts.values);
  add_fifth_bits(block + 2, parts.values);
  for (int i = 0; i < 32; ++i) parts.values[i] = static_cast<std::int8_t>(parts.values[i] - 16);
}

void decode_q5_1(const std::uint8_t* block, BlockParts parts) {
  parts.scales[0] = half_at(block);
  parts.minima[0] = half_at(block + 2);
  split_halves(block + 8, parts.values);
  add_fifth_bits(block + 4, parts.values);
}

void decode_q8_0(const std::uint8_t* block, BlockParts parts) {
  parts.scales[0] = half_at(block);
  std::memcpy(parts.values, block + 2, 32);
}

// ------------------------------------------------------------------ K types: 256 inputs, two levels

// Scales and minima of Q4_K and Q5_K: eight of each, 6 bits, in 12 bytes.
void decode_pairs_of_6_bits(const std::uint8_t* from, float scale, float minimum,
                            BlockParts parts) {
  for (int i = 0; i < 8; ++i) {
    const int low = i % 4;
    const int s = i < 4 ? from[i] & 63 : (from[8 + low] & 15) | (from[low] >> 6) << 4;
    const int m = i < 4 ? from[4 + i] & 63 : from[8 + low] >> 4 | (from[4 + low] >> 6) << 4;
    parts.scales[i] = scale * static_cast<float>(s);
    parts.minima[i] = -(minimum * static_cast<float>(m));
  }
}

void decode_q4_k(const std::uint8_t* block, BlockParts parts) {
  decode_pairs_of_6_bits(block + 4, half_at(block), half_at(block + 2), parts);
  for (int i = 0; i < 256; ++i) {
    const std::uint8_t byte = block[16 + i / 64 * 32 + i % 32];
    parts.values[i] = static_cast<std::int8_t>(i % 64 < 32 ? byte & 15 : byte >> 4);
  }
}

void decode_q5_k(const std::uint8_t* block, BlockParts parts) {
  decode_pairs_of_6_bits(block + 4, half_at(block), half_at(block + 2), parts);
  for (int i = 0; i < 256; ++i) {
    const std::uint8_t byte = block[48 + i / 64 * 32 + i % 32];
    const int high = block[16 + i % 32] >> (i / 32) & 1;
    parts.values[i] = static_cast<std::int8_t>((i % 64 < 32 ? byte & 15 : byte >> 4) | high << 4);
  }
}

void decode_q6_k(const std::uint8_t* block, BlockParts parts) {
  const std::uint8_t *low = block, *high = block + 128;
  const float scale = half_at(block + 208);
  for (int i = 0; i < 16; ++i) {
    parts.scales[i] = scale * static_cast<float>(static_cast<std::int8_t>(block[192 + i]));
  }
  for (int i = 0; i < 256; ++i) {
    const int part = i / 128, quarter = i % 128 / 32;
    const std::uint8_t byte = low[64 * part + i % 64];
    const int bits = high[32 * part + i % 32] >> (2 * quarter) & 3;
    const int four = quarter < 2 ? byte & 15 : byte >> 4;
    parts.values[i] = static_cast<std::int8_t>((four | bits << 4) - 32);
  }
}

void decode_q3_k(const std::uint8_t* block, BlockParts parts) {
  const std::uint8_t *mask = block, *low = block + 32, *packed = block + 96;
  const float scale = half_at(block + 108);
  for (int i = 0; i < 16; ++i) {
    const int four = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    const int six = four | (packed[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
    parts.scales[i] = scale * static_cast<float>(six - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int two = low[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3;
    const int bit = mask[i % 32] >> (i / 32) & 1;
    parts.values[i] = static_cast<std::int8_t>(two - (bit ? 0 : 4));
  }
}

void decode_q2_k(const std::uint8_t* block, BlockParts parts) {
  const float scale = half_at(block + 80), minimum = half_at(block + 82);
  for (int i = 0; i < 16; ++i) {
    parts.scales[i] = scale * static_cast<float>(block[i] & 15);
    parts.minima[i] = -(minimum * static_cast<float>(block[i] >> 4));
  }
  for (int i = 0; i < 256; ++i) {
    const std::uint8_t byte = block[16 + i / 128 * 32 + i % 32];
    parts.values[i] = static_cast<std::int8_t>(byte >> (2 * (i % 128 / 32)) & 3);
  }
}

constexpr BlockFormat kFormats[] = {
    {"Q4_0", WeightType::q4_0, 32, 18, decode_q4_0},
    {"Q4_1", WeightType::q4_1, 32, 20, decode_q4_1},
    {"Q5_0", WeightType::q8_0, 32, 22, decode_q5_0},
    {"Q5_1", WeightType::q8_s32, 32, 24, decode_q5_1},
    {"Q8_0", WeightType::q8_0, 32, 34, decode_q8_0},
    {"Q2_K", WeightType::q8_m16, 256, 84, decode_q2_k},
    {"Q3_K", WeightType::q8_s16, 256, 110, decode_q3_k},
    {"Q4_K", WeightType::q4_s32, 256, 144, decode_q4_k},
    {"Q5_K", WeightType::q8_s32, 256, 176, decode_q5_k},
    {"Q6_K", WeightType::q8_s16, 256, 210, decode_q6_k},
};

}  // namespace

float half_to_float(std::uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  float value;
  if (exponent == 31) {
    value = fraction ? std::nanf("") : INFINITY;
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    value = std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  }
  return half & 0x8000 ? -value : value;
}

const BlockFormat* find_block_format(std::string_view name) {
  for (const BlockFormat& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

}  // namespace glimpse
