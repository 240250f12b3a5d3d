"""Rotary position embedding in the kinds default, linear, llama3 and yarn, as transformers has it.

Frequencies never change with the length of the context, so keys in the cache stay valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from glimpse.config import RopeConfig

_INITIAL_POSITIONS = 1024


class RotaryTable:
    """Cosines and signed sines of every position so far, computed once and grown by doubling."""

    def __init__(
        self, head_dim: int, rope: RopeConfig, device: torch.device, dtype: torch.dtype
    ) -> None:
        frequencies, self._factor = inverse_frequencies(head_dim, rope)
        self._frequencies = frequencies.to(device, dtype)
        self._table = self._rows(_INITIAL_POSITIONS)

    def __call__(self, positions: Tensor, end: int) -> Tensor:
        """Factors for ``positions``, all below ``end``: [num_tokens, 2, 1, head_dim]."""
        if end > len(self._table):
            self._table = self._rows(max(end, 2 * len(self._table)))
        return self._table.index_select(0, positions)

    def _rows(self, num_positions: int) -> Tensor:
        positions = torch.arange(num_positions, device=self._frequencies.device)
        angles = positions[:, None].to(self._frequencies.dtype) * self._frequencies
        cos, sin = angles.cos() * self._factor, angles.sin() * self._factor
        # The sign of rotate-half sits in the table: x * cos + swap_halves(x) * signed_sin.
        return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], 1)[:, :, None]


def rotate(x: Tensor, factors: Tensor) -> Tensor:
    """Rotate ``x`` [num_tokens, num_heads, head_dim] by ``factors`` of the same tokens."""
    wide = x.to(factors.dtype)
    swapped = torch.roll(wide, x.shape[-1] // 2, -1)
    return torch.addcmul(wide * factors[:, 0], swapped, factors[:, 1]).to(x.dtype)


def inverse_frequencies(head_dim: int, rope: RopeConfig) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] in float32, and a factor on cosine and sine."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return _KINDS[rope.kind](1.0 / (rope.theta**exponents), rope)


def _linear(frequencies: Tensor, rope: RopeConfig) -> tuple[Tensor, float]:
    return frequencies / rope.parameters["factor"], 1.0


def _llama3(frequencies: Tensor, rope: RopeConfig) -> tuple[Tensor, float]:
    """Llama 3.1: slow frequencies divided by the factor, fast ones kept, smooth between."""
    factor = rope.parameters["factor"]
    low = rope.parameters["low_freq_factor"]
    high = rope.parameters["high_freq_factor"]
    turns = rope.parameters["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequencies / factor + smooth * frequencies, 1.0


def _yarn(frequencies: Tensor, rope: RopeConfig) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023): interpolation of slow frequencies, and a temperature."""
    factor = rope.parameters["factor"]
    low, high = _yarn_range(2 * len(frequencies), rope)
    ramp = (torch.arange(len(frequencies), dtype=torch.float32) - low) / (high - low)
    interpolated = ramp.clamp(0, 1)
    mixed = frequencies / factor * interpolated + frequencies * (1 - interpolated)
    return mixed, _yarn_factor(factor, rope)


def _yarn_range(head_dim: int, rope: RopeConfig) -> tuple[float, float]:
    """Between which dimensions YaRN goes from keeping a frequency to interpolating it."""
    original = rope.parameters["original_max_position_embeddings"]
    turns = (rope.parameters.get("beta_fast") or 32, rope.parameters.get("beta_slow") or 1)
    low, high = (
        head_dim * math.log(original / (turn * 2 * math.pi)) / (2 * math.log(rope.theta))
        for turn in turns
    )
    if rope.parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    return low, high + 0.001 if low == high else high


def _yarn_factor(factor: float, rope: RopeConfig) -> float:
    stated = rope.parameters.get("attention_factor")
    if stated is not None:
        return float(stated)
    mscale, all_dims = rope.parameters.get("mscale"), rope.parameters.get("mscale_all_dim")
    if mscale and all_dims:
        return _mscale(factor, mscale) / _mscale(factor, all_dims)
    return _mscale(factor, 1.0)


def _mscale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


_KINDS: dict[str, Callable[[Tensor, RopeConfig], tuple[Tensor, float]]] = {
    "default": lambda frequencies, _: (frequencies, 1.0),
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
