"""Heavy hitters: what all queries so far attended to."""

from __future__ import annotations

from dataclasses import dataclass

from glimpse.selection import BudgetedSelection, selections
from glimpse.types import IndexSpec, Runner, Sequence, Statistics


@selections.register
@dataclass
class H2o(BudgetedSelection):
    """H2O (Zhang et al. 2023, arXiv 2306.14048) over the full cache, per KV head.

    Half of the budget are heavy hitters, the positions with the most attention summed over every
    query, the prompt's included; half are recents. The paper's 0.1 + 0.1 of the context would be
    ``budget=0.2``; the default is the 0.1 of the other policies. It has no sinks of its own: they
    are heavy hitters. The paper sums what an evicting cache lets a query see, this what it sees.
    """

    sink_size: int = 0

    @property
    def statistics(self) -> Statistics:
        return Statistics(is_cumulative=True)

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        budget = self.num_positions(runner.length(sequence.handle))
        return IndexSpec(
            budget=budget,
            sink_size=self.sink_size,
            recent_size=budget // 2,
            is_cumulative=True,
        )
