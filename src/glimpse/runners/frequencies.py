"""Rotary frequencies in the kinds default, linear, llama3 and yarn, as transformers has them.

They never change with the length of the context, so keys in the cache stay valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from glimpse.config import RopeConfig


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
