"""Attention that the last committed queries of a sequence paid to each position.

Two sources. Attention of observed rows is kept until it is known which rows stay, and then summed
into buckets of neighbouring rows. And the last queries themselves are kept in a ring, from which
the sums are computed afresh when buckets do not cover the window: after prefill, plain decoding,
a fork or a rollback.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.runners.torch.attention import attention_weights, causal_mask
from glimpse.runners.torch.kv import KVBuffer
from glimpse.runners.torch.placement import wide

_SPARE_QUERIES = 48
"""Queries kept beyond the window: a rollback of up to so many rows loses none that are needed."""
_BUCKETS_PER_WINDOW = 4
RingPart = tuple[int, int, int]
"""A run of slots: the first, how many, and how many rows before the end of a pass it begins."""


@dataclass(frozen=True)
class Bucket:
    """Attention of the queries at [start, end), summed: scores [num_layers, num_kv_heads, end]."""

    start: int
    end: int
    scores: Tensor


class WindowStatistics:
    """Statistics over a sliding window of ``window`` committed queries."""

    def __init__(
        self, config: ModelConfig, window: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.window = window
        self._num_slots = window + _SPARE_QUERIES
        shape = (config.num_layers, config.num_kv_heads, config.group_size, self._num_slots)
        self._queries = torch.empty(*shape, config.head_dim, device=device, dtype=dtype)
        self._first = 0
        """Queries are held for positions from here to the length."""
        self._buckets: list[Bucket] = []
        self._pending: tuple[int, Tensor] | None = None
        """Start and attention [num_layers, num_kv_heads, num_rows, seq_len] of observed rows."""

    # ------------------------------------------------------------------------- during a dense pass

    def begin(self, start: int, num_rows: int) -> list[RingPart]:
        """Announce rows from position ``start`` on; returns where the last of them go."""
        end = start + num_rows
        # After a rollback below what is held, only the new rows are.
        self._first = max(min(self._first, start), end - self._num_slots)
        return self._parts(max(start, self._first), end)

    def record(self, layer: int, q: Tensor, parts: list[RingPart]) -> None:
        """Keep the last queries of q [num_kv_heads, group_size, num_rows, head_dim]."""
        for slot, size, before_end in parts:
            row = q.shape[2] - before_end
            self._queries[layer, :, :, slot : slot + size] = q[:, :, row : row + size]

    def room(self, num_rows: int, seq_len: int) -> Tensor:
        """Memory for the attention of observed rows, held until the next ``commit``."""
        shape = (*self._queries.shape[:2], num_rows, seq_len)
        return self._queries.new_empty(shape, dtype=wide(self._queries.dtype))

    def expect(self, start: int, pending: Tensor) -> None:
        """Take attention of observed rows, to be counted by the next ``commit``."""
        self._pending = (start, pending)

    # ------------------------------------------------------------------------------- between passes

    def commit(self, length: int) -> None:
        """The first ``length`` positions stay, all else is taken back."""
        self._buckets = [bucket for bucket in self._buckets if bucket.end <= length]
        if self._pending is not None:
            start, rows = self._pending
            self._pending = None
            if start < length:
                end = min(length, start + rows.shape[2])
                self._add(Bucket(start, end, rows[:, :, : end - start, :end].sum(2)))

    def scores(self, kv: KVBuffer, window: int, length: int) -> Tensor:
        """Attention of the last ``window`` queries, or of a few more where rows were summed in one
        bucket: [num_layers, num_kv_heads, length], float32 or wider.

        Raises RuntimeError if a rollback went further back than queries are kept.
        """
        start = max(0, length - window)
        covering = [bucket for bucket in self._buckets if bucket.end > start]
        if not covering or covering[0].start > start or covering[-1].end < length:
            covering = self._buckets = [self._recompute(kv, start, length)]
        total = covering[-1].scores.clone()
        for bucket in covering[:-1]:
            total[..., : bucket.end] += bucket.scores
        return total

    def queries(self, window: int, length: int) -> Tensor:
        """The last ``window`` queries, or what there are: [num_layers, num_kv_heads, group_size,
        num_queries, head_dim]. Raises RuntimeError if none are held.
        """
        return self._held(max(0, length - window), length)

    def copy_from(self, other: WindowStatistics | None, length: int) -> None:
        """Take what queries ``other`` holds of the first ``length`` positions."""
        self._first = length if other is None else max(other._first, length - self._num_slots)
        if other is not None and self._first < length:
            theirs, own = other._slots(self._first, length), self._slots(self._first, length)
            self._queries[:, :, :, own] = other._queries[:, :, :, theirs]

    def _slots(self, start: int, end: int) -> Tensor:
        positions = torch.arange(start, end, device=self._queries.device)
        return positions % self._num_slots

    def _parts(self, start: int, end: int) -> list[RingPart]:
        """The slots of positions [start, end), no more than there are, as one or two runs."""
        slot = start % self._num_slots
        size = min(end - start, self._num_slots - slot)
        rest = end - start - size
        return [(slot, size, end - start), *([(0, rest, rest)] if rest else [])]

    def _held(self, start: int, length: int) -> Tensor:
        start = max(start, self._first)
        if start >= length:
            raise RuntimeError(
                f"no queries are held of the last positions below {length}: "
                "run the last tokens again to have attention statistics"
            )
        return self._queries[:, :, :, self._slots(start, length)]

    def _recompute(self, kv: KVBuffer, start: int, length: int) -> Bucket:
        held = self._held(start, length)
        start = length - held.shape[3]
        mask = causal_mask(length - start, held.device)
        scores = [
            attention_weights(queries, keys[:, :length], mask).sum((1, 2))
            for queries, keys in zip(held, kv.keys, strict=True)
        ]
        return Bucket(start, length, torch.stack(scores))

    def _add(self, new: Bucket) -> None:
        """Append a bucket; small neighbours become one, and what the window has left is dropped."""
        last = self._buckets[-1] if self._buckets else None
        if last is not None and last.end != new.start:
            self._buckets.clear()
        elif last is not None and last.end - last.start < self.window / _BUCKETS_PER_WINDOW:
            self._buckets.pop()
            padding = new.end - last.end
            new = Bucket(last.start, new.end, new.scores + F.pad(last.scores, (0, padding)))
        self._buckets.append(new)
        while len(self._buckets) > 1 and self._buckets[1].start <= new.end - self.window:
            self._buckets.pop(0)
