// The instruction set in use. Kernels are compiled once per set, into namespaces of its name.
#pragma once

#include <string>
#include <string_view>

namespace glimpse {

// Each has all of the next. `avx512` are the AVX2 kernels with twice the registers, and products of
// integers that add up in one instruction (VNNI); sums of floats are the same, to the bit.
enum class Isa { avx512, avx2, portable };

std::string_view isa_name(Isa isa);

// The best set that this build has and this processor runs; `reason` says why it is that one.
struct IsaChoice {
  Isa isa;
  std::string reason;
};

// `wanted` is "auto" or a name. Throws std::invalid_argument for one that cannot be had here.
IsaChoice choose_isa(std::string_view wanted);

}  // namespace glimpse

// Declares `const Type& name(Isa)`, which picks the table of function pointers that the kernel file
// defines as `const Type& GLIMPSE_ISA::name()`. Used inside namespace glimpse, outside any other.
#ifdef GLIMPSE_HAS_X86
#define GLIMPSE_KERNEL_TABLE(Type, name)         \
  namespace avx512 {                             \
  const Type& name();                            \
  }                                              \
  namespace avx2 {                               \
  const Type& name();                            \
  }                                              \
  namespace portable {                           \
  const Type& name();                            \
  }                                              \
  inline const Type& name(Isa isa) {             \
    switch (isa) {                               \
      case Isa::avx512: return avx512::name();   \
      case Isa::avx2: return avx2::name();       \
      default: return portable::name();          \
    }                                            \
  }
#else
#define GLIMPSE_KERNEL_TABLE(Type, name) \
  namespace portable {                   \
  const Type& name();                    \
  }                                      \
  inline const Type& name(Isa) { return portable::name(); }
#endif
