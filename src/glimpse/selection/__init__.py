"""Which KV positions the draft sees: one policy per file, named after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from glimpse.registry import Registry
from glimpse.types import IndexSpec, Runner, Sequence, Statistics


class Selection(Protocol):
    """A policy for the glimpse. The runner keeps the statistics and does the top-k."""

    @property
    def statistics(self) -> Statistics:
        """What the runner must record of each sequence for this policy."""

    @property
    def needs(self) -> frozenset[str]:
        """Which of ``Capabilities.index`` its ``IndexSpec`` takes."""

    def num_positions(self, length: int) -> int:
        """Positions in a glimpse of a context of ``length``, about."""

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        """What the glimpse of a sequence shall hold; asked each time drafting begins."""


@dataclass
class BudgetedSelection:
    """What most policies share: a budget in positions, of which the first are always kept."""

    budget: float = 0.1
    """Share of the context's positions."""
    min_budget: int = 256
    """Positions kept however short the context."""
    sink_size: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.budget <= 1:
            raise ValueError(f"budget={self.budget}: must be above 0 and at most 1")
        if self.min_budget < 1:
            raise ValueError(f"min_budget={self.min_budget}: must be at least 1")
        if self.sink_size < 0:
            raise ValueError(f"sink_size={self.sink_size}: must be at least 0")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def num_positions(self, length: int) -> int:
        """Positions in a glimpse of a context of ``length``."""
        return min(length, max(self.min_budget, round(self.budget * length)))


selections: Registry[Selection] = Registry("selection")
selections.discover(__name__)
