"""Attention that every committed query of a sequence paid to each position, the prompt's included.

It is summed while the rows are read, some at a time, so that no matrix over the whole prompt ever
exists. Queries are not kept: a rollback below what is counted cannot be taken out of the sums.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from glimpse.config import ModelConfig

_MAX_SEPARATE_ROWS = 128
"""Rows of longer passes, a prompt's, are summed at once: they stay or go together."""


class CumulativeStatistics:
    """Sums over all queries; rows of the last pass wait until it is known which of them stay."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.num_layers, config.num_kv_heads, 0)
        self._sums = torch.zeros(shape, device=device, dtype=dtype)
        self._length = 0
        """Queries counted."""
        self._is_complete = True
        self._pending: Tensor | None = None
        """Attention [num_layers, num_kv_heads, num_rows or 1, end] of the rows up to ``_end``."""
        self._end = 0

    def begin(self, start: int, num_rows: int) -> None:
        """Announce rows from position ``start`` on; those before them stay."""
        self.commit(start)
        self._end = start + num_rows
        num_parts = num_rows if num_rows <= _MAX_SEPARATE_ROWS else 1
        self._pending = self._sums.new_zeros(*self._sums.shape[:2], num_parts, self._end)

    def add(self, layer: int, row: int, weights: Tensor) -> None:
        """Note the weights [num_kv_heads, group_size, num_rows, width] of rows from ``row`` on."""
        assert self._pending is not None
        num_rows, width = weights.shape[2:]
        if self._end - self._length == self._pending.shape[2]:
            self._pending[layer, :, row : row + num_rows, :width] += weights.sum(1)
        else:
            self._pending[layer, :, 0, :width] += weights.sum((1, 2))

    def commit(self, length: int) -> None:
        """The first ``length`` positions stay: their rows count, all others are forgotten."""
        pending, self._pending = self._pending, None
        if pending is not None and length > self._length:
            num_rows = min(length, self._end) - self._length
            if self._end - self._length == pending.shape[2]:
                pending = pending[:, :, :num_rows]
            elif length < self._end:
                self._is_complete = False
            self._sums = F.pad(self._sums, (0, self._end - self._length)) + pending.sum(2)
        elif length < self._length:
            self._is_complete = False
        self._sums = self._sums[..., :length]
        self._length = length
        if length == 0:
            self._is_complete = True

    def scores(self, length: int) -> Tensor:
        """The sums: [num_layers, num_kv_heads, length]. Raises RuntimeError after a rollback into
        what was counted.
        """
        self.commit(length)
        if not self._is_complete:
            raise RuntimeError(
                "cumulative statistics do not survive a rollback into the prompt or a fork below "
                "the length: read the text again"
            )
        return self._sums

    def copy_from(self, other: CumulativeStatistics | None, length: int) -> None:
        """Take what ``other`` knows of the first ``length`` positions."""
        if other is None:
            self._is_complete = length == 0
            self._length = length
            self._sums = self._sums.new_zeros(*self._sums.shape[:2], length)
            return
        self._sums, self._length = other._sums.clone(), other._length
        self._is_complete, self._end = other._is_complete, other._end
        self._pending = None if other._pending is None else other._pending.clone()
        self.commit(length)
