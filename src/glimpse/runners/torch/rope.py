"""Rotary position embedding: a table of cosines and sines, and the rotation by them."""

from __future__ import annotations

import torch
from torch import Tensor

from glimpse.config import RopeConfig
from glimpse.runners.frequencies import inverse_frequencies

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
