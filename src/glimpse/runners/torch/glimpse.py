"""The glimpse: a compact copy of a few KV positions, chosen per layer and KV head.

Entries that stay in the index stay in their slots; only what changed is copied. Drafted tokens go
behind the slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glimpse.config import ModelConfig
from glimpse.runners.torch.kv import KVBuffer
from glimpse.types import IndexSpec

_DRAFT_ROOM = 32


class Glimpse:
    """Index, compact KV and draft tail of one sequence."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.kv = KVBuffer(config, 0, device, dtype)
        self.is_whole = False
        """It is the dense KV itself, at whatever length, with the draft tail right behind it."""
        self.index: Tensor | None = None
        """The position in each slot [num_layers, num_kv_heads, size]; None if there is none."""
        self.tail_length = 0
        self.tail_layers = 0
        """How many layers have KV of the draft tail."""
        self._length = 0

    @property
    def size(self) -> int:
        """Slots in use, the same for every head."""
        return 0 if self.index is None else self.index.shape[2]

    @property
    def exists(self) -> bool:
        return self.is_whole or self.index is not None

    def truncate(self, length: int) -> None:
        """Drop the tail, and the index if it knows of positions that are no more."""
        self.tail_length = 0
        if self._length > length:
            self.index = None

    def refresh(self, dense: KVBuffer, chosen: Tensor) -> None:
        """Hold the positions of a mask from ``choose``; ``dense`` still has those held before."""
        num_layers, num_kv_heads, width = chosen.shape
        size = int(chosen[0, 0].sum())
        old, self.index = self.index, None  # an interrupt must not leave half of either
        # A slot without an entry holds the position past the end, which is never chosen.
        index = torch.full(
            (num_layers, num_kv_heads, size), width - 1, dtype=torch.int64, device=chosen.device
        )
        if old is not None:
            index[..., : old.shape[2]] = old[..., :size]
        self.kv.reserve(size + _DRAFT_ROOM, 0 if old is None else min(size, old.shape[2]))
        self._replace(dense, chosen, index)
        self.index, self._length, self.is_whole = index, width - 1, False

    def _replace(self, dense: KVBuffer, chosen: Tensor, index: Tensor) -> None:
        """Fill the slots whose entry is not chosen with the chosen positions that have no slot.

        A head has as many of the one as of the other, so the two lists pair up in order.
        """
        stale = ~chosen.gather(2, index)
        slots = stale.flatten(0, 1).nonzero()
        missing = chosen.scatter(2, index, False).flatten(0, 1).nonzero()
        index.masked_scatter_(stale, missing[:, 1])
        sources = missing[:, 0] * dense.capacity + missing[:, 1]
        targets = slots[:, 0] * self.kv.capacity + slots[:, 1]
        for full, compact in ((dense.keys, self.kv.keys), (dense.values, self.kv.values)):
            head_dim = full.shape[3]
            rows = full.view(-1, head_dim).index_select(0, sources)
            compact.view(-1, head_dim).index_copy_(0, targets, rows)


def split_budget(spec: IndexSpec) -> tuple[int, int, int]:
    """How many sinks, best of the middle and recents the budget pays for.

    A budget below ``sink_size + recent_size`` goes to sinks first, save one position, then to
    recents. Without a ranking recents take what is left.
    """
    num_sinks = min(spec.sink_size, spec.budget - 1)
    left = spec.budget - num_sinks
    is_ranked = spec.window > 0 or spec.scores is not None
    num_recents = min(spec.recent_size, left) if is_ranked else left
    return num_sinks, left - num_recents, num_recents


def choose(
    spec: IndexSpec, scores: Tensor | None, shape: tuple[int, int, int], device: torch.device
) -> Tensor:
    """The positions a glimpse holds: a mask [num_layers, num_kv_heads, length + 1] for scores of
    ``shape`` [num_layers, num_kv_heads, length]; its last column is never chosen.
    """
    num_layers, num_kv_heads, length = shape
    num_sinks, num_best, num_recents = split_budget(spec)
    end = length - num_recents
    chosen = torch.zeros(num_layers, num_kv_heads, length + 1, dtype=torch.bool, device=device)
    chosen[..., :num_sinks] = True
    chosen[..., end:length] = True
    if num_best and scores is not None:
        best = scores[..., num_sinks:end].to(device).topk(num_best, sorted=False).indices
        chosen.scatter_(2, best + num_sinks, True)
    return chosen


def check_spec(spec: IndexSpec, shape: tuple[int, int, int]) -> None:
    """Raises ValueError for an index that a sequence of ``shape`` cannot have."""
    if spec.budget < 1:
        raise ValueError(f"budget={spec.budget}: must be at least 1 position")
    for name in ("sink_size", "recent_size", "window"):
        if getattr(spec, name) < 0:
            raise ValueError(f"{name}={getattr(spec, name)}: must be at least 0")
    if spec.scores is not None and spec.window:
        raise ValueError(f"window={spec.window}: must be 0 where scores are given")
    if spec.scores is not None and tuple(spec.scores.shape) != shape:
        raise ValueError(
            f"scores of shape {tuple(spec.scores.shape)}: must be [num_layers, num_kv_heads, "
            f"length] = {list(shape)}"
        )
