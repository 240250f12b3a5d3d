#include "isa.h"

#include <stdexcept>

namespace glimpse {
namespace {

// Empty if the processor has all that the AVX2 kernels use, else what is missing.
std::string missing_for_avx2() {
#ifdef GLIMPSE_HAS_AVX2
  __builtin_cpu_init();
  std::string missing;
  if (!__builtin_cpu_supports("avx2")) missing += " avx2";
  if (!__builtin_cpu_supports("fma")) missing += " fma";
  if (!__builtin_cpu_supports("f16c")) missing += " f16c";
  return missing.empty() ? "" : "the processor lacks" + missing;
#else
  return "built for a processor without AVX2";
#endif
}

}  // namespace

std::string_view isa_name(Isa isa) { return isa == Isa::avx2 ? "avx2" : "portable"; }

IsaChoice choose_isa(std::string_view wanted) {
  const std::string missing = missing_for_avx2();
  if (wanted == "portable") return {Isa::portable, "asked for"};
  if (wanted == "avx2" && missing.empty()) return {Isa::avx2, "asked for"};
  if (wanted == "avx2") throw std::invalid_argument("isa='avx2': " + missing);
  if (wanted != "auto") {
    throw std::invalid_argument("isa='" + std::string(wanted) +
                                "': must be one of auto, avx2, portable");
  }
  if (missing.empty()) return {Isa::avx2, "the processor has AVX2, FMA and F16C"};
  return {Isa::portable, missing};
}

}  // namespace glimpse
