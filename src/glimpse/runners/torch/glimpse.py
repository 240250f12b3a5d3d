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
        """The position in each slot [num_layers, num_kv_heads, size]; None if there is none.
        Beyond a layer's size slots hold the position past the end."""
        self.sizes: list[int] = []
        """Slots in use, for each layer the same in every head."""
        self.stepwise: IndexSpec | None = None
        """What each draft step chooses by itself from the dense KV; nothing is copied then."""
        self.tail_length = 0
        self.tail_layers = 0
        """How many layers have KV of the draft tail."""
        self.length = 0
        """Positions that were there to choose from."""

    @property
    def exists(self) -> bool:
        return self.is_whole or self.stepwise is not None or self.index is not None

    def truncate(self, length: int) -> None:
        """Drop the tail, and the index if it knows of positions that are no more."""
        self.tail_length = 0
        if self.length > length:
            self.index = self.stepwise = None

    def follow(self, spec: IndexSpec, length: int) -> None:
        """Let each draft step choose from the first ``length`` positions."""
        self.index, self.stepwise, self.length, self.is_whole = None, spec, length, False

    def refresh(self, dense: KVBuffer, chosen: Tensor) -> None:
        """Hold the positions of a mask from ``choose``; ``dense`` still has those held before."""
        num_layers, num_kv_heads, width = chosen.shape
        sizes = chosen[:, 0].sum(1)
        size = int(sizes.max())
        old, self.index = self.index, None  # an interrupt must not leave half of either
        # A slot without an entry holds the position past the end, which is never chosen.
        index = torch.full(
            (num_layers, num_kv_heads, size), width - 1, dtype=torch.int64, device=chosen.device
        )
        if old is not None:
            # What was past the end may be a position by now.
            held = old[..., :size]
            index[..., : held.shape[2]] = held.masked_fill(held == self.length, width - 1)
        self.kv.reserve(size + _DRAFT_ROOM, 0 if old is None else min(size, old.shape[2]))
        is_used = (torch.arange(size, device=chosen.device) < sizes[:, None])[:, None]
        index.masked_fill_(~is_used, width - 1)
        self._replace(dense, chosen, index, is_used)
        self.sizes = sizes.tolist()
        self.index, self.length, self.is_whole, self.stepwise = index, width - 1, False, None

    def _replace(self, dense: KVBuffer, chosen: Tensor, index: Tensor, is_used: Tensor) -> None:
        """Fill the used slots whose entry is not chosen with the chosen positions without a slot.

        A head has as many of the one as of the other, so the two lists pair up in order.
        """
        stale = ~chosen.gather(2, index) & is_used
        slots = stale.flatten(0, 1).nonzero()
        missing = chosen.scatter(2, index, False).flatten(0, 1).nonzero()
        index.masked_scatter_(stale, missing[:, 1])
        sources = missing[:, 0] * dense.capacity + missing[:, 1]
        targets = slots[:, 0] * self.kv.capacity + slots[:, 1]
        for full, compact in ((dense.keys, self.kv.keys), (dense.values, self.kv.values)):
            head_dim = full.shape[3]
            rows = full.view(-1, head_dim).index_select(0, sources)
            compact.view(-1, head_dim).index_copy_(0, targets, rows)


def split_budget(spec: IndexSpec, budget: int) -> tuple[int, int, int]:
    """How many sinks, best of the middle and recents the budget pays for.

    A budget below ``sink_size + recent_size`` goes to sinks first, save one position, then to
    recents. Without a ranking recents take what is left.
    """
    num_sinks = min(spec.sink_size, budget - 1)
    left = budget - num_sinks
    is_ranked = (
        spec.window > 0 or spec.is_cumulative or spec.scores is not None or spec.rank is not None
    )
    num_recents = min(spec.recent_size, left) if is_ranked else left
    return num_sinks, left - num_recents, num_recents


def choose(
    spec: IndexSpec, scores: Tensor | None, shape: tuple[int, int, int], device: torch.device
) -> Tensor:
    """The positions a glimpse holds: a mask [num_layers, num_kv_heads, length + 1] for scores of
    ``shape`` [num_layers, num_kv_heads, length]; its last column is never chosen.
    """
    num_layers, num_kv_heads, length = shape
    chosen = torch.zeros(num_layers, num_kv_heads, length + 1, dtype=torch.bool, device=device)
    if not isinstance(spec.budget, tuple):
        choose_best(spec, spec.budget, scores, chosen)
        return chosen
    for layer, budget in enumerate(spec.budget):
        choose_best(spec, budget, None if scores is None else scores[layer], chosen[layer])
    return chosen


def choose_best(spec: IndexSpec, budget: int, scores: Tensor | None, chosen: Tensor) -> None:
    """Mark sinks, best and recents in ``chosen`` [.., length + 1], for scores [.., length]."""
    length = chosen.shape[-1] - 1
    if budget >= length:
        chosen[..., :length] = True
        return
    num_sinks, num_best, num_recents = split_budget(spec, budget)
    end = length - num_recents
    chosen[..., :num_sinks] = True
    chosen[..., end:length] = True
    if num_best and scores is not None:
        middle = scores[..., num_sinks:end].to(chosen.device)
        best = middle.topk(num_best, sorted=False).indices
        chosen.scatter_(-1, best + num_sinks, True)


def check_spec(spec: IndexSpec, shape: tuple[int, int, int]) -> None:
    """Raises ValueError for an index that a sequence of ``shape`` cannot have."""
    if isinstance(spec.budget, tuple) and len(spec.budget) != shape[0]:
        raise ValueError(f"budget={spec.budget}: must be one for each of the {shape[0]} layers")
    if min(spec.budgets(shape[0])) < 1:
        raise ValueError(f"budget={spec.budget}: must be at least 1 position")
    for name in ("sink_size", "recent_size", "window"):
        if getattr(spec, name) < 0:
            raise ValueError(f"{name}={getattr(spec, name)}: must be at least 0")
    _check_ranking(spec)
    if spec.scores is not None and tuple(spec.scores.shape) != shape:
        raise ValueError(
            f"scores of shape {tuple(spec.scores.shape)}: must be [num_layers, num_kv_heads, "
            f"length] = {list(shape)}"
        )


def _check_ranking(spec: IndexSpec) -> None:
    """Raises ValueError for an index that says twice, or not wholly, what ranks it."""
    if spec.scores is not None and spec.window:
        raise ValueError(f"window={spec.window}: must be 0 where scores are given")
    rankings = {
        "scores": spec.scores is not None,
        "is_cumulative": spec.is_cumulative,
        "rank": spec.rank is not None,
        "window": spec.window > 0 and spec.rank is None,
    }
    given = [name for name, is_given in rankings.items() if is_given]
    if len(given) > 1:
        raise ValueError(f"an index ranked by {' and '.join(given)}: must be by one of them")
    if spec.is_stepwise and (spec.rank is None or spec.window):
        raise ValueError("is_stepwise: must come with a rank and without a window")
    if spec.rank is not None and not spec.is_stepwise and not spec.window:
        raise ValueError("window=0: must be at least 1 for a rank that is not stepwise")
