"""Everything: drafts equal plain decoding, at its price."""

from __future__ import annotations

from dataclasses import dataclass

from glimpse.selection import selections
from glimpse.types import IndexSpec, Runner, Sequence, Statistics


@selections.register
@dataclass
class Full:
    """The whole KV; every greedy draft is accepted, which bounds what any selection can reach."""

    @property
    def statistics(self) -> Statistics:
        return Statistics()

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def num_positions(self, length: int) -> int:
        return length

    def select(self, runner: Runner, sequence: Sequence) -> IndexSpec:
        return IndexSpec(budget=runner.length(sequence.handle))
