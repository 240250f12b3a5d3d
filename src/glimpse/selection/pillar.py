"""What the queries of the last verification attended to, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from glimpse.selection import BudgetedSelection, selections
from glimpse.types import IndexSpec, Runner, Sequence, Statistics


@selections.register
@dataclass
class Pillar(BudgetedSelection):
    """PillarAttn of SparseSpec (Zhao et al. 2025, arXiv 2512.01278): the mean attention of the
    verified queries, over the group of each KV head.

    A budget of 5 %, at least 128 positions, neither sinks nor recents of their own: what matters
    shows in the attention. ``window`` is the number of queries of a round; the paper drafts 8 to
    16. Its very first draft sees the whole KV; here it sees what the prompt's last queries chose.
    """

    budget: float = 0.05
    min_budget: int = 128
    sink_size: int = 0
    window: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise ValueError(f"window={self.window}: must be at least 1")

    @property
    def statistics(self) -> Statistics:
        return Statistics(window=self.window)

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        return IndexSpec(
            budget=self.num_positions(runner.length(sequence.handle)),
            sink_size=self.sink_size,
            recent_size=0,
            window=self.window,
        )
