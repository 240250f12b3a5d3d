"""The instruction sets that this machine can run, the best first: each has all of the next."""

from glimpse.runners.native import _core

_ALL = ("avx512", "avx2", "portable")
ISAS = _ALL[_ALL.index(_core.choose_isa("auto")[0]) :]
