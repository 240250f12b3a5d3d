"""What is seldom overlooked: positions whose attention is rarely below average."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glimpse.selection import BudgetedSelection, selections
from glimpse.selection.ranking import attention
from glimpse.types import IndexSpec, Runner, Sequence, Statistics


@selections.register
@dataclass
class Scissorhands(BudgetedSelection):
    """Scissorhands (Liu et al. 2023, arXiv 2305.17118) over the full cache, per KV head.

    A position is counted down whenever a query of the history window pays it less than 1 / n, n
    being the positions that the query sees; those counted down least often are kept, and recents.
    Recents are the paper's 10; counts are summed over the query heads of a group. The paper counts
    once and evicts for good, over a window of 400. This counts at each refresh, as many rows'
    attention as the window has, so its default is 64. Ties go to the position with more attention.
    """

    sink_size: int = 0
    recent_size: int = 10
    window: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recent_size < 0:
            raise ValueError(f"recent_size={self.recent_size}: must be at least 0")
        if self.window < 1:
            raise ValueError(f"window={self.window}: must be at least 1")

    @property
    def statistics(self) -> Statistics:
        return Statistics(window=self.window)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"ranking"})

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        return IndexSpec(
            budget=self.num_positions(runner.length(sequence.handle)),
            sink_size=self.sink_size,
            recent_size=self.recent_size,
            window=self.window,
            rank=rank,
        )


def rank(layer: int, queries: Tensor, keys: Tensor) -> Tensor:  # noqa: ARG001
    """Minus the times that attention was below average, and a share of one for its mean."""
    weights = attention(queries, keys)
    num_queries, length = weights.shape[2:]
    num_seen = torch.arange(length - num_queries + 1, length + 1, device=keys.device)
    # A position that a query cannot see yet has not been overlooked by it.
    is_seen = torch.arange(length, device=keys.device) < num_seen[:, None]
    is_low = (weights < 1 / num_seen[:, None]) & is_seen
    return weights.mean((1, 2)) - is_low.sum((1, 2))
