"""What the first and the last query of a verification attend to, one index for all heads."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch.nn.functional as F
from torch import Tensor

from glimpse.selection import BudgetedSelection, selections
from glimpse.selection.ranking import attention
from glimpse.types import IndexSpec, Runner, Sequence, Statistics


@selections.register
@dataclass
class Vegas(BudgetedSelection):
    """Vegas (Yue et al. 2026, arXiv 2602.07223): attention of the first and the last query that the
    last verification kept, averaged over all heads of a layer, which share their positions.

    A budget of 5 %, at least 256 positions. ``window`` bounds how far back that first query may be.
    Before the first round both are the prompt's last query.
    """

    budget: float = 0.05
    sink_size: int = 0
    window: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise ValueError(f"window={self.window}: must be at least 1")
        self._lengths: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()

    @property
    def statistics(self) -> Statistics:
        return Statistics(window=self.window)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"ranking"})

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        length = runner.length(sequence.handle)
        num_kept = length - self._lengths.get(sequence, length - 1)
        self._lengths[sequence] = length
        return IndexSpec(
            budget=self.num_positions(length),
            sink_size=self.sink_size,
            recent_size=0,
            window=max(1, min(num_kept, self.window)),
            rank=rank,
        )


def rank(layer: int, queries: Tensor, keys: Tensor) -> Tensor:  # noqa: ARG001
    """Mean attention of the first and the last query over all heads, the same for every KV head."""
    num_later = queries.shape[2] - 1
    first = attention(queries[:, :, :1], keys[:, : keys.shape[1] - num_later]).mean((0, 1, 2))
    last = attention(queries[:, :, -1:], keys).mean((0, 1, 2))
    return ((F.pad(first, (0, num_later)) + last) / 2).expand(len(keys), -1)
