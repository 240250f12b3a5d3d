"""Sinks and recents, whatever the text says."""

from __future__ import annotations

from dataclasses import dataclass

from glimpse.selection import BudgetedSelection, selections
from glimpse.types import IndexSpec, Runner, Sequence, Statistics


@selections.register
@dataclass
class Streaming(BudgetedSelection):
    """StreamingLLM (Xiao et al. 2023) as an index over the full cache; positions stay original."""

    @property
    def statistics(self) -> Statistics:
        return Statistics()

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        budget = self.num_positions(runner.length(sequence.handle))
        sink_size = min(self.sink_size, budget - 1)
        return IndexSpec(budget=budget, sink_size=sink_size, recent_size=budget - sink_size)
