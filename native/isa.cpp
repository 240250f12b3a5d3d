#include "isa.h"

#include <stdexcept>

namespace glimpse {
namespace {

// Empty if the processor has all that the kernels of a set use, else what is missing.
#ifdef GLIMPSE_HAS_X86
std::string missing(Isa isa) {
  __builtin_cpu_init();
  std::string names;
  const auto needs = [&](bool is_there, const char* name) {
    if (!is_there) names += std::string(" ") + name;
  };
  if (isa != Isa::portable) {
    needs(__builtin_cpu_supports("avx2"), "avx2");
    needs(__builtin_cpu_supports("fma"), "fma");
    needs(__builtin_cpu_supports("f16c"), "f16c");
  }
  if (isa == Isa::avx512) {
    needs(__builtin_cpu_supports("avx512f"), "avx512f");
    needs(__builtin_cpu_supports("avx512bw"), "avx512bw");
    needs(__builtin_cpu_supports("avx512dq"), "avx512dq");
    needs(__builtin_cpu_supports("avx512vl"), "avx512vl");
    needs(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
  }
  return names.empty() ? "" : "the processor lacks" + names;
}
#else
std::string missing(Isa isa) {
  return isa == Isa::portable ? "" : "built for a processor without " + std::string(isa_name(isa));
}
#endif

constexpr Isa kAll[] = {Isa::avx512, Isa::avx2, Isa::portable};

std::string reason(Isa isa) {
  switch (isa) {
    case Isa::avx512: return "the processor has AVX-512 with VNNI";
    case Isa::avx2: return "the processor has AVX2, FMA and F16C; no avx512: " +
                           missing(Isa::avx512);
    default: return missing(Isa::avx2);
  }
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx512: return "avx512";
    case Isa::avx2: return "avx2";
    default: return "portable";
  }
}

IsaChoice choose_isa(std::string_view wanted) {
  for (const Isa isa : kAll) {
    const std::string without = missing(isa);
    if (wanted == "auto" && without.empty()) return {isa, reason(isa)};
    if (wanted != isa_name(isa)) continue;
    if (!without.empty())
      throw std::invalid_argument("isa='" + std::string(wanted) + "': " + without);
    return {isa, "asked for"};
  }
  throw std::invalid_argument("isa='" + std::string(wanted) +
                              "': must be one of auto, avx512, avx2, portable");
}

}  // namespace glimpse
