"""What a selection asks of a runner: statistics to keep, an index to hold. Part of ``types``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Rank = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, queries [num_kv_heads, group_size, num_queries, head_dim], keys [num_kv_heads, length,
head_dim]) -> scores [num_kv_heads, length]. Both are rotated as for attention."""


@dataclass(frozen=True)
class IndexSpec:
    """What the glimpse keeps, per layer and KV head: sinks, the best of the middle, recents.

    The middle is ranked by the attention of the last ``window`` committed queries (the runner's own
    statistics), by that of every query so far (``is_cumulative``), by ``scores`` [num_layers,
    num_kv_heads, length], or by ``rank``; with none of them, the glimpse is sinks and recents
    alone, and recents fill the budget.
    """

    budget: int | tuple[int, ...]
    """Positions in all, or of each layer; the whole length or more keeps everything."""
    sink_size: int = 4
    recent_size: int = 64
    window: int = 0
    scores: Tensor | None = None
    is_cumulative: bool = False
    rank: Rank | None = None
    """Scores a layer from the last ``window`` committed queries, which are its last positions."""
    is_stepwise: bool = False
    """``rank`` by the query of each drafted token instead, so that every draft step, layer by
    layer, sees what its own query asks for."""

    def budgets(self, num_layers: int) -> tuple[int, ...]:
        """The budget of each layer."""
        return self.budget if isinstance(self.budget, tuple) else (self.budget,) * num_layers

    @property
    def mean_budget(self) -> int:
        """Positions in an average layer."""
        if isinstance(self.budget, tuple):
            return round(sum(self.budget) / len(self.budget))
        return self.budget

    @property
    def needs(self) -> frozenset[str]:
        """Which of ``Capabilities.index`` it takes."""
        asked = {"layers": isinstance(self.budget, tuple), "ranking": self.rank is not None}
        return frozenset(name for name, is_asked in asked.items() if is_asked)


@dataclass(frozen=True)
class Statistics:
    """Attention statistics that a sequence asks its runner to keep."""

    window: int = 0
    """Attention of the last ``window`` committed queries; 0 for none."""
    is_cumulative: bool = False
    """Attention summed over every query so far, the prompt's included."""
