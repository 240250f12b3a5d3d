"""The paper's policy: keep what the last verified queries attended to."""

from __future__ import annotations

from dataclasses import dataclass

from glimpse.selection import BudgetedSelection, selections
from glimpse.types import IndexSpec, Runner, Sequence, Statistics


@selections.register
@dataclass
class Verification(BudgetedSelection):
    """Recallable index from verification attention, per layer and KV head.

    SparseSpec-L, Eq. 3 and 4: a position's importance is the attention it received from the last
    ``window`` committed queries (the paper's W = 16); sinks and recents as in its references.
    """

    recent_size: int = 64
    window: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recent_size < 1:
            raise ValueError(f"recent_size={self.recent_size}: must be at least 1")
        if self.window < 1:
            raise ValueError(f"window={self.window}: must be at least 1")

    @property
    def statistics(self) -> Statistics:
        return Statistics(window=self.window)

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        return IndexSpec(
            budget=self.num_positions(runner.length(sequence.handle)),
            sink_size=self.sink_size,
            recent_size=self.recent_size,
            window=self.window,
        )
